"""The verbs that bring and remove models: what their help prints."""

from __future__ import annotations

from vllm_cluster.cli.exits import READ
from vllm_cluster.cli.program import Verb

_SET_UP = "Set up"

MODELS = Verb(
    _SET_UP,
    "models:models",
    "Show which models each host has, and whether complete.",
    examples=("vcluster models", "vcluster models --json"),
    exits={1: "a host's cache cannot be read", **READ},
)

PULL = Verb(
    _SET_UP,
    "pull:pull",
    "Bring a model to every host: download once, then spread.",
    "One host downloads, the others receive from host to host meanwhile; every file is hashed. It continues without "
    "this machine: Ctrl-C leaves it running, and the same command looks on. After any end the same command continues.",
    (
        "vcluster pull meta-llama/Llama-3.1-8B-Instruct",
        "vcluster pull meta-llama/Llama-3.1-8B-Instruct@main --via gpu2 --detach",
        "vcluster pull meta-llama/Llama-3.1-8B-Instruct --verify",
    ),
    {
        0: "every host has the model",
        1: "some hosts do not have it",
        2: "usage or inventory",
        3: "the model cannot be had, or a disk has no room; nothing was changed",
        4: "a host or the hub is unreachable",
        75: "another model is being pulled",
    },
)
