"""The verbs of all layers, in the order of the help."""

from __future__ import annotations

from vllm_cluster.kernel.hooks import features
from vllm_cluster.kernel.terminal import edge
from vllm_cluster.serving.verbs import VERBS as OF_SERVING

# The nine of every day are first. One that is not here is last.
ORDER = (
    "init",
    "check",
    "plan",
    "up",
    "serve",
    "status",
    "logs",
    "endpoint",
    "down",
    "fit",
    "pull",
    "models",
    "image",
    "stop",
    "rollback",
    "chat",
    "complete",
    "batch",
    "bench",
    "dashboard",
    "explain",
    "exec",
    "slurm",
    "sandbox",
)


ABOUT = "Turn hosts with SSH and Docker into one vLLM endpoint."


def _place(name: str) -> int:
    return ORDER.index(name) if name in ORDER else len(ORDER)


_ALL = OF_SERVING | {name: verb for feature in features() for name, verb in feature.VERBS.items()}
VERBS = {name: _ALL[name] for name in sorted(_ALL, key=_place)}
# What they do is asked of no cluster.
WITHOUT_INVENTORY = tuple(name for name, verb in VERBS.items() if not verb.inventory)
edge.KNOWN.update(VERBS)
