"""The verbs of the feature sandbox, and what its help prints."""

from __future__ import annotations

from vllm_cluster.kernel.terminal.exits import MORE
from vllm_cluster.kernel.terminal.verb import Verb

VERBS = {
    "sandbox": Verb(MORE, "features.sandbox.verb:app", "Create and remove a local test cluster.", inventory=False),
}
