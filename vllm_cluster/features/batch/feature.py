"""The verbs of the feature batch, and what its help prints; what it adds to serving."""

from __future__ import annotations

from vllm_cluster.kernel.terminal.exits import USE
from vllm_cluster.kernel.terminal.verb import Verb

BATCH = {
    0: "every request is answered",
    1: "some requests have no answer, or the server did not come back",
    2: "wrong usage or inventory, or OUT holds answers to another input",
    3: "no model is ready, or another one than that of OUT",
    4: "a host is unreachable",
    75: "another run writes OUT",
}
VERBS = {
    "batch": Verb(
        USE,
        "features.batch.verb:batch",
        "Answer a file of requests with the served model.",
        "The head does it, also while this machine is off; answers are fetched into OUT, in the order of IN. Run it "
        "again after any end: what OUT has is not asked again. Options are for requests that lack the field.",
        (
            "vcluster batch requests.jsonl -o answers.jsonl",
            "vcluster batch prompts.json -o answers.jsonl --max-tokens 64 --set n=4",
            "vcluster batch requests.jsonl -o answers.jsonl --detach",
            "vcluster batch --list",
        ),
        BATCH,
        usage=("IN", "-o OUT", "[OPTIONS]"),
    ),
}
# By the name of the hook.
ADDS = {"kept-on-head": "features.batch.jobs:UNFETCHED"}
