"""The verbs of serving, and what its help prints."""

from __future__ import annotations

from vllm_cluster.kernel.terminal.exits import DAILY, LEASE, MODELS, READ, REQUEST
from vllm_cluster.kernel.terminal.verb import Verb

STATUS = {
    0: "the cluster is as in the inventory, and the requested model is ready; with --wait, what it waited for",
    1: "the cluster differs, or the model is not ready; with --wait, it cannot become ready",
    3: "with --wait or --history: the cluster is not up",
    **READ,
    124: "--wait timed out",
}
VERBS = {
    "plan": Verb(
        DAILY,
        "serving.cluster.verb:plan",
        "Show what up would change.",
        "Changes nothing. Each change shows what it was and what it will be.",
        ("vcluster plan", "vcluster plan --exit-code"),
        {3: "an error was found", 10: "there is something to do (with --exit-code)", **READ},
    ),
    "up": Verb(
        DAILY,
        "serving.cluster.verb:up",
        "Bring every host to the state of the inventory.",
        "Waits until Ray reports exactly the planned GPUs. With nothing to do it changes nothing.",
        ("vcluster up", "vcluster up --yes --wait 10m"),
        {0: "the cluster is up", 1: "failed, or the answer was no", **LEASE},
    ),
    "serve": Verb(
        DAILY,
        "serving.serve.verb:serve",
        "Serve a model on the GPUs of the cluster.",
        "Another model is served beside it where GPUs are free, and else replaces it, after a question. "
        "Returns when the model has generated a token. If it never does, the model that was ready before is served "
        "again. Flags after -- go to vLLM. --from takes model, name, layout and flags from a command line of vLLM, or "
        "from a file of vLLM's recipe book; it drops what vcluster sets itself, and shows why.",
        (
            "vcluster serve meta-llama/Llama-3.1-8B-Instruct",
            "vcluster serve meta-llama/Llama-3.1-70B-Instruct --tp 8 --pp 2 -- --max-model-len 8192",
            "vcluster serve meta-llama/Llama-3.1-8B-Instruct --hosts gpu1",
            "vcluster serve --from 'vllm serve meta-llama/Llama-3.1-8B-Instruct -tp 2' --dry-run",
            "vcluster serve --from GLM-5.2.yaml --variant fp8",
        ),
        {0: "the model is ready", 1: "failed, or the answer was no", **REQUEST},
    ),
    "status": Verb(
        DAILY,
        "serving.status.verb:status",
        "Show hosts, GPUs and the served model.",
        "Problems are one line each; -v shows their whole text. --watch adds use, power and temperature of GPUs, "
        "tokens a second, requests, KV cache, TTFT, TPOT; without a terminal it prints a line each time. --wait is for "
        "scripts. --history is what the head keeps, with the number of each request for rollback; down deletes it.",
        (
            "vcluster status",
            "vcluster status --watch",
            "vcluster status --watch --json --count 2",
            "vcluster status --wait 30m",
            "vcluster status --history 100 --json",
        ),
        STATUS,
        # Each is on where it is given, and its value has a default.
        bare={"--watch": "2s", "-w": "2s", "--wait": "10m", "--history": "20"},
    ),
    "endpoint": Verb(
        DAILY,
        "serving.endpoint.verb:endpoint",
        "Print what OpenAI clients need: URL and key.",
        "With --detach a tunnel stays open in the background; a later call finds it, and --close closes it. With "
        "--rotate what runs continues, and every client needs the new key.",
        (
            "vcluster endpoint --detach",
            'eval "$(vcluster endpoint --env)"',
            "vcluster endpoint --tunnel 8001",
            'echo "Authorization: Bearer $(vcluster endpoint --key)" | curl -H @- http://127.0.0.1:8000/v1/models',
            "vcluster endpoint --rotate 10m",
        ),
        {
            1: "the tunnel does not lead to the model or broke; or the API does not take a new key",
            3: "no model is ready, no tunnel is open and --direct not given, or the cluster is not up",
            75: "with --rotate: another run changes these hosts",
            **READ,
        },
        bare={"--rotate": "0", "--tunnel": "api"},
    ),
    "down": Verb(
        DAILY,
        "serving.cluster.verb:down",
        "Remove the cluster's containers and volumes from all hosts.",
        "Keeps images and model caches. Deletes the API key, the history and the batches on the head, and ends pulls. "
        "On a terminal it asks first; without one it needs --yes where a model is served or pulled, or a batch is not "
        "fetched.",
        ("vcluster down", "vcluster down --yes"),
        {0: "no container or volume of it is left", 1: "failed, or the answer was no", **LEASE},
    ),
    "stop": Verb(
        MODELS,
        "serving.serve.verb:stop",
        "Stop the served model; keep the cluster up.",
        examples=("vcluster stop --yes",),
        exits={0: "no model is served", 1: "failed, or the answer was no", **LEASE},
    ),
    "rollback": Verb(
        MODELS,
        "serving.serve.verb:rollback",
        "Serve the model again that was ready before.",
        "Repeats the last request that was ready before the current one, with its flags; of a model that was stopped, "
        "its last one; or the one of a number, as status --history shows it.",
        ("vcluster rollback", "vcluster rollback 7 --yes"),
        {0: "the model is ready", 1: "failed, or the answer was no", **REQUEST},
    ),
}
