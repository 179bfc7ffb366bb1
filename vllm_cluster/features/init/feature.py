"""The verbs of the feature init, and what its help prints."""

from __future__ import annotations

from vllm_cluster.kernel.terminal.exits import DAILY
from vllm_cluster.kernel.terminal.verb import Verb

VERBS = {
    "init": Verb(
        DAILY,
        "features.init.verb:init",
        "Write a commented inventory.",
        examples=(
            "vcluster init --host gpu1=10.0.0.11 --host gpu2=10.0.0.12",
            "vcluster init --from-ssh-config 'gpu*'",
            "vcluster init --preset spark",
            "vcluster init --schema > inventory.schema.json",
        ),
        inventory=False,
        bare={"--preset": "list"},
    ),
}
