"""The verbs of the feature exec, and what its help prints."""

from __future__ import annotations

from vllm_cluster.kernel.terminal.exits import MORE, READ
from vllm_cluster.kernel.terminal.verb import Verb

VERBS = {
    "exec": Verb(
        MORE,
        "features.exec.verb:exec_",
        "Run a command or a shell on a node, or on its host.",
        "Input, signals, terminal and exit code are those of the command; with --all the highest exit code. --ssh runs "
        "the ssh of this machine with the inventory's settings; its exit code is 255 where it could not connect.",
        (
            "vcluster exec gpu1",
            "vcluster exec --head -- ray status",
            "vcluster exec --all -- df -h /dev/shm",
            "vcluster exec gpu1 --ssh -- nvidia-smi",
        ),
        {3: "the cluster is not up", **READ},
        habits=("-it", "-ti"),
        usage=("[OPTIONS]", "(HOST | --head | --all)", "[-- COMMAND]"),
    ),
}
