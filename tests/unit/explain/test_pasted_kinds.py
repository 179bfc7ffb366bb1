"""What strangers' logs hold that is not a failure: refused requests, wanted ends, detours; how consoles print."""

from __future__ import annotations

import pytest

from tests.support.logs import explained
from vllm_cluster.kernel.explain.log_line import parse_line
from vllm_cluster.kernel.explain.prefix import peel

READY = "(APIServer pid=7) INFO:     Application startup complete.\n"
CANCELLED = "slurmstepd: error: *** {0} ON node7 CANCELLED AT 2026-11-03T10:00:00 ***\n"
FROB = "RuntimeError: no frob\n"
FULL = "torch.OutOfMemoryError: CUDA out of memory.\n"


# fault: kernel/explain/progress.py: words.removeprefix("ERROR:").lstrip().startswith(ANNOUNCED) → words.startswith(ANNOUNCED)
# fault: kernel/explain/progress.py: if words.startswith('File "') or not _FAILED → if not _FAILED
# fault: kernel/explain/stream.py: if harmless and is_exception(parsed.words): → if harmless and not is_exception(parsed.words):
@pytest.mark.parametrize(
    "refusal",
    [
        "vllm.exceptions.VLLMValidationError: 9 tokens are too many",
        "vllm.exceptions.VLLMNotFoundError: no such model",
        "ValueError: This model's maximum context length is 9 tokens. However, you asked for 10",
    ],
)
def test_a_server_that_refuses_a_request_is_healthy(refusal: str) -> None:
    """Uvicorn shows the traceback of each, and the server answers the next."""
    trace = f"""ERROR:    Exception in ASGI application
Traceback (most recent call last):
  File "/venv/starlette/middleware/errors.py", line 5, in __call__
    raise exc
{refusal}
"""
    text = READY + "".join(f"(APIServer pid=7) {line}\n" for line in trace.splitlines())
    assert explained(text).result == "healthy"
    # Another exception of a request is shown.
    assert explained(text.replace(refusal, FROB)).result == "exception"


# fault: kernel/explain/progress.py: or (alive and CANCELLED → or (CANCELLED
# fault: kernel/explain/weighing.py: return (signal.source, signal.line) == (place.source, place.line) or precedes( → return precedes(
def test_a_cancelled_job_was_asked_to_end() -> None:
    """Slurm gives no reason then; a step that ends with others, and what failed before, stay."""
    job = CANCELLED.format("JOB 5")
    assert explained(READY + job).result == "nothing"
    assert explained(READY + CANCELLED.format("STEP 5.0")).result == "symptom"
    assert explained(job).result == "symptom"
    found = explained(READY + FULL + job)
    assert found.cause and found.cause.failure.slug == "gpu-memory-full"
    limit = explained(READY + job.replace(" ***\n", " DUE TO TIME LIMIT ***\n"))
    assert limit.cause and limit.cause.failure.slug == "job-ended"


STEP = CANCELLED.format("STEP 5.0")
ABORTED = "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"
KILLED = "srun: error: node7: task 0: Killed\n"


# fault: kernel/explain/slurm_ends.py: return first if both else None → return first
# fault: kernel/explain/stream.py: (number, parsed))) and not self._fails(): → (number, parsed))):
# fault: kernel/explain/stream.py: any(hit.number > answered and not cancels(hit) → any(hit.number > answered
# fault: kernel/explain/weighing.py: return (signal.source, signal.line) == (place.source, place.line) or precedes( → return precedes(
def test_a_step_was_cancelled_by_hand_where_srun_reports_no_task_before() -> None:
    """In either order, and on several nodes; a step also ends when one of its tasks does."""
    for ended in (STEP + ABORTED, ABORTED + STEP, STEP + STEP.replace("node7", "node8") + ABORTED):
        found = explained(READY + ended + KILLED)
        assert (found.result, found.error_lines) == ("nothing", ()), ended
    exited = KILLED.replace("Killed", "Exited with exit code 1")
    for ended in (STEP + KILLED, exited + STEP + ABORTED + KILLED):
        assert explained(READY + ended).result == "symptom", ended
    # What is written after the end of a task that failed may be why.
    found = explained(READY + exited + STEP + ABORTED + "ncclRemoteError: the other end is gone\n")
    assert found.symptom and found.symptom.failure.slug == "peer-gone"
    found = explained(READY + FULL + ABORTED + STEP + KILLED)
    assert found.cause and found.cause.failure.slug == "gpu-memory-full"
    assert explained(READY + ABORTED).result == "unknown"
    # Until the server is ready it may not have come up for a reason.
    assert explained(STEP + ABORTED + KILLED).result == "symptom"


# fault: kernel/explain/stream.py: if self._dead: → if False:
# fault: kernel/explain/scan.py: if progress.READY in parsed.words: → if False:
def test_a_stream_that_breaks_does_not_count_as_an_answer() -> None:
    """It began with 200, which Uvicorn writes when it ends; a server that is ready again answers."""
    dead = READY + FROB + "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.\n"
    ended = '(APIServer pid=7) INFO:     10.0.0.9:5 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
    assert explained(dead + ended).result == "exception"
    assert explained(dead + READY + ended).result in ("healthy", "healed")


# fault: kernel/explain/signs.py: or (not parsed.loud and not trouble and progress.GIVES_WAY.search(parsed.words)): → or False:
def test_a_detour_that_vllm_takes_is_not_why_it_failed() -> None:
    detour = "(APIServer pid=7) WARNING 11-03 10:00:00 [x.py:1] {0}, falling back to the slow one.\n"
    missing = "Could not find nvcc", "FooForCausalLM has no vLLM implementation", "ImportError: libcudart.so.12"
    for words in missing:
        assert explained(detour.format(words) + FROB).result == "exception", words
        # Programs without levels begin such a line so.
        assert explained(f"[2026-06-22 17:51:04] Ignore import error of frob: {words}\n").result == "nothing", words


def test_a_folder_that_was_not_sharded_has_its_weights() -> None:
    line = "ValueError: Could not find checkpoint files '/m/model-rank-0-part-*', only pre-sharded checkpoints are"
    found = explained(f"{line} currently supported\n")
    assert found.cause and found.cause.failure.slug == "flag-unknown"


@pytest.mark.parametrize(
    ("line", "slug"),
    [
        ("start.sh: line 7: syntax error: unexpected end of file", ""),
        ("json.decoder.JSONDecodeError: unexpected end of file", "file-incomplete"),
        ("start.sh: line 7: 812 Killed                  vllm serve org/model", "rank-killed"),
        ("RuntimeError: Remote NIXL agent engine ID mismatch. Expected a, received b.", "kv-transfer-failed"),
        ("RuntimeError: Failed to decode NixlAgentMetadata. Error: boom", "kv-transfer-failed"),
        ("RuntimeError: NIXL compatibility hash mismatch. Local: a, remote: b", "flags-differ"),
        ("RuntimeError: NIXL is not available", "program-missing"),
        ("RuntimeError: Assertion error (csrc/jit/compiler.hpp:91): exit_code == 0", "kernel-build-failed"),
        ("RuntimeError: Assertion error (csrc/apis/../jit/kernel_runtime.hpp:45): runtime", "kernel-build-failed"),
        ("NVCC compilation failed: boom", "kernel-build-failed"),
        ("RuntimeError: FlashInfer requires GPUs with sm75 or higher", "kernel-build-failed"),
        ("RuntimeError: FlashInfer requires GPUs with sm90 or higher", "gpu-too-old"),
        ("Failed to get device capability: SM 12.x requires CUDA >= 12.9.", "kernel-build-failed"),
        ("CUDA error (/src/frob.cu:201): invalid configuration argument", "gpu-lost-or-kernel"),
        ("CUDA error (/src/frob.cu:201): out of memory", "gpu-memory-full"),
        ("/dist-packages/ray/core/src/ray/raylet/raylet(+0x23d997) [0x5d9927faa997]", "ray-process-aborted"),
        ("ValueError: FooForCausalLM has no vLLM implementation and no other", "architecture-unknown"),
    ],
)
def test_one_line_of_each_kind(line: str, slug: str) -> None:
    named = explained(f"{line}\n").named
    assert (named.failure.slug if named else "") == slug


# fault: kernel/explain/progress.py: r"|\bNCCL (?:INFO|TRACE)\b| → r"|
def test_what_nccl_tries_does_not_count() -> None:
    tried = "gpu1:7:7 [0] NCCL INFO dlvsym failed on frob: undefined symbol: frob\n"
    assert explained(tried).result == "nothing"
    assert explained(tried.replace("INFO", "WARN")).result == "unknown"


# fault: kernel/explain/log_line.py: .removesuffix("^M") → .removesuffix("^N")
@pytest.mark.parametrize("colour", ["\x1b{0}", "^[{0}", "{0}"])
def test_colours_come_off_however_they_were_pasted(colour: str) -> None:
    """`cat -v` writes the escape character with two others, and many a form drops it."""
    on, off = colour.format("[1;36m"), colour.format("[0;0m")
    line = f"{on}(EngineCore pid=3){off} ERROR 11-03 10:00:00 [core.py:1] {FULL.strip()}"
    parsed = parse_line(f"{line}^M\r\n".encode())
    assert (parsed.who, parsed.level, parsed.words) == ("EngineCore pid=3", "ERROR", FULL.strip())
    found = explained(f"{line}\n")
    assert found.cause and found.cause.failure.slug == "gpu-memory-full"
    killed = explained(f"{on}Killed{off}\n").named
    assert killed and killed.failure.slug == "rank-killed"
    assert parse_line(b"x[0] and [12]").words == "x[0] and [12]"


# fault: kernel/explain/prefix.py: (?:[A-Z]{2,5} )? →
@pytest.mark.parametrize("zone", ["Z", "+08:00", " +08:00", " +0800 CST", " UTC"])
def test_a_stamp_comes_off_with_its_zone(zone: str) -> None:
    assert peel(f"2026-11-03T10:00:00.123456789{zone} boom").text == "boom"
