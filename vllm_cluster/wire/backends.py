"""What makes one engine of a replica's parts, by name: a backend is a module of `kernel/backends` of that name."""

from typing import Literal

# Ray's actors, or vLLM's own processes on each host. Requests, status, inventory and options take it from here.
BackendName = Literal["ray", "mp"]
