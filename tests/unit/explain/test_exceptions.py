"""Where no failure of the catalogue matches, the exception that ended a process is shown, and no exit code is 0."""

from __future__ import annotations

import pytest

from tests.support.corpus import CORPUS, FOLDER, judged
from tests.support.logs import explained
from vllm_cluster.features.explain.render import show_explained
from vllm_cluster.features.explain.verb import EXIT_CODES
from vllm_cluster.kernel.explain.error_lines import ErrorLines
from vllm_cluster.kernel.explain.frame import Frame

PACKAGES = "/usr/local/lib/python3.12/dist-packages"
QUIET = ("healthy", "healed", "nothing")
# Between logs: of other hosts, or of other days.
FAILED = [case for case in CORPUS if judged(case)[1].result in ("explained", *EXIT_CODES)]
TEXTS = {case.log: (FOLDER / f"{case.log}.log").read_bytes() for case in FAILED}


def traceback(who: str, minute: int, *lines: str) -> str:
    """The lines of a traceback as vLLM's logger writes them."""
    prefix = f"({who}) ERROR 11-03 10:{minute:02}:00 [core.py:1]"
    return "".join(f"{prefix} {line}\n" for line in ("Traceback (most recent call last):", *lines))


def frame(path: str, line: int, function: str) -> str:
    return f'  File "{PACKAGES}/{path}", line {line}, in {function}'


FROB = traceback("Worker_TP1 pid=7", 1, frame("vllm/frob.py", 12, "load"), "    raise Frob()", "FrobError: no frob")
LATER = traceback("EngineCore pid=3", 2, frame("vllm/engine.py", 90, "start"), "BlubError: no blub")


# fault: kernel/explain/frame.py: found and parsed.who == who → found
# fault: kernel/explain/diagnosis.py: seen.raised[0] if → seen.raised[-1] if
def test_the_first_rank_that_failed_is_shown_with_the_place() -> None:
    beside = f"(Worker_TP0 pid=6) ERROR 11-03 10:01:00 [core.py:1] {frame('torch/nn.py', 1, 'call')}\n"
    lines = FROB.splitlines(keepends=True)
    found = explained("".join([*lines[:2], beside, *lines[2:], LATER]))
    assert found.result == "exception" and found.raised
    assert (found.raised.line.text, found.raised.line.process) == ("FrobError: no frob", "Worker_TP1 pid=7")
    assert found.raised.frame == Frame("vllm/frob.py", 12, "load")
    # The earlier one, also in a log that is read later.
    found = explained(LATER, FROB)
    assert found.raised and found.raised.line.text == "FrobError: no frob"


# fault: kernel/explain/stream.py: raised[before] = one → pass
def test_of_chained_exceptions_the_last_is_shown() -> None:
    chain = (
        *("KeyError: 'frob'", "", "During handling of the above exception, another exception occurred:", ""),
        *("Traceback (most recent call last):", frame("vllm/outer.py", 5, "run"), "FrobError: no frob"),
    )
    found = explained(traceback("Worker_TP1 pid=7", 1, frame("vllm/inner.py", 4, "get"), *chain))
    assert found.raised
    assert (found.raised.line.text, found.raised.frame) == ("FrobError: no frob", Frame("vllm/outer.py", 5, "run"))


# fault: kernel/explain/diagnosis.py: if raised.line.text not in place.text and → if
def test_it_is_shown_once_whoever_repeats_it(capsys: pytest.CaptureFixture[str]) -> None:
    ranks = "".join(FROB.replace("TP1", f"TP{number}") for number in range(40))
    again = traceback("EngineCore pid=3", 2, "RuntimeError: Worker failed with FrobError: no frob")
    show_explained(explained(ranks + again), color="never")
    shown = capsys.readouterr().out
    assert shown.count("no frob") == 1
    assert "raised:  vllm/frob.py:12 in load\n" in shown


def test_it_is_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    lines = "".join(f"FrobError: {number} {'x' * 5000}\n" for number in range(1000))
    show_explained(explained(lines), color="never")
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) < 15 and max(map(len, shown)) < 700


def test_a_message_is_shown_with_the_lines_that_continue_it() -> None:
    error = ("ValidationError: 1 validation error for FrobConfig", "  Value error, no frob [type=value_error]")
    found = explained(traceback("APIServer pid=1", 1, frame("vllm/args.py", 8, "create"), *error, "next"))
    assert found.raised and found.raised.more == ("Value error, no frob [type=value_error]",)


# fault: kernel/explain/stream.py: self.seen.raised.clear() → pass
def test_what_failed_before_an_answer_is_not_what_ended_the_server() -> None:
    answer = 'INFO:     127.0.0.1:4 - "POST /v1/completions HTTP/1.1" 200 OK\n'
    # Requests fail in many ways, before and after.
    many = ["".join(traceback("APIServer pid=1", at, f"FrobError: {at} {n}") for n in range(40)) for at in (1, 3)]
    found = explained(many[0] + answer + LATER + many[1])
    assert found.raised and found.raised.line.text == "BlubError: no blub"
    assert explained(FROB + LATER + answer).result == "healthy"


@pytest.mark.promise("P41")
# fault: kernel/explain/frame.py: (?:errors|exc|exceptions) → (?:errors)
# fault: kernel/explain/progress.py: (?:errors|exc|exceptions) → (?:errors)
def test_an_exception_is_one_by_its_module_too() -> None:
    found = explained("torch._dynamo.exc.BackendCompilerFailed: backend='frob' raised: no frob\n")
    assert found.raised and found.raised.line.text.startswith("torch._dynamo.exc.")


# fault: kernel/explain/progress.py: "Assertion `", → "~~~",
# fault: kernel/explain/progress.py: "CrashLoopBackOff") → "~~~")
@pytest.mark.parametrize(
    "line",
    [
        "frob.cu:7: frob: block: [0,0,0], thread: [1,0,0] Assertion `frob > 0` failed.",
        "pod/frob-5c5c865cc8-h46l2  0/1  CrashLoopBackOff  4 (73s ago)  2m49s",
        "vLLM failed to start.  Retry with --enable-serving-output",
    ],
)
def test_a_failure_without_a_level_gets_no_exit_code_0(line: str) -> None:
    found = explained(f"{line}\n")
    assert found.result == "unknown" and found.error_lines


@pytest.mark.parametrize("case", FAILED, ids=lambda case: case.log)
def test_no_log_that_ends_with_an_error_gets_exit_code_0_without_a_cause(case: object) -> None:
    """Each log is cut behind each of its error lines."""
    log = case.log  # type: ignore[attr-defined]
    is_error, lines = ErrorLines(), TEXTS[log].splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        if is_error(0, line.decode()):
            assert explained(b"".join(lines[:number])).result not in QUIET, (number, line)


# fault: kernel/explain/scan.py: stream.foreign(dated) → stream.foreign(parsed)
@pytest.mark.promise("P41")
@pytest.mark.parametrize("apart", [1, 7, 57])
def test_two_logs_of_failures_in_one_file_get_no_exit_code_0_without_a_cause(apart: int) -> None:
    for case, other in zip(FAILED, [*FAILED[apart:], *FAILED[:apart]], strict=True):
        found = explained(TEXTS[case.log] + b"\n" + TEXTS[other.log])
        assert found.result not in QUIET, (case.log, other.log)
