"""The verbs of the feature ask, and what its help prints."""

from __future__ import annotations

from vllm_cluster.kernel.terminal.exits import USE
from vllm_cluster.kernel.terminal.verb import Verb

ASK = {
    1: "the answer broke off",
    2: "wrong usage or inventory, or a request that the server refuses",
    3: "no model is ready",
    4: "a host is unreachable",
}
VERBS = {
    "chat": Verb(
        USE,
        "features.ask.verb:chat",
        "Talk with the served model.",
        "A conversation on a terminal; one answer with PROMPT, or where standard input is piped.",
        (
            "vcluster chat",
            'vcluster chat "What is a river?" --system "Answer in one sentence." --max-tokens 64',
            "git diff | vcluster chat - --json-schema review.json",
        ),
        ASK,
    ),
    "complete": Verb(
        USE,
        "features.ask.verb:complete",
        "Continue a text with the served model.",
        "Forwards the API by itself, and uses the cluster's key. The answer alone is on standard output.",
        (
            'vcluster complete "The capital of France is" --max-tokens 8 --temperature 0',
            "vcluster complete - --logprobs 5 < prompt.txt",
        ),
        ASK,
    ),
}
