"""The verbs of the feature fit, and what its help prints."""

from __future__ import annotations

from vllm_cluster.kernel.terminal.exits import MODELS, READ
from vllm_cluster.kernel.terminal.verb import Verb

VERBS = {
    "fit": Verb(
        MODELS,
        "features.fit.verb:fit",
        "Check whether a model fits, in which layouts and context.",
        "Reads the model's config and the headers of its weights, and the GPUs of the inventory's hosts. NAME is one "
        "that serve --name gave: its model is judged, with the context and KV cache of its flags.",
        (
            "vcluster fit meta-llama/Llama-3.1-8B-Instruct",
            "vcluster fit chat --concurrency 8",
            "vcluster fit ./config.json --gpus 8 --gpu-memory 80GB",
        ),
        {0: "it fits", 1: "the model cannot be read", 3: "it does not fit", **READ},
    ),
}
