"""Output of a command as it is gathered, without what a login shell prints before it."""

from __future__ import annotations

import pytest

from vllm_cluster.kernel.transport.base import MAX_GREETING
from vllm_cluster.kernel.transport.kept import MAX_BEFORE, Kept

MARK = b"vcluster-0123456789abcdef\n"


# fault: kernel/transport/kept.py: self._last = window[1 - len(self._mark) :] → self._last = b""
@pytest.mark.parametrize("piece", [1, 7, len(MARK), 1000])
@pytest.mark.parametrize("greeting", [b"", b"Welcome!\n", MARK[:-1] + MARK[:9]])
def test_what_comes_behind_the_mark_is_found_however_it_is_cut(piece: int, greeting: bytes) -> None:
    output, sent = Kept(MARK, 100), greeting + MARK + b"own" + MARK
    for at in range(0, len(sent), piece):
        assert not output.begun or at >= len(greeting) + len(MARK)
        output.add(sent[at : at + piece])
    assert output.own == b"own" + MARK
    assert output.whole().partition(MARK)[2] == b"own" + MARK


# fault: kernel/transport/kept.py: first = data[: MAX_BEFORE - len(self._before)] → first = data
def test_of_a_long_greeting_the_beginning_is_kept_for_words() -> None:
    """64 hosts that printed 1 MB before each command, on both outputs, took 164 MB in `status`."""
    output = Kept(MARK)
    dropped = sum(output.add(b"g" * 10_000) for _ in range(100))
    assert (output.whole(), dropped) == (b"g" * MAX_BEFORE, 1_000_000 - MAX_BEFORE)
    hopeless = [output.hopeless]
    for data in (b"g" * MAX_GREETING, MARK + b"own"):
        output.add(data)
        hopeless.append(output.hopeless)
    assert (output.own, hopeless) == (b"own", [False, True, False])


# fault: kernel/transport/kept.py: return len(data) - len(part) → return len(part)
# fault: kernel/transport/kept.py: self._mark if cut else b"" → b""
def test_of_long_output_the_last_mark_stays() -> None:
    """It seals an exit code 255, which ssh has for itself too."""
    output = Kept(MARK, 10)
    assert output.add(MARK + b"0123456789abc") == 3
    assert output.add(b"more" + MARK) == 4 + len(MARK)
    assert output.whole() == MARK + b"0123456789" + MARK


def test_without_a_mark_the_first_bytes_are_kept() -> None:
    output = Kept(most=4)
    assert (output.begun, output.add(b"abc"), output.add(b"def"), output.whole()) == (True, 0, 2, b"abcd")
