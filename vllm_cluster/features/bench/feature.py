"""The verbs of the feature bench, and what its help prints."""

from __future__ import annotations

from vllm_cluster.kernel.terminal.exits import READ, USE
from vllm_cluster.kernel.terminal.verb import Verb

VERBS = {
    "bench": Verb(
        USE,
        "features.bench.verb:bench",
        "Measure the served model with vLLM's own benchmark.",
        "Runs vllm bench serve in the head's container, and writes a folder: results, versions, flags, hardware, and "
        "a report for a browser. --compare shows what differs between two folders by more than noise.",
        (
            "vcluster bench",
            "vcluster bench --concurrency 1,64 --input-len 1024 --output-len 256 --repeat 5",
            "vcluster bench --compare bench-before bench-after",
        ),
        {1: "a run failed; those before it are kept", 3: "no model is ready", **READ},
        usage=("[OPTIONS]", "[--compare A B]"),
    ),
}
