"""What whole logs of strangers hold: refused requests, parts of a start, what was survived for hours, odd bytes."""

from __future__ import annotations

import pytest

from tests.support.logs import explained

READY = "(APIServer pid=7) INFO:     Application startup complete.\n"
LOADS = "(Worker_TP0 pid=9) INFO 11-03 10:00:00 [gpu_model_runner.py:1] Starting to load model org/model...\n"
LEAVES = "[rank0]:[W1103 10:05:00.1 ProcessGroupNCCL.cpp:1] Warning: WARNING: destroy_process_group() was not called\n"
WAITS = "(EngineCore pid=8) INFO 11-03 10:03:00 [shm_broadcast.py:1] No available shared memory broadcast block found\n"
DIED = "(EngineCore pid=8) ERROR 11-03 10:04:00 [multiproc_executor.py:1] Worker proc VllmWorker-2 died unexpectedly\n"
WATCHDOG = (
    "[rank1]:[E1103 {0} ProcessGroupNCCL.cpp:1] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=5, OpType=BROADCAST, Timeout(ms)=600000) ran for 600067 milliseconds before timing out.\n"
)
FATAL = "[2026-11-03 09:00:00] gpu1:1:2 [0] net_ib/common.cc:1 NCCL WARN NET/IB : mlx5_0:1 async fatal event: {0}\n"


def named(text: str) -> tuple[str, str]:
    found = explained(text)
    return found.result, found.named.failure.slug if found.named else ""


# fault: kernel/explain/progress.py: "Error in ", → "Error in chat completion",
@pytest.mark.parametrize("step", ["preprocessing prompt inputs", "applying chat template from request"])
def test_a_refused_request_is_announced_in_many_words(step: str) -> None:
    """The server ends later in order, and had no request after it."""
    trace = f"""Error in {step}
Traceback (most recent call last):
  File "/venv/vllm/entrypoints/openai/serving_engine.py", line 5, in _validate_input
    raise ValueError(
ValueError: This model's maximum context length is 9 tokens. However, you requested 10 tokens
"""
    lines = "".join(f"ERROR 11-03 10:00:00 [serving_chat.py:1] {line}\n" for line in trace.splitlines())
    refused = 'INFO:     127.0.0.1:41000 - "POST /v1/chat/completions HTTP/1.1" 400 Bad Request\n'
    assert explained(READY + lines + refused + "INFO:     Shutting down\n").result == "healthy"


# fault: kernel/explain/weighing.py: if any(log.started or log.ranks.starting for → if any(log.started for
# fault: kernel/explain/ranks.py: "clients joined", LEAVES, → "clients joined",
# fault: kernel/explain/ranks.py: (self.starting or starts) → starts
@pytest.mark.parametrize(
    "line",
    [
        LOADS,
        "INFO 11-03 10:00:00 [parallel_state.py:1] world_size=2 rank=1 local_rank=0 distributed_init_method=env://\n",
        "(EngineCore pid=8) (RayWorkerWrapper pid=9, ip=10.0.0.2) INFO 11-03 10:00:00 [p.py:1] rank 1 in world size 2 "
        "is assigned as DP rank 0, PP rank 1, TP rank 0, EP rank 0\n",
        "(EngineCore pid=8) INFO 11-03 10:00:00 [core.py:1] init engine (profile, warmup) took 21.55 seconds\n",
        "(APIServer pid=1) DEBUG 11-03 10:00:00 [u.py:1] Waiting for 1 local, 0 remote core engine proc(s) to start.\n",
        "INFO 11-03 10:00:00 llm_engine.py:247] Initializing an LLM engine (v0.6.3) with config: model='org/model'\n",
        "(EngineCore pid=8) INFO 11-03 10:00:00 [w.py:1] Loading weights from /root/model-00001.safetensors\n",
        "(Worker_TP1 pid=43) DEBUG 11-03 10:00:00 [cuda_graph.py:1] Capturing a cudagraph on (PIECEWISE,…)\n",
    ],
)
def test_a_part_of_a_start_is_unfinished(line: str) -> None:
    """Without vLLM's first line, as people paste it, and of a rank on another host."""
    assert explained(line).result == "unfinished"
    assert explained(line + "NCCL INFO 2 clients joined\n").result == "unfinished"
    assert explained(line + READY).result == "healthy"
    assert explained(line, READY).result == "healthy"
    # A program that is done has left.
    assert explained(line + LEAVES).result == "nothing"
    assert explained("gpu1:1:2 [0] NCCL INFO comm 0x1 rank 0 nranks 2 - Init COMPLETE\n").result == "nothing"


# fault: kernel/explain/progress.py: "finish build [", → "finish building [",
# fault: kernel/explain/progress.py: "Compiling a graph for", → "Compile a graph for",
@pytest.mark.parametrize(
    "done",
    ["[aiter] finish build [module_moe], cost 44.9s", "Compiling a graph for compile range (1, 2048) takes 325.75 s"],
)
def test_ranks_that_compile_are_not_stuck(done: str) -> None:
    built = f"(Worker_TP0 pid=9) {done}\n"
    assert explained(LOADS + WAITS + built).result == "unfinished"
    assert named(LOADS + built + WAITS) == ("symptom", "rank-stuck")


# fault: kernel/explain/diagnosis.py: in hit.known.explains and _is_near(hit, first)] → in hit.known.explains]
# fault: kernel/explain/diagnosis.py: or failed - noted <= REASON → or failed - noted <= 0
def test_what_ranks_worked_with_for_hours_is_not_why_they_fail() -> None:
    """An adapter was reset, the ranks went on, and in the evening another rank is stuck."""
    lost = FATAL.format("local catastrophic error")
    found = explained(lost + WATCHDOG.format("09:11:00.1"))
    assert found.cause and found.cause.failure.slug == "hca-port-down"
    assert named(lost + WATCHDOG.format("12:11:00.1")) == ("symptom", "collective-timeout")


# fault: kernel/explain/failures.toml: of which [1-9]\d{1,3}\. → of which [1-9]\d{0,3}\.
def test_a_driver_that_refuses_little_of_much_memory_is_not_a_full_gpu() -> None:
    words = "torch.OutOfMemoryError: XPU out of memory. Tried to allocate {0}. GPU 0 has a total capacity of 31.89 GiB "
    of = words + "of which {1} is free. Of the allocated memory 0 bytes is allocated by PyTorch\n"
    assert named(of.format("2.00 MiB", "31.82 GiB")) == ("symptom", "gpu-lost-or-kernel")
    for asked, free in (("2.00 MiB", "1.25 MiB"), ("512.00 MiB", "1.20 GiB"), ("20.00 GiB", "11.20 GiB")):
        assert named(of.format(asked, free)) == ("explained", "gpu-memory-full"), (asked, free)


# fault: kernel/explain/diagnosis.py: return next((one for one in own if _is_above( → return next((one for one in others if not _is_above(
# fault: kernel/explain/diagnosis.py: (one.source, one.host) == (other.source, other.host) and one.line < other.line → True
# fault: kernel/explain/diagnosis.py: not first.failure.follows or any(hit.known.kind is SignKind.DECISIVE → not first.failure.follows or any(hit.known.kind is SignKind.CAUSE
def test_a_rank_that_died_had_written_why() -> None:
    """A kernel wrote to where it may not, without a level or a time; that the process died follows from it."""
    wrote = "Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:455 'an illegal memory access was encountered'\n"
    assert named(LOADS + wrote + DIED) == ("symptom", "gpu-lost-or-kernel")
    assert named(LOADS + DIED + wrote) == ("symptom", "rank-killed")
    inspected = '{"Status":"exited","OOMKilled":false,"ExitCode":137}\n'
    assert named(LOADS + wrote + DIED + inspected) == ("symptom", "rank-killed")


@pytest.mark.parametrize(
    ("line", "slug"),
    [
        (
            "[rank6]:[W1103 10:04:00.1 socket.cpp:1] [c10d] waitForInput: socket SocketImpl(fd=9, "
            "addr=[10.0.0.1]:38930, remote=[10.0.0.1]:47904) timed out after 1800000ms",
            "collective-timeout",
        ),
        (
            "[PID: 9] 2026-11-03-10:04:00 Get_Socket_Timeout(EI0006): Getting socket times out. Reason: 1.",
            "peer-unanswered",
        ),
        ("(APIServer pid=7) ERROR 11-03 10:04:00 [async_llm.py:1] AsyncLLM output_handler failed.", "engine-died"),
        ("Cluster is NOT ready.", "placement-impossible"),
    ],
)
def test_what_ranks_hosts_and_engines_write_last(line: str, slug: str) -> None:
    assert named(line + "\n") == ("symptom", slug)


# fault: kernel/explain/failures.toml: needle = "luster is NOT ready" → needle = "luster is NOT yet ready"
def test_hosts_that_join_one_after_another_are_harmless() -> None:
    found = explained("Ray cluster status: 1/2 nodes alive.\nCluster is NOT ready.\n" + LOADS)
    assert (found.result, [one.count for one in found.harmless]) == ("unfinished", [1])


# fault: kernel/explain/progress.py: b"est. speed input: ", → b"est. speed output: ",
# fault: kernel/explain/progress.py: speed input: (?!0\.00 )\d → speed input: \d
def test_a_program_without_a_server_answers_by_its_bar() -> None:
    """What was missing before its cell installed it is not why a later cell fails."""
    bar = (
        "Processed prompts:  1%|  | {0}/2005 [00:08<16:02, 2.07it/s, est. speed input: {1} toks/s, output: 6 toks/s]\n"
    )
    missing = "Pre-installed vLLM: FAIL (No module named 'vllm')\n"
    assert named(missing + bar.format(0, "0.00")) == ("explained", "program-missing")
    found = explained(missing + bar.format(15, "366.12") + "Traceback (most recent call last):\nKeyError: 'answer'\n")
    assert found.raised and (found.result, found.raised.line.text) == ("exception", "KeyError: 'answer'")


# fault: kernel/explain/failures.toml: needle = "] ras/" → needle = "] rasp/"
def test_ranks_work_without_what_answers_of_their_state() -> None:
    """Two programs on one host want the same port for it."""
    taken = "gpu1:5:6 [0] {0}:160 NCCL WARN Call to bind failed: Address already in use\n"
    assert named(LOADS + taken.format("ras/client_support.cc")) == ("unfinished", "")
    assert named(LOADS + taken.format("misc/socket.cc")) == ("explained", "port-taken")
