"""The verbs of the feature slurm, and what their help prints."""

from __future__ import annotations

from collections.abc import Mapping

from vllm_cluster.kernel.terminal.exits import MORE
from vllm_cluster.kernel.terminal.verb import Verb

_ASK = {1: "Slurm failed", 2: "wrong usage", 3: "there is no such job", 4: "the login node is unreachable"}


def _verb(
    function: str, summary: str, about: str, *examples: str, exits: Mapping[int, str], bare: Mapping[str, str] = {}
) -> Verb:
    at = f"features.slurm.verb:{function}"
    return Verb("Verbs", at, summary, about, examples, {**_ASK, **exits}, bare=bare, inventory=False)


SLURM = {
    "job": _verb(
        "job",
        "Print the batch script that serves a model, or submit it.",
        "The script is for sbatch: one step, a task a node, vLLM without Ray. Its job makes a key, asks vLLM for a "
        "first token, and starts what was ready again when a rank dies. Flags after -- go to vLLM.",
        "vcluster slurm meta-llama/Llama-3.1-405B-Instruct --nodes 2 --gpus 8 --time 4:00:00 >job.sh",
        "vcluster slurm org/model --nodes 2 --gpus 4 --time 4:00:00 --sbatch partition=gpu --submit",
        "vcluster slurm --from old-job.sh --container apptainer --image vllm.sif >job.sh",
        exits={1: "Slurm refused the job", 3: "it does not fit; nothing was submitted"},
    ),
    "status": _verb(
        "status",
        "Show whether a job serves, and why it ended.",
        "Ready means: the model has generated a token.",
        "vcluster slurm status 4711",
        "vcluster slurm status 4711 --wait 30m --login cluster.example.edu",
        exits={
            **{0: "the model is ready", 1: "it is not, and will not be; or a replica is missing"},
            **{75: "it is not yet", 124: "--wait timed out"},
        },
    ),
    "logs": _verb(
        "logs_of_job",
        "Print what a rank of a job has written.",
        "",
        "vcluster slurm logs 4711 --rank 1 --tail 100",
        "vcluster slurm logs 4711 --replica 2",
        exits={},
    ),
    "endpoint": _verb(
        "endpoint",
        "Print what OpenAI clients need: URL and key.",
        "The URL is for machines of the cluster; --tunnel forwards it to this one, through the login node.",
        "vcluster slurm endpoint 4711 --tunnel --login cluster.example.edu",
        'eval "$(vcluster slurm endpoint 4711)"',
        exits={3: "there is no such job, or its model is not ready"},
        bare={"--tunnel": "8000"},
    ),
    "explain": _verb(
        "explain_job",
        "Name the first cause of a failure from a job's logs.",
        "Of its first start that failed, unless it has ended as was asked: stopped, at its time limit, preempted.",
        "vcluster slurm explain 4711",
        exits={0: "a cause was found, or it has not failed", 1: "no cause was found"},
    ),
    "stop": _verb(
        "stop", "Cancel a job.", "", "vcluster slurm stop 4711 --yes", exits={0: "it is cancelled, or had ended"}
    ),
}
VERBS = {
    "slurm": Verb(MORE, "features.slurm.verb:app", "Serve a model in a Slurm job.", verbs=SLURM, inventory=False),
}
