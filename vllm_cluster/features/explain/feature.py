"""The verbs of the feature explain, and what its help prints."""

from __future__ import annotations

from vllm_cluster.kernel.terminal.exits import MORE, READ
from vllm_cluster.kernel.terminal.verb import Verb

VERBS = {
    "explain": Verb(
        MORE,
        "features.explain.verb:explain",
        "Name the first cause of a failure from logs.",
        "Reads the logs of the cluster, or of any launcher. With the name of a failure it shows what is known of it. "
        "With --bundle it packs a report; known secrets are redacted, review it before you share it.",
        (
            "vcluster explain",
            "vcluster explain vllm.log ray/session_latest/logs",
            "vcluster explain context-too-long",
            "vcluster explain --bundle report.tar.gz",
        ),
        {
            0: "a cause was found, or no failure",
            1: "something failed, and no line names the cause",
            5: "no known failure matches; the exception of the process that failed first is shown",
            75: "the last start is neither ready nor ended",
            **READ,
        },
    ),
}
