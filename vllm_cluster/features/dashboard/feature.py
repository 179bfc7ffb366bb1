"""The verbs of the feature dashboard, and what its help prints."""

from __future__ import annotations

from vllm_cluster.kernel.terminal.exits import MORE
from vllm_cluster.kernel.terminal.verb import Verb

VERBS = {
    "dashboard": Verb(
        MORE,
        "features.dashboard.verb:dashboard",
        "Show the cluster as a page in the browser until Ctrl-C.",
        "What vcluster status --watch shows, and the last half hour of it. On loopback alone; it changes nothing.",
        ("vcluster dashboard", "vcluster dashboard --port 8501"),
        {2: "wrong usage or inventory"},
    ),
}
