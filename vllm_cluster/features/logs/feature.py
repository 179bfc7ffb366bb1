"""The verbs of the feature logs, and what its help prints."""

from __future__ import annotations

from vllm_cluster.kernel.terminal.exits import DAILY, READ
from vllm_cluster.kernel.terminal.verb import Verb

VERBS = {
    "logs": Verb(
        DAILY,
        "features.logs.verb:logs",
        "Show the logs of all hosts, merged by time.",
        "Each line has its host and what printed it: node, ray, vllm or a rank, and which of several replicas. With "
        "--follow a log continues after a lost connection or a restart, without gap or repeat.",
        (
            "vcluster logs --since 10m",
            "vcluster logs --follow --errors",
            "vcluster logs --only rank=3",
            "vcluster logs --only replica=1",
        ),
        {1: "a log could not be read to its end", 3: "the cluster is not up", **READ},
    ),
}
