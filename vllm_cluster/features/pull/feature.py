"""The verbs of the feature pull, and what its help prints; what it adds to serving."""

from __future__ import annotations

from vllm_cluster.kernel.terminal.exits import LEASE, READ
from vllm_cluster.kernel.terminal.exits import MODELS as OF_MODELS
from vllm_cluster.kernel.terminal.verb import Verb

MODELS = {
    "ls": Verb(
        "Verbs",
        "features.pull.models_verb:models_ls",
        "Show which models each host has, and whether complete.",
        examples=("vcluster models", "vcluster models --json"),
        exits={1: "a host's cache cannot be read", **READ},
    ),
    "rm": Verb(
        "Verbs",
        "features.pull.models_verb:rm",
        "Remove a model from the hosts.",
        "Frees what it takes in the caches, all revisions. Refuses what is served, or is being pulled.",
        ("vcluster models rm org/old-model", "vcluster models rm ./my-model gpu2 --yes"),
        {
            0: "none of the hosts has it",
            1: "failed, or the answer was no",
            **LEASE,
            3: "it is being served; nothing was changed",
            75: "it is being pulled, or another run changes these hosts",
        },
    ),
}
VERBS = {
    "pull": Verb(
        OF_MODELS,
        "features.pull.verb:pull",
        "Bring a model to every host: download once, then spread.",
        "One host downloads, the others receive from host to host meanwhile; every file is hashed. It continues "
        "without this machine: Ctrl-C leaves it running, and the same command follows it again, or resumes it.",
        (
            "vcluster pull meta-llama/Llama-3.1-8B-Instruct",
            "vcluster pull meta-llama/Llama-3.1-8B-Instruct@main --via gpu2 --detach",
            "vcluster pull meta-llama/Llama-3.1-8B-Instruct --verify",
            "vcluster pull ./my-model --as my-model",
        ),
        {
            0: "every host has the model",
            1: "some hosts do not have it",
            2: "wrong usage or inventory",
            3: "the model cannot be had, or a disk has no room; nothing was changed",
            4: "a host or the hub is unreachable",
            75: "another model is being pulled",
        },
    ),
    "models": Verb(
        OF_MODELS, "features.pull.models_verb:app", "Show and remove the models of the hosts.", verbs=MODELS
    ),
}
# By the name of the hook.
ADDS = {"pull-first": "features.pull.offer:PullFirst"}
