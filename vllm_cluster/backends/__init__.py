"""Command lines of vLLM and of what joins its nodes, and parsers of their output; no I/O."""

# The one way to join nodes that there is: what asks it names it no further.
from vllm_cluster.backends import ray as backend

__all__ = ["backend"]
