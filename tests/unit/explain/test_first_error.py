"""Which of several errors of one failure comes first, and what is shown of an exception without words."""

from __future__ import annotations

import pytest

from tests.support.logs import explained

TRACE = 'Traceback (most recent call last):\n  File "/a/arguments.py", line 282, in check\n'
ILLEGAL = "CUDA error: an illegal memory access was encountered\n"
WATCHDOG = f"[rank0]:[E1103 10:00:09.9 ProcessGroupNCCL.cpp:1] [Rank 0] Process group watchdog ended: {ILLEGAL}"
GONE = "[rank2]:[W1103 10:00:09.3 TCPStore.cpp:1] [c10d] recvValue failed on it: failed to recv, got 0 bytes\n"
REPORTS = "ERROR 11-03 10:00:01 [w.py:1] RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO)\n"
NVML = "gpu1:1:1 [0] misc/nvmlwrap.cc:187 NCCL WARN nvmlDeviceGetHandleByPciBusId() failed: Not Found\n"
SYSTEM = "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)\n"
ENDS = "(EngineCore pid=6) INFO 11-03 10:00:00 [core.py:1] Shutdown initiated (timeout=0)\n"
NEVER = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n"
WORKED = "INFO 11-03 09:59:50 [loggers.py:1] Engine 000: Avg generation throughput: 9.0 tokens/s, Running: 1 reqs\n"


def named(text: str) -> tuple[str, str, int]:
    found = explained(text, together=False)
    return (
        found.result,
        found.named.failure.slug if found.named else "",
        found.named.places[0].line if found.named else 0,
    )


# fault: kernel/explain/diagnosis.py: one.time <= other.time + SLACK → one.time <= other.time
def test_a_rank_that_failed_comes_before_those_that_lost_it_in_the_same_second() -> None:
    """A watchdog reports later than sockets do; a minute later it would be another failure."""
    assert named(WATCHDOG + GONE) == ("symptom", "gpu-lost-or-kernel", 1)
    assert named(WATCHDOG.replace("10:00", "10:01") + GONE) == ("symptom", "peer-gone", 2)


# fault: kernel/explain/failures.toml: '(?i)nccl', unless = ["kernel-fault"], → '(?i)nccl', unless = ["frob"],
def test_what_a_kernel_did_comes_before_nccl_which_reports_it() -> None:
    assert named(TRACE + REPORTS + WATCHDOG) == ("symptom", "gpu-lost-or-kernel", 3)
    assert named(TRACE + REPORTS) == ("symptom", "nccl-error", 3)


# fault: kernel/explain/failures.toml: 'NCCL WARN nvml\w+\(\) failed' → 'NCCL WARN nvmlInit\w+\(\) failed'
def test_a_failed_call_of_nvml_comes_before_the_error_of_nccl() -> None:
    assert named(NVML + TRACE + SYSTEM) == ("symptom", "nccl-error", 1)


# fault: kernel/explain/stream.py: (self.seen.alive or progress.IN_ORDER in asked.text): → True:
# fault: kernel/explain/stream.py: and progress.NOT_STARTED in parsed.words → and False
def test_an_engine_that_never_started_is_not_the_one_that_ended_in_order() -> None:
    """A script without a guard runs twice: its child works to the end, and the parent's engine never starts."""
    assert named(WORKED + ENDS + TRACE + NEVER) == ("symptom", "engine-died", 5)
    assert named(WORKED + ENDS) == ("nothing", "", 0)
    asked = "(EngineCore pid=6) INFO 11-03 10:00:00 [core.py:1] EngineCore: trigger received signal=SIGTERM\n"
    assert named(asked + TRACE + NEVER) == ("nothing", "", 0)


# fault: kernel/explain/stream.py: more = (*nearby.statement(one.parsed, self._names), *more) → pass
# fault: kernel/explain/frame.py: (parse_line(raw, names=names) for raw in reversed(above)) if _is_bare(last.words) else () → map(parse_line, above)
# fault: kernel/explain/frame.py: not code or code.startswith(("raise", 'File "')) → not code
@pytest.mark.parametrize(
    ("code", "last", "shown"),
    [
        ("    assert not args.bf16\n", "AssertionError\n", ("assert not args.bf16",)),
        ("    assert not args.bf16\n           ^^^^^^^^^\n", "AssertionError\n", ("assert not args.bf16",)),
        ("    raise NotImplementedError\n", "NotImplementedError\n", ()),
        ("", "AssertionError\n", ()),
        ("    assert not args.bf16\n", "AssertionError: bf16 is given\n", ()),
    ],
)
def test_an_exception_without_words_shows_what_raised_it(code: str, last: str, shown: tuple[str, ...]) -> None:
    found = explained(TRACE + code + last)
    assert found.raised and (found.result, found.raised.more) == ("exception", shown)


# fault: kernel/explain/frame.py: + MAX_ABOVE].split(b"\n") if _is_bare(above.words) else [] → + MAX_ABOVE].split(b"\n") if False else []
def test_an_error_that_a_message_lists_is_why() -> None:
    why = "ImportError: /usr/ops.abi3.so: undefined symbol: _ZN3c10"
    listed = f"[frob] CRITICAL: Could not load it!\n\nDetails of previous attempts:\n- {why}\n- OSError: no\n"
    assert named(TRACE + "    raise ImportError(text)\nImportError: \n" + listed) == (
        "explained",
        "packages-mismatch",
        8,
    )
    # Another exception below has a traceback of its own, and what is only ignored ends nothing.
    assert named(TRACE + f"FrobError\n{TRACE}BlubError: no\n- {why}\n")[0] == "exception"
    assert named(f"Ignore import error when loading frob:\n{listed}")[0] != "explained"


CLOSED = """Task exception was never retrieved
future: <Task finished name='Task-2' coro=<MQLLMEngineClient.run_output_handler_loop() done>
Traceback (most recent call last):
  File "/usr/lib/python3.12/site-packages/zmq/_future.py", line 400, in poll
    raise _zmq.ZMQError(_zmq.ENOTSUP)
zmq.error.ZMQError: Operation not supported
"""
TOLD = "RuntimeError: Engine process failed to start. See stack trace for the root cause.\n"
FAILED = """Traceback (most recent call last):
  File "/usr/lib/python3.12/site-packages/vllm/engine/front.py", line 30, in build
    raise ValueError(
ValueError: the frob is out
"""


# fault: kernel/explain/frame.py: Operation not supported| → Operation not permitted|
@pytest.mark.parametrize("text", [CLOSED + FAILED, FAILED + CLOSED, TOLD + FAILED])
def test_who_polls_a_socket_of_its_own_that_is_closed_is_not_why(text: str) -> None:
    """An API server closes it as it gives up, and a task of it that nothing waits for raises this first."""
    found = explained(text)
    assert found.raised and found.raised.line.text == "ValueError: the frob is out"


# fault: kernel/explain/diagnosis.py: if all(is_echo(line.text) for line in seen.strange) else [] → if not seen.strange else []
def test_an_engine_of_older_versions_that_did_not_start_is_a_symptom() -> None:
    assert named(CLOSED + TOLD) == ("symptom", "engine-died", 7)
