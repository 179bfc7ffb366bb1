"""A log that holds an error in each line is read at a bearable cost: by what is done to a line, not by a clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.logs import explained
from vllm_cluster.kernel.explain import progress
from vllm_cluster.kernel.explain.catalogue import NEEDLES, WORKS, kind_of
from vllm_cluster.kernel.explain.log_line import parse_line
from vllm_cluster.kernel.explain.progress import is_trouble
from vllm_cluster.kernel.explain.scan import MAX_STREAMS, LogSource, scan_all
from vllm_cluster.kernel.explain.signs import classify
from vllm_cluster.kernel.text import redact

LINES = 3000
SHOWN = 300  # calls for what is kept to be shown


# fault: kernel/explain/stream.py: hit.lines.append(line) → hit.lines.append(self._place(*line) and line)
# fault: kernel/explain/stream.py: raised.append((line, nearby)) → raised.append((line, nearby if self._place(*line) else nearby))
@pytest.mark.parametrize("error", ["RuntimeError: frob {}", "CUDA error: frob {}", "ValueError: {} is not supported"])
def test_an_error_that_is_not_shown_is_parsed_once_and_not_redacted(error: str, monkeypatch: Any) -> None:
    calls: Counter[str] = Counter()

    def counted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            calls[name] += 1
            return real(*args, **named)

        return call

    for module in ("stream", "scan"):
        monkeypatch.setattr(f"vllm_cluster.kernel.explain.{module}.parse_line", counted("parse", parse_line))
    monkeypatch.setattr("vllm_cluster.kernel.explain.stream.redact", counted("redact", redact))
    text = "".join(f"(Worker pid=7) ERROR 05-02 09:11:10 [a.py:1] {error.format(at)}\n" for at in range(LINES))
    found = explained(text)
    assert found.named or found.raised
    assert calls["redact"] < SHOWN
    assert LINES <= calls["parse"] < LINES + SHOWN


# fault: kernel/explain/progress.py: r"|Killed\b|Aborted\b| → r"|Killed\b|
# fault: kernel/explain/progress.py: {19,27} [EFC] | → {19,27} [FC] |
@pytest.mark.parametrize(
    "line",
    [
        *("Traceback (most recent call last):", "a.FrobError: no", "FrobException", "SystemExit: 3", "a.exc.Frob: no"),
        *("x ERROR y", "x CRITICAL y", "x FATAL y", "frob error: no", "a.c:1: error no frob", "panic: frob"),
        *("Segmentation fault", "(core dumped)", "Killed", "Aborted", "[2026-05-02 09:11:10,1 E 3 3] frob"),
        *("[E528 09:11 frob", "gpu1:1:2 [0] a.cc:3 NCCL WARN frob"),
    ],
)
def test_every_form_of_an_error_is_recognised(line: str) -> None:
    assert is_trouble(line)
    assert not is_trouble("INFO frob")


# fault: kernel/explain/signs.py: known.matches or known.needle): known for known in found → known): known for known in found
def test_a_refusal_counts_once_however_many_of_its_words_are_in_the_line() -> None:
    found, _ = classify("ValueError: frob is not supported, incompatible and not allowed")
    assert [known.failure for known in found] == ["combination-unsupported"]


# fault: kernel/explain/signs.py: if any(map(words.__contains__, progress.POSSIBLE)): → if words.count("include"):
@pytest.mark.parametrize("mark", progress.POSSIBLE)
def test_what_is_listed_as_possible_has_not_been_seen(mark: str) -> None:
    assert classify(f"{mark}: CUDA out of memory")[0] == ()


# fault: kernel/explain/log_line.py: if (found := _OWN_TIME.match(head)) is None: → if (found := None) is None:
def test_the_time_of_a_line_is_not_taken_from_what_it_logs() -> None:
    # The first as vLLM writes it, the second as it did before 0.8.
    for where in ("[a.py:1]", "a.py:1]"):
        words = f"(EngineCore pid=1) ERROR 05-02 09:11:10 {where} ValueError: 2019-01-01T00:00:00 has no frob"
        line = parse_line(words.encode())
        assert (line.time, line.dated) == (parse_line(b"ERROR 05-02 09:11:10 [a.py:1] x").time, False)


# fault: kernel/explain/scan.py: return [scan(source, tick, room) for → return [scan(source, tick) for
@pytest.mark.promise("P23")
def test_logs_of_more_hosts_than_there_are_share_one_bound() -> None:
    def source(file: int) -> LogSource:
        text = "".join(f"=== host-{file}-{at} ===\nERROR x{at} RuntimeError: boom\n" for at in range(MAX_STREAMS // 2))
        return LogSource(f"{file}.log", [(1, text.encode())])

    found = scan_all(map(source, range(4)))
    assert [len(one.streams) for one in found[:2]] == [MAX_STREAMS // 2 - 1] * 2  # beside the first one
    assert sum(len(one.streams) for one in found) == MAX_STREAMS
    assert all(one.strange or one.trouble or one.raised for one in found)


# fault: kernel/explain/catalogue.py: any(one.text.decode() in mark for mark in marks) → any(one.text.decode() == mark[1:] for mark in marks)
def test_each_mark_of_a_start_or_of_work_is_found_by_a_needle() -> None:
    """What a line is taken for is decided by its needles: a mark without one would never be looked for."""
    for marks, number in ((progress.TURNS, 1), (WORKS, 2)):
        for mark in marks:
            own = [at for at, one in enumerate(NEEDLES) if one.text.decode() in mark]
            assert kind_of(tuple(own))[number], mark


# fault: kernel/explain/scan.py: if self._rewritten and any( → if False and any(
@pytest.mark.parametrize(
    "line", ["CUDA e\x1b[0mrror: an illegal frob", "CUDA e[0mrror: frob", '{"log":"CUDA \\u0065rror: frob"}']
)
def test_a_sign_that_only_the_words_of_a_line_hold_is_found(line: str) -> None:
    found = explained(f"a CUDA error: no frob\n{line}\n")
    assert found.named and found.named.count == 2
