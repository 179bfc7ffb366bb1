"""Where no failure of the catalogue matches, the exception that ended a process is shown, and no exit code is 0."""

from __future__ import annotations

from functools import cache

import pytest

from tests.support.corpus import CORPUS, FOLDER, Case, judged
from tests.support.depth import FULL
from tests.support.logs import explained
from vllm_cluster.features.explain.verb import EXIT_CODES
from vllm_cluster.kernel.explain.error_lines import ErrorLines
from vllm_cluster.kernel.explain.frame import Frame
from vllm_cluster.kernel.shell_line import Pasted
from vllm_cluster.serving.explain.render import show_explained

PACKAGES = "/usr/local/lib/python3.12/dist-packages"
QUIET = ("healthy", "healed", "nothing")
PARTS = sorted({case.part for case in CORPUS})


def traceback(who: str, minute: int, *lines: str) -> str:
    """The lines of a traceback as vLLM's logger writes them."""
    prefix = f"({who}) ERROR 11-03 10:{minute:02}:00 [core.py:1]"
    return "".join(f"{prefix} {line}\n" for line in ("Traceback (most recent call last):", *lines))


def frame(path: str, line: int, function: str) -> str:
    return f'  File "{PACKAGES}/{path}", line {line}, in {function}'


FROB = traceback("Worker_TP1 pid=7", 1, frame("vllm/frob.py", 12, "load"), "    raise Frob()", "FrobError: no frob")
LATER = traceback("EngineCore pid=3", 2, frame("vllm/engine.py", 90, "start"), "BlubError: no blub")


# fault: kernel/explain/frame.py: found and parsed.who == who → found
# fault: kernel/explain/diagnosis.py: next((one for one in seen.raised if → next((one for one in seen.raised[::-1] if
def test_the_first_rank_that_failed_is_shown_with_the_place() -> None:
    # The number of the first is the beginning of this one's.
    beside = f"(Worker_TP0 pid=71) ERROR 11-03 10:01:00 [core.py:1] {frame('torch/nn.py', 1, 'call')}\n"
    lines = FROB.splitlines(keepends=True)
    found = explained("".join([*lines[:2], beside, *lines[2:], LATER]))
    assert found.result == "exception" and found.raised
    assert (found.raised.line.text, found.raised.line.process) == ("FrobError: no frob", "Worker_TP1 pid=7")
    assert found.raised.frame == Frame("vllm/frob.py", 12, "load")
    # The earlier one, also in a log that is read later.
    found = explained(LATER, FROB)
    assert found.raised and found.raised.line.text == "FrobError: no frob"


OF_PYTHON = '  File "/usr/lib/python3.12/json/decoder.py", line 353, in raw_decode'
HALF = "json.decoder.JSONDecodeError: Expecting ',' delimiter: line 7 column 8 (char 99)"


# fault: kernel/explain/frame.py: if not _PYTHON.match(found[1]): → if True:
def test_pythons_own_modules_are_not_the_place() -> None:
    """They raise for whoever has called them, which is what shows what was wrong."""
    found = explained(traceback("Worker_TP1 pid=7", 1, frame("vllm/frob.py", 12, "load"), OF_PYTHON, HALF))
    assert found.raised and found.raised.frame == Frame("vllm/frob.py", 12, "load")
    found = explained(traceback("Worker_TP1 pid=7", 1, OF_PYTHON, HALF))
    assert found.raised and found.raised.frame == Frame("/usr/lib/python3.12/json/decoder.py", 353, "raw_decode")


# fault: kernel/explain/signs.py: if half and reads_a_model( → if half and not reads_a_model(
# fault: kernel/explain/frame.py: return bool(_UNREADABLE.match(words)) → return bool(words)
@pytest.mark.parametrize(
    ("file", "words", "slug"),
    [
        ("transformers/tokenization_utils_base.py", HALF, "file-incomplete"),
        ("vllm/transformers_utils/config.py", "UnicodeDecodeError: 'utf-8' codec can't decode", "file-incomplete"),
        ("transformers/tokenization_utils_base.py", "FrobError: no frob", None),
        # A proxy's page in place of a hub's answer has no place in the model's folder.
        ("huggingface_hub/utils/_http.py", HALF, None),
    ],
)
def test_a_file_of_a_model_that_ends_too_early(file: str, words: str, slug: str | None) -> None:
    found = explained(traceback("APIServer pid=7", 1, frame(file, 12, "load"), OF_PYTHON, words))
    assert (found.cause.failure.slug if found.cause else None) == slug


# fault: kernel/explain/stream.py: if before is not None: → if False:
def test_of_chained_exceptions_the_last_is_shown() -> None:
    chain = (
        *("KeyError: 'frob'", "", "During handling of the above exception, another exception occurred:", ""),
        *("Traceback (most recent call last):", frame("vllm/outer.py", 5, "run"), "FrobError: no frob"),
    )
    found = explained(traceback("Worker_TP1 pid=7", 1, frame("vllm/inner.py", 4, "get"), *chain))
    assert found.raised
    assert (found.raised.line.text, found.raised.frame) == ("FrobError: no frob", Frame("vllm/outer.py", 5, "run"))


# fault: kernel/explain/diagnosis.py: if not any(text in one.text for text in shown) and → if
def test_it_is_shown_once_whoever_repeats_it(capsys: pytest.CaptureFixture[str]) -> None:
    ranks = "".join(FROB.replace("TP1", f"TP{number}") for number in range(40))
    again = traceback("EngineCore pid=3", 2, "RuntimeError: Worker failed with FrobError: no frob")
    show_explained(explained(ranks + again), Pasted, color="never")
    shown = capsys.readouterr().out
    assert shown.count("no frob") == 1
    assert "raised:  vllm/frob.py:12 in load\n" in shown


def test_it_is_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    lines = "".join(f"FrobError: {number} {'x' * 5000}\n" for number in range(1000))
    show_explained(explained(lines), Pasted, color="never")
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) < 15 and max(map(len, shown)) < 700


def test_a_message_is_shown_with_the_lines_that_continue_it() -> None:
    error = ("ValidationError: 1 validation error for FrobConfig", "  Frob missing [type=missing]")
    found = explained(traceback("APIServer pid=1", 1, frame("vllm/args.py", 8, "create"), *error, "next"))
    assert found.raised and found.raised.more == ("Frob missing [type=missing]",)


# fault: kernel/explain/stream.py: self._raised, self._raised_words = [], set() → pass
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


# fault: kernel/explain/diagnosis.py: and (seen.quiet or seen.murmurs) → and ()
@pytest.mark.parametrize(
    "line",
    [
        "frob.cu:7: frob: block: [0,0,0], thread: [1,0,0] Assertion `frob > 0` failed.",
        "frob.service: Failed with result 'exit-code'.",
        "vLLM failed to start.  Retry with --enable-serving-output",
    ],
)
def test_a_failure_without_a_level_gets_no_exit_code_0(line: str) -> None:
    found = explained(f"{line}\n")
    assert found.result == "unknown" and found.error_lines


# fault: kernel/explain/diagnosis.py: kind in ("nothing", "healthy", "healed") and → kind == "nothing" and
def test_a_failure_after_an_answer_gets_no_exit_code_0() -> None:
    answer = '2026-11-03T10:03:00Z INFO:     127.0.0.1:4 - "POST /v1/completions HTTP/1.1" 200 OK\n'
    assert explained(answer).result == "healthy"
    assert explained(answer + "2026-11-03T10:04:00Z frobd[7]: segfault at 10 ip 00007f0\n").result == "unknown"


# fault: kernel/explain/progress.py: "died", "lost", → "died",
# fault: kernel/explain/progress.py: (?:failed|invalid|lost|aborted|rejected|killed) → (?:invalid|lost|aborted|rejected|killed)
def test_any_word_of_failure_gets_no_exit_code_0_and_a_calm_one_does() -> None:
    found = explained("starting\nthe gateway lost its upstream\n")
    assert (found.result, [place.text for place in found.error_lines]) == ("unknown", ["the gateway lost its upstream"])
    assert explained("starting\nFailed requests:                         10\n").result == "unknown"
    for line in (
        "packets lost: 0",
        "Failed requests:                         0",
        "Invalid responses: 0.000",
        "[INFO] a probe failed, retrying",
        "[W1118 10:00:00.5 socket.cpp:1] failed",
        "no errors",
    ):
        assert explained(f"starting\n{line}\n").result == "nothing", line


# fault: kernel/explain/frame.py: found = frames and → found = False and
def test_the_last_line_of_a_traceback_is_an_exception_of_any_class() -> None:
    found = explained(
        traceback(
            "EngineCore pid=3",
            1,
            frame("filelock/_api.py", 7, "acquire"),
            "    raise Timeout(x)",
            "filelock.Timeout: x",
        )
    )
    assert found.raised and (found.raised.line.text, found.raised.line.line) == ("filelock.Timeout: x", 4)
    assert found.raised.frame == Frame("filelock/_api.py", 7, "acquire")


# fault: kernel/explain/diagnosis.py: return first.failure.follows and → return False and
# fault: kernel/explain/diagnosis.py: (not is_echo(line.text) and by_time( → (by_time(
def test_what_another_process_raised_before_is_nearer_than_what_its_end_looks_like() -> None:
    died = "(APIServer pid=1) ERROR 11-03 10:05:00 [x.py:1] Worker proc VllmWorker-1 died unexpectedly\n"
    found = explained(FROB + died)
    assert found.result == "exception" and found.raised and found.raised.line.text == "FrobError: no frob"
    # Not what it raised later, nor what follows from the end of a process as well.
    first = died.replace("10:05", "10:00")
    echo = traceback("APIServer pid=1", 1, frame("asyncio/base.py", 1, "run"), "asyncio.exceptions.CancelledError")
    for log in (FROB + first, echo + died):
        found = explained(log)
        assert found.symptom and found.symptom.failure.slug == "rank-killed", log


# fault: kernel/explain/failures.toml: what\(\)): {1,4}Resource → what\(\)):Resource
# fault: kernel/explain/failures.toml: unavailable$|ThreadPoolBuildError → unavailable$
def test_a_thread_that_cannot_begin_is_a_limit() -> None:
    busy = "Resource temporarily unavailable"
    for line in (
        f"RuntimeError: {busy}",
        f"  what():  {busy}",
        f'pool.Panic: ThreadPoolBuildError {{ message: "{busy}" }}',
    ):
        found = explained(line + "\n")
        assert found.cause and found.cause.failure.slug == "limit-too-low", line
    assert explained(f"zmq.error.Again: {busy}\n").cause is None


ENDS = "(EngineCore pid=3) INFO 11-03 10:01:00 [x.py:1] [shutdown] Executor: waiting for worker exit count=2\n"
GONE = "(EngineCore pid=3) ERROR 11-03 10:01:05 [x.py:1] Worker proc VllmWorker-0 died unexpectedly (exit code: -9)\n"


# fault: kernel/explain/diagnosis.py: (own and line.process == place.process) or → False or
# fault: kernel/explain/diagnosis.py: (own and line.process == place.process) or → line.process == place.process or
# fault: kernel/explain/diagnosis.py: (own and line.process == place.process) or → own or
# fault: kernel/explain/stream.py: seen.endings.clear() → pass
def test_what_a_process_ended_itself_did_not_die() -> None:
    """vLLM's executor ends its workers for what it raised, and that is logged when they are gone."""
    found = explained(ENDS + GONE + LATER)
    assert found.raised and (found.result, found.raised.line.text) == ("exception", "BlubError: no blub")
    # Of any class, a time-out as well.
    found = explained(ENDS + GONE + LATER.replace("BlubError: no blub", "TimeoutError: no answer"))
    assert found.raised and found.raised.line.text == "TimeoutError: no answer"
    other = LATER.replace("EngineCore pid=3", "EngineCore pid=4")
    start = "(APIServer pid=1) INFO 11-03 10:01:01 [x.py:1] vLLM API server version 0.27.0\n"
    # A worker that died first is why its executor ends the others; another process and an earlier run show nothing.
    for log in (GONE + ENDS + LATER, ENDS + GONE + other, ENDS + "\n" * 50 + start + GONE + LATER):
        found = explained(log)
        assert found.symptom and found.symptom.failure.slug == "rank-killed", log


# fault: kernel/explain/frame.py: vllm/(?:config/ → vllm/(?:confog/
def test_what_the_checks_of_settings_raise_is_a_refusal_in_any_words() -> None:
    raised = ("    raise ValueError(", "ValueError: frob must be blub")
    found = explained(traceback("APIServer pid=1", 1, frame("vllm/config/parallel.py", 8, "check"), *raised))
    assert found.cause and found.cause.failure.slug == "combination-unsupported"
    assert explained(traceback("APIServer pid=1", 1, frame("vllm/frob.py", 8, "check"), *raised)).result == "exception"
    # Of a copy of its source code, too, that is installed as it lies there.
    source = '  File "/home/me/src/vllm/vllm/config/parallel.py", line 8, in check'
    assert explained(traceback("APIServer pid=1", 1, source, *raised)).cause


# fault: kernel/explain/frame.py: _NAMES_A_FLAG.match(words) and _OF_VLLM.search(frame.file)) → False)
# fault: kernel/explain/frame.py: _NAMES_A_FLAG.match(words) and _OF_VLLM.search(frame.file)) → _NAMES_A_FLAG.match(words))
def test_what_vllm_raises_with_the_flag_to_change_is_a_refusal_wherever_it_is_raised() -> None:
    words = "RuntimeError: no place is known for the frob. Pass --frob-place, or leave --with-frob away."
    for of, slug in (("vllm/utils/frob.py", "combination-unsupported"), ("frobs/place.py", "")):
        found = explained(traceback("APIServer pid=1", 1, frame(of, 8, "place"), words))
        assert (found.cause.failure.slug if found.cause else "") == slug
    unnamed = traceback(
        "APIServer pid=1", 1, frame("vllm/utils/frob.py", 8, "place"), words.split(" Pass", maxsplit=1)[0]
    )
    assert explained(unnamed).result == "exception"


@cache
def failed() -> dict[Case, bytes]:
    """The logs of failures; between two of them are those of other hosts, or of other days."""
    cases = [case for case in CORPUS if judged(case)[1].result in ("explained", *EXIT_CODES)]
    return {case: (FOLDER / f"{case.log}.log").read_bytes() for case in cases}


@pytest.mark.parametrize("part", PARTS)
def test_no_log_that_ends_with_an_error_gets_exit_code_0_without_a_cause(part: str) -> None:
    """Each log is cut behind each of its error lines; in CI behind the first two and the last: a quarter of 3,238."""
    logs = {case.log: text for case, text in failed().items() if case.part == part}
    assert logs
    for log, text in logs.items():
        is_error, lines = ErrorLines(), text.splitlines(keepends=True)
        cuts = [number for number, line in enumerate(lines, 1) if is_error(0, line.decode())]
        for number in cuts if FULL else {*cuts[:2], *cuts[-1:]}:
            assert explained(b"".join(lines[:number])).result not in QUIET, (log, number, lines[number - 1])


@pytest.mark.promise("P41")
@pytest.mark.parametrize("apart", [1, *(pytest.param(apart, marks=pytest.mark.deep) for apart in (7, 57))])
def test_two_logs_of_failures_in_one_file_get_no_exit_code_0_without_a_cause(apart: int) -> None:
    logs = [(case.log, text) for case, text in failed().items()]
    results = {
        (log, other): explained(text + b"\n" + its).result
        for (log, text), (other, its) in zip(logs, [*logs[apart:], *logs[:apart]], strict=True)
    }
    assert not [names for names, result in results.items() if result in QUIET]
    # An answer of one log makes of the other a start without an end; 22 of 1053 such pairs are one.
    unfinished = [names for names, result in results.items() if result == "unfinished"]
    assert len(unfinished) <= len(results) * 0.04, unfinished
