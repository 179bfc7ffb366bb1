"""The verbs: where each is, and what its help prints."""

from __future__ import annotations

from vllm_cluster.kernel.terminal.program import Verb

# What exit codes mean, as the help of several verbs has it.
LEASE = {
    2: "wrong usage or inventory, or a question without a terminal and without --yes",
    3: "an error was found before anything was changed",
    4: "a host is unreachable",
    75: "another run changes these hosts (--wait waits for it)",
}
REQUEST = {**LEASE, 75: f"{LEASE[75]}, or another request replaced this one"}
READ = {2: "wrong usage or inventory", 4: "a host is unreachable"}
STATUS = {
    0: "the cluster is as in the inventory, and the requested model is ready; with --wait, what it waited for",
    1: "the cluster differs, or the model is not ready; with --wait, it cannot become ready",
    3: "with --wait or --history: the cluster is not up",
    **READ,
    124: "--wait timed out",
}
ASK = {
    1: "the answer broke off",
    2: "wrong usage or inventory, or a request that the server refuses",
    3: "no model is ready",
    4: "a host is unreachable",
}
BATCH = {
    0: "every request is answered",
    1: "some requests have no answer, or the server did not come back",
    2: "wrong usage or inventory, or OUT holds answers to another input",
    3: "no model is ready, or another one than that of OUT",
    4: "a host is unreachable",
    75: "another run writes OUT",
}

# The nine verbs of every day are first.
_DAILY, _MODELS, _USE, _MORE = "Every day", "Models and images", "Use the model", "More"

VERBS = {
    "init": Verb(
        _DAILY,
        "features.init.verb:init",
        "Write a commented inventory.",
        examples=(
            "vcluster init --host gpu1=10.0.0.11 --host gpu2=10.0.0.12",
            "vcluster init --from-ssh-config 'gpu*'",
            "vcluster init --schema > inventory.schema.json",
        ),
    ),
    "check": Verb(
        _DAILY,
        "features.check.verb:check",
        "Check hosts and the links between them for known problems.",
        "Changes nothing: temporary containers are removed. With --facts it shows GPUs, Docker, network, RDMA, memory "
        "and disks of the hosts.",
        ("vcluster check", "vcluster check --deep", "vcluster check --facts gpu1 --json"),
        {0: "no errors; there may be warnings", 3: "an error was found", **READ},
    ),
    "plan": Verb(
        _DAILY,
        "serving.cluster.verb:plan",
        "Show what up would change.",
        "Changes nothing. Each change shows what it was and what it will be.",
        ("vcluster plan", "vcluster plan --exit-code"),
        {3: "an error was found", 10: "there is something to do (with --exit-code)", **READ},
    ),
    "up": Verb(
        _DAILY,
        "serving.cluster.verb:up",
        "Bring every host to the state of the inventory.",
        "Waits until Ray reports exactly the planned GPUs. With nothing to do it changes nothing.",
        ("vcluster up", "vcluster up --yes --wait 10m"),
        {0: "the cluster is up", 1: "failed, or the answer was no", **LEASE},
    ),
    "serve": Verb(
        _DAILY,
        "serving.serve.verb:serve",
        "Serve a model on the GPUs of the cluster.",
        "A cluster serves one model: another one replaces it, after its config, flags and memory have been checked. "
        "Returns when the model has generated a token. If it never does, the model that was ready before is served "
        "again. Flags after -- go to vLLM. --from takes model, name, layout and flags from a command line of vLLM, and "
        "--recipe from a file of vLLM's recipe book; both drop what vcluster sets itself, and show why.",
        (
            "vcluster serve meta-llama/Llama-3.1-8B-Instruct",
            "vcluster serve meta-llama/Llama-3.1-70B-Instruct --tp 8 --pp 2 -- --max-model-len 8192",
            "vcluster serve meta-llama/Llama-3.1-8B-Instruct --hosts gpu1",
            "vcluster serve --from 'vllm serve meta-llama/Llama-3.1-8B-Instruct -tp 2' --dry-run",
            "vcluster serve --recipe GLM-5.2.yaml --variant fp8",
        ),
        {0: "the model is ready", 1: "failed, or the answer was no", **REQUEST},
    ),
    "status": Verb(
        _DAILY,
        "serving.status.verb:status",
        "Show hosts, GPUs and the served model.",
        "Problems are one line each; -v shows their whole text. --watch adds use, power and temperature of GPUs, "
        "tokens a second, requests, KV cache, TTFT, TPOT; without a terminal it prints a line each time. --wait is for "
        "scripts. --history is what the head keeps; down deletes it.",
        (
            "vcluster status",
            "vcluster status --watch",
            "vcluster status --watch --json --count 2",
            "vcluster status --wait --timeout 30m",
            "vcluster status --wait --gpus",
            "vcluster status --history --last 100 --json",
        ),
        STATUS,
    ),
    "logs": Verb(
        _DAILY,
        "features.logs.verb:logs",
        "Show the logs of all hosts, merged by time.",
        "Each line has its host and what printed it: node, ray, vllm or a rank. With --follow a log continues after a "
        "lost connection or a restart, without gap or repeat.",
        ("vcluster logs --since 10m", "vcluster logs --follow --errors", "vcluster logs --rank 3"),
        {1: "a log could not be read to its end", 3: "the cluster is not up", **READ},
    ),
    "endpoint": Verb(
        _DAILY,
        "serving.endpoint.verb:endpoint",
        "Print what OpenAI clients need: URL and key.",
        "With --detach a tunnel stays open in the background; a later call finds it, and --close closes it. With "
        "--rotate what runs continues, and every client needs the new key.",
        (
            "vcluster endpoint --detach",
            'eval "$(vcluster endpoint --env)"',
            "vcluster endpoint --tunnel --port 8001",
            'curl -H "Authorization: Bearer $(vcluster endpoint --key)" http://127.0.0.1:8000/v1/models',
            "vcluster endpoint --rotate --grace 10m",
        ),
        {
            1: "the tunnel does not lead to the model or broke; or the API does not take a new key",
            3: "no model is ready, this machine cannot reach it, or the cluster is not up",
            75: "with --rotate: another run changes these hosts",
            **READ,
        },
    ),
    "down": Verb(
        _DAILY,
        "serving.cluster.verb:down",
        "Remove the cluster's containers and volumes from all hosts.",
        "Keeps images and model caches. Deletes the API key, the history and the batches on the head, and ends pulls. "
        "On a terminal it asks first; without one it needs --yes where a model is served or pulled, or a batch is not "
        "fetched.",
        ("vcluster down", "vcluster down --yes"),
        {0: "no container or volume of it is left", 1: "failed, or the answer was no", **LEASE},
    ),
    "fit": Verb(
        _MODELS,
        "features.fit.verb:fit",
        "Check whether a model fits, in which layouts and context.",
        "Reads the model's config and the headers of its weights, and the GPUs of the inventory's hosts.",
        ("vcluster fit meta-llama/Llama-3.1-8B-Instruct", "vcluster fit ./config.json --gpus 8 --gpu-memory 80GB"),
        {0: "it fits", 1: "the model cannot be read", 3: "it does not fit", **READ},
    ),
    "pull": Verb(
        _MODELS,
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
    "models": Verb(_MODELS, "features.pull.models_verb:app", "Show and remove the models of the hosts."),
    "image": Verb(_MODELS, "features.images.verb:app", "List, remove and send the images of the hosts."),
    "stop": Verb(
        _MODELS,
        "serving.serve.verb:stop",
        "Stop the served model; keep the cluster up.",
        examples=("vcluster stop --yes",),
        exits={0: "no model is served", 1: "failed, or the answer was no", **LEASE},
    ),
    "rollback": Verb(
        _MODELS,
        "serving.serve.verb:rollback",
        "Serve the model again that was ready before.",
        "Repeats the last request that was ready before the current one, with its flags.",
        ("vcluster rollback", "vcluster rollback --yes"),
        {0: "the model is ready", 1: "failed, or the answer was no", **REQUEST},
    ),
    "chat": Verb(
        _USE,
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
        _USE,
        "features.ask.verb:complete",
        "Continue a text with the served model.",
        "Forwards the API by itself, and uses the cluster's key. The answer alone is on standard output.",
        (
            'vcluster complete "The capital of France is" --max-tokens 8 --temperature 0',
            "vcluster complete - --logprobs 5 < prompt.txt",
        ),
        ASK,
    ),
    "batch": Verb(
        _USE,
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
    "bench": Verb(
        _USE,
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
    "dashboard": Verb(
        _MORE,
        "features.dashboard.verb:dashboard",
        "Show the cluster as a page in the browser until Ctrl-C.",
        "What vcluster status --watch shows, and the last half hour of it. On loopback alone; it changes nothing.",
        ("vcluster dashboard", "vcluster dashboard --port 8501"),
        {2: "wrong usage or inventory"},
    ),
    "metrics": Verb(
        _MORE,
        "features.metrics.verb:metrics",
        "Write Prometheus targets, alert rules, a Grafana dashboard.",
        "vLLM's own metrics. The API's key is in a file for its owner alone; key --rotate on this machine renews it.",
        ("vcluster metrics", "vcluster metrics --output /etc/prometheus/lab --target 10.0.0.11:8000"),
        {3: "the cluster is not up", **READ},
    ),
    "explain": Verb(
        _MORE,
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
    "exec": Verb(
        _MORE,
        "features.exec.verb:exec_",
        "Run a command or a shell on a node, or on its host.",
        "Input, signals, terminal and exit code are those of the command; with --all the highest exit code. --ssh runs "
        "the ssh of this machine with the inventory's settings; its exit code is 255 where it could not connect.",
        (
            "vcluster exec gpu1",
            "vcluster exec --head -- ray status",
            "vcluster exec --all -- df -h /dev/shm",
            "vcluster exec gpu1 --ssh -- nvidia-smi",
        ),
        {3: "the cluster is not up", **READ},
        habits=("-it", "-ti"),
        usage=("[OPTIONS]", "(HOST | --head | --all)", "[-- COMMAND]"),
    ),
    "sandbox": Verb(_MORE, "features.sandbox.verb:app", "Create and remove a local test cluster."),
}
# Those of `vcluster models`.
MODELS = {
    "ls": Verb(
        "Verbs",
        "features.pull.models_verb:ls",
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
# What they do is asked of no cluster.
WITHOUT_INVENTORY = ("init", "sandbox")
