"""The verbs of the feature check, and what its help prints."""

from __future__ import annotations

from vllm_cluster.kernel.terminal.exits import DAILY, READ
from vllm_cluster.kernel.terminal.verb import Verb

VERBS = {
    "check": Verb(
        DAILY,
        "features.check.verb:check",
        "Check hosts and the links between them for known problems.",
        "Changes nothing: temporary containers are removed. With --facts it shows GPUs, Docker, network, RDMA, memory "
        "and disks of the hosts.",
        ("vcluster check", "vcluster check --deep", "vcluster check --facts gpu1 --json"),
        {0: "no errors; there may be warnings", 3: "an error was found", **READ},
    ),
}
