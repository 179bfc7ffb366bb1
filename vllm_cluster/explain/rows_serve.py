"""Failures of vllm serve, its plan and its memory: rows 44 to 59 and 71 to 73."""

from __future__ import annotations

from vllm_cluster.explain.row import Row, Sign, Weight, cause, symptom

CHECK = "vcluster check"
FIT = "vcluster fit MODEL"
SERVE = "vcluster serve"
DEEP = "vcluster check --deep"


def after(needle: str, pattern: str = "") -> Sign:
    """A line that only says that something else has failed."""
    return Sign(needle, pattern, Weight.CONSEQUENCE)


ROWS = (
    Row(
        "44",
        "`World size (16) is larger than the number of available GPUs (8) in this node`",
        "vLLM was told neither that Ray places the ranks nor how many nodes there are",
        "vcluster serve says it by itself; by hand: --distributed-executor-backend ray",
        SERVE,
        (cause("World size (", r"World size \(\d+\) is larger than the number of available"),),
    ),
    Row(
        "44a",
        "`--nnodes N must evenly divide the total world size`",
        "TP × PP × DP is no multiple of the number of nodes",
        "--tp and --pp whose product is the number of GPUs",
        SERVE,
        (
            cause("must evenly divide the total world size"),
            cause("requires --data-parallel-backend mp"),
        ),
    ),
    Row(
        "45",
        "`collective_rpc should not be called on follower node`",
        "a follower was started through python -m …api_server, which ignores --headless",
        "vllm serve on every node (vcluster lets Ray start the ranks)",
        SERVE,
        (cause("collective_rpc should not be called on follower node"),),
    ),
    Row(
        "46",
        "`Address already in use`, `Cannot assign requested address`",
        "the port is taken, often by a server that was left over, or the address is not this host's",
        "ss -ltnp on that host names who listens: end it, or set ports: in the inventory; leave VLLM_PORT unset",
        CHECK,
        (
            cause("ddress already in use"),
            cause("annot assign requested address"),
            cause("of 127.0.0.1 is taken by another program"),
            cause("is taken by another program", r"port \d+ of "),
        ),
    ),
    Row(
        "47",
        "`Pipeline parallelism is not supported for this model`",
        "vLLM's class for this model cannot be split into stages",
        "vcluster serve MODEL --pp 1 --tp GPUS, or a newer image",
        FIT,
        (
            cause("Pipeline parallelism is not supported for this model"),
            cause("Pipeline parallelism is only supported for the following"),
        ),
    ),
    Row(
        "48",
        "`Total number of attention heads (N) must be divisible by tensor parallel size (T)`",
        "the model cannot be split over so many GPUs",
        "vcluster fit MODEL lists the TP × PP that can be; vcluster serve MODEL --tp T --pp P",
        FIT,
        (
            cause("must be divisible by tensor parallel size"),
            cause("exceeds available GPUs", r"[Tt]ensor parallel size \(?\d+\)? exceeds"),
            cause("is not divisible by", r"\d+ is not divisible by \d+"),
            cause("is not a multiple of the number of attention heads"),
        ),
    ),
    Row(
        "49",
        "`is not divisible by weight quantization block_n = 128`",
        "a GPU's share of a layer is no multiple of the block in which the weights are quantised",
        "a smaller --tp and more --pp; vcluster fit MODEL shows which",
        FIT,
        (
            cause("is not divisible by weight quantization block"),
            cause(
                "not divisible by",
                r"size_per_partition\s*=?\s*\d+ is not divisible by|not divisible by .{0,20}(?:min_thread|group_size)",
            ),
        ),
    ),
    Row(
        "50",
        "ready, and the first request hangs",
        "a stage waits for another that never answers",
        "vcluster serve asks for two completions before it says ready; -- --enforce-eager to try without graphs",
        SERVE,
        silent="it hangs; what is logged later is row 39, 51 or 55",
    ),
    Row(
        "51",
        "`No available shared memory broadcast block found in 60 seconds`, and nothing after it",
        "a rank does not take its work: dead, stopped, or waiting for another that is",
        "vcluster status; nvidia-smi on every host: the one with 0 % use is it; vcluster stop, vcluster serve again",
        DEEP,
        silent="harmless by itself: long work says the same; a failure only where no work goes on after it",
    ),
    Row(
        "52",
        "one host at 100 % GPU use, another at 0 %",
        "a collective was lost between them",
        "vcluster check --deep; another version of the image",
        DEEP,
        silent="it hangs; what is logged later is row 51, 23 or 55",
    ),
    Row(
        "53",
        "`CUDA out of memory`",
        "the GPU is full: another process, too long a context, or too high a --gpu-memory-utilization",
        "-- --gpu-memory-utilization 0.85 --max-model-len N; vcluster fit MODEL; nvidia-smi shows who else is there",
        FIT,
        (
            cause("CUDA out of memory"),
            cause("torch.OutOfMemoryError"),
            cause("torch.cuda.OutOfMemoryError"),
            cause("CUDA error: out of memory"),
            cause("No available memory for the cache blocks"),
        ),
    ),
    Row(
        "54",
        "killed without a word; exit code 137",
        "the host ran out of memory: page cache and pinned buffers count, on unified memory also the GPU's share",
        "free -g; a smaller shm_size: in the inventory; drop caches; fewer processes beside it",
        CHECK,
        (
            cause("Out of memory: Killed process"),
            cause("oom-kill:constraint"),
            cause("Memory cgroup out of memory"),
            cause("invoked oom-killer"),
            cause('"OOMKilled":true'),
            cause("killed for lack of memory"),
            cause("DefaultCPUAllocator: can't allocate memory"),
            cause("Cannot allocate memory", r"Errno 12\]|os error 12|fork"),
        ),
        host=True,
    ),
    Row(
        "55",
        "/health says 200 and nothing answers; `RPC call to execute_model timed out`",
        "a rank on another host is dead or stuck, and nobody watches it",
        "vcluster status; vcluster serve again: its head watches Ray's nodes and asks for real completions",
        "",
        (
            symptom("RPC call to", r"RPC call to \w+ timed out"),
            symptom("has not answered 200 for"),
            symptom("a completion ended with HTTP"),
            symptom("Ray has lost"),
        ),
    ),
    Row(
        "56",
        "headless ranks log errors for ever after the head is gone",
        "a headless rank does not end with its head",
        "stop them too (vcluster stop, vcluster down)",
        silent="what it logs is another row's; vcluster starts no headless ranks",
    ),
    Row(
        "57",
        "one rank comes back after a restart and never joins",
        "a restart policy for one container, where only the whole group can start",
        "start the whole group again; vcluster's node program does",
        silent="its log lines are those of row 30",
    ),
    Row(
        "58",
        "`Operation not permitted` from io_uring",
        "Docker's seccomp profile forbids it",
        "-- --load-format safetensors, or a seccomp profile that allows io_uring",
        "",
        (cause("io_uring", r"(?i)io_uring.{0,120}(?:not permitted|EPERM|os error 1\b)"),),
    ),
    Row(
        "59",
        "ranks run with different flags",
        "commands written by hand for each host",
        "vcluster serve: one source for all ranks",
        silent="what it leads to is another row",
    ),
    Row(
        "71",
        "`To serve at least one request with the model's max seq len …`",
        "the context does not fit beside the weights",
        "-- --max-model-len N (vcluster fit MODEL says how long), more GPUs, or -- --kv-cache-dtype fp8",
        FIT,
        (
            cause("To serve at least one request with the model"),
            cause("is larger than the maximum number of tokens that can be stored in KV cache"),
            cause("larger than the available KV cache memory"),
        ),
    ),
    Row(
        "72",
        "the server ends with exit code 0 after `EngineCore encountered an issue`",
        "its engine died; the API server then ends in order",
        "vcluster's head starts it again; the cause stands in the first rank's log",
        "",
        (
            after("EngineCore encountered an issue"),
            after("EngineDeadError"),
            after("EngineGenerateError"),
            after("Engine core initialization failed"),
            after("EngineCore failed to start"),
            after("EngineCore encountered a fatal error"),
            after("WorkerProc failed to start"),
            after("WorkerProc initialization failed"),
            after("RayActorError"),
            after("ActorDiedError"),
            after("ActorUnavailableError"),
            after("vLLM ended with exit code"),
        ),
    ),
    Row(
        "73",
        "`Free memory on device … is less than the engine's budget after excluding external process's weights`",
        "something else holds memory of the GPU (row 9 in another wording)",
        "nvidia-smi names the processes: end them; or -- --gpu-memory-utilization 0.8",
        CHECK,
        (cause("is less than the engine's budget"),),
    ),
)
