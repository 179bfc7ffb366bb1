"""No bytes make explain raise, hang or fill the memory."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.depth import cases
from tests.support.logs import NEWEST, PRODUCED
from vllm_cluster.kernel.explain.catalogue import SIGNS
from vllm_cluster.kernel.explain.diagnosis import Diagnosis, diagnose
from vllm_cluster.kernel.explain.log_line import MAX_LINE, parse_line
from vllm_cluster.kernel.explain.scan import LogSource, candidate_lines, scan
from vllm_cluster.kernel.explain.signs import classify
from vllm_cluster.kernel.shell_line import Pasted
from vllm_cluster.kernel.text import redact
from vllm_cluster.serving.explain.render import explain_document, show_explained

NEEDLES = [known.needle.encode() for known in SIGNS]
LINES = [line for path in PRODUCED for line in path.read_bytes().splitlines(keepends=True)]
# What each regular expression begins with, over and over: where one goes back and forth, it does so here.
NASTY = [
    "a", " ", "(", "[", "1", "'", "=", ":", "/", "token=", "://", "NVRM: Xid ", "io_uring ", "40", "Gloo ",
    "-----BEGIN ",
]  # fmt: skip
# What launchers and collectors put before a line, and what is written in place of other bytes.
PREFIXED = [
    *(b"gpu-3: ", b"vllm-1  | ", b"[1,0]<stderr>: ", b"2026-11-21T09:00:01.123Z ", b"[rank3]: ", b"(Worker pid=7) "),
    *(b"Nov 03 10:00:00 gpu-3 vllm[812]: ", b'{"log":"', b'\\n","pod":"p-1"}', b"E   ", b"^M", b"\xc3"),
    *(b"\x1b[31m", b"[0m", b"^[[1m", b"\\u0041", b"E1121 10:00:00.123 ", b"level=warning ", b"[ERROR] "),
    b"[repeated 3x across cluster]",
]  # fmt: skip


def judged(logs: list[bytes]) -> Diagnosis:
    """The verdict on these logs."""
    return diagnose([scan(LogSource(str(name), [(1, log)], newest=NEWEST)) for name, log in enumerate(logs)])


@given(st.lists(st.binary(max_size=400), max_size=4))
def test_any_bytes(logs: list[bytes]) -> None:
    explain_document(judged(logs), {}, Pasted)


@settings(max_examples=60)
@given(st.lists(st.lists(st.sampled_from([*LINES, *NEEDLES]) | st.binary(max_size=60), max_size=40), max_size=4))
def test_any_mix_of_lines(logs: list[list[bytes]]) -> None:
    found = judged([b"".join(lines) for lines in logs])
    show_explained(found, Pasted, color="never")
    assert (found.result == "explained") == (found.cause is not None)
    assert found.result != "nothing" or not found.error_lines


# fault: kernel/explain/words.py: b" ".join((b"", *self._words, b"")) → b" ".join(self._words)
def test_each_needle_is_found_in_a_line_that_has_hardly_any_other_word() -> None:
    """Its first word may be the end of a longer one, its last one the beginning: any of them is the outermost once."""
    for known in SIGNS:
        line = b"x%bx" % known.needle.encode()
        assert known in next(nearby.signs for _, _, nearby in candidate_lines(1, line)), line


# fault: kernel/explain/words.py: own.issuperset(one.whole) → one.text in own
# fault: kernel/explain/words.py: end.strip() in self._words or end in text → end.strip() in self._words
@settings(max_examples=60)
@given(st.lists(st.sampled_from([*LINES, *NEEDLES, b"x", b" ", b"_", b"7", b"\n", b'"', b"\\n"]), max_size=60))
def test_each_line_with_a_needle_is_found_between_any_others(pieces: list[bytes]) -> None:
    part = b"".join(pieces)
    lines = enumerate(part.split(b"\n"), 1)
    found = {n: nearby.signs for n, _, nearby in candidate_lines(1, part)}
    for n, line in lines:
        for known in SIGNS:
            if known.needle.encode() in line[: MAX_LINE // 4]:
                assert known in found[n], line


@settings(max_examples=300)
@given(
    st.lists(st.sampled_from([*LINES, *PREFIXED, b"md5: ", b"md3: ", b"a-1 ", b"a-2 "]), min_size=1, max_size=4),
    st.sampled_from([frozenset(), frozenset({"a-1"})]),
)
def test_a_line_is_taken_apart_as_if_no_other_had_its_form(pieces: list[bytes], names: frozenset[str]) -> None:
    line = b"".join(piece.rstrip(b"\n") for piece in pieces)
    for other in (line, line.translate(bytes.maketrans(b"0123456789", b"1234567890"))):
        assert parse_line(other, NEWEST, names) == parse_line(other, NEWEST, names, single=True)


# fault: kernel/explain/log_line.py: DIGIT_MATTERS = "md0" → DIGIT_MATTERS = "md00"
# fault: kernel/explain/log_line.py: not any(map(str.isdigit → not all(map(str.isdigit
@pytest.mark.parametrize("line", [b"md3: x", b"md5: x", b"a-2 x", b"a-1 x"])
def test_a_digit_that_matters_is_looked_at(line: bytes) -> None:
    # A name with a digit lets each line be looked at by itself.
    parsed = parse_line(line, names=frozenset({"a-1"} if line.startswith(b"a") else ()))
    assert parsed.host == {b"md3: x": "md3", b"a-1 x": "a-1"}.get(line, "")


@given(st.lists(st.sampled_from(LINES), max_size=60), st.integers(1, 400))
def test_how_a_log_is_cut_into_pieces_does_not_matter(lines: list[bytes], size: int) -> None:
    def pieces() -> Iterator[tuple[int, bytes]]:
        for start in range(0, len(lines), size):
            yield 1 + start, b"".join(lines[start : start + size])

    whole = scan(LogSource("x", [(1, b"".join(lines))], newest=NEWEST))
    cut = scan(LogSource("x", pieces(), newest=NEWEST))
    first = {known: (hit.first.line, hit.count) for known, hit in whole.hits.items()}
    assert first == {known: (hit.first.line, hit.count) for known, hit in cut.hits.items()}


@pytest.mark.parametrize("piece", NASTY)
def test_no_line_takes_long(piece: str) -> None:
    """A megabyte in one line, of what the expressions begin with: 2 s, in make test-fast a fifth of both."""
    size = cases(200_000, 1_000_000, 1_000_000)
    line = (piece * (size // len(piece))).encode()
    started = time.process_time()
    for end in (b"", b" error: NCCL failed\n", b"CUDA out of memory"):
        judged([b"failed " + line + end])
    assert time.process_time() - started < 2 * size / 1_000_000


@pytest.mark.slow
def test_every_expression_is_quick_on_what_almost_fits() -> None:
    """All pairs take 14 s of processor time: CI has a third of the pieces for each expression, in turn."""
    size, share = cases(1024, 1024, 4096), cases(3, 3, 1)
    for number, known in enumerate(SIGNS):
        for piece in NASTY[number % share :: share]:
            text = (known.needle + piece * size)[:size]
            started = time.process_time()
            classify(text)
            parse_line(text.encode(), NEWEST)
            redact(text)
            assert time.process_time() - started < 0.5 * size / 4096, (known.needle, piece)


def test_an_endless_log_takes_no_more_memory_than_a_short_one() -> None:
    lines = [b"(Worker pid=%d) ERROR SomeError: thing %d failed, CUDA out of memory\n" % (n, n) for n in range(2000)]
    part = b"".join(lines)
    seen = scan(LogSource("x", ((n * 2000 + 1, part) for n in range(10)), newest=NEWEST))
    assert seen.lines == 20_000
    assert (len(seen.trouble), len(seen.hits)) == (12, 1)
