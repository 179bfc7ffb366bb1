"""How long the streams of a Docker are waited for that sends no data."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.canned_docker import CannedStream, answer, canned
from tests.support.clock import Clock
from vllm_cluster.kernel.docker.calls import Allowance, TooLong
from vllm_cluster.kernel.docker.streams import SILENT_SECONDS, WAITING_SECONDS


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The limits by which something is read."""
    found = list[float]()
    monkeypatch.setattr(CannedStream, "settimeout", lambda _, seconds: found.append(seconds))
    return found


class Slow:
    """A Docker that has one exec, and sends two pieces of anything else, with much time between them."""

    def __init__(self) -> None:
        self.clock = Clock()

    def __call__(self, line: str) -> Iterator[bytes]:
        if line.startswith("POST") and "/containers/" in line:
            yield answer(b'{"Id": "e1"}', 201)
            return
        yield b"HTTP/1.1 200 OK\r\n\r\n"
        for piece in (b"one", b"two"):
            self.clock.sleep(0.9 * SILENT_SECONDS)
            yield piece


# fault: kernel/docker/streams.py: (ENDLESS if follow else SILENT_SECONDS) → ENDLESS
# fault: kernel/docker/streams.py: None if follow or seconds else WHOLE_LOG → None
@pytest.mark.parametrize("follow", [False, True])
def test_a_log_that_has_an_end_is_not_waited_for_without_one(follow: bool, waits: list[float]) -> None:
    slow = Slow()
    docker, _ = canned(slow, slow.clock)
    with docker.streams.log("node", follow=follow) as pieces:
        assert b"".join(pieces) == b"onetwo"
    # What is followed may be silent for days.
    assert (max(waits) > SILENT_SECONDS) == follow


# fault: kernel/docker/streams.py: self._calls.after(allowed.silent if allowed else ENDLESS) → self._calls.after(ENDLESS)
# fault: kernel/docker/streams.py: return self._reply.pieces(self._allowed) → return self._reply.pieces()
# fault: kernel/docker/calls.py: min(allowed.silent, left) → left
@pytest.mark.parametrize("allowed", [Allowance(SILENT_SECONDS, 1800, 1000), None])
def test_a_command_that_prints_nothing_is_waited_for_as_long_as_was_asked(
    allowed: Allowance | None, waits: list[float]
) -> None:
    slow = Slow()
    docker, _ = canned(slow, slow.clock)
    with docker.streams.exec("node", ["true"], allowed=allowed) as running:
        assert b"".join(running.output()) == b"onetwo"
    assert (max(waits) > SILENT_SECONDS) == (allowed is None)


# fault: kernel/docker/calls.py: if got > allowed.most or left <= 0: → if got > allowed.most:
# fault: kernel/docker/calls.py: if got > allowed.most or left <= 0: → if left <= 0:
# fault: kernel/docker/calls.py: waited += clock.monotonic() - began → waited = 0.0
@pytest.mark.parametrize(("seconds", "piece"), [(60, b"x"), (0, b"x" * 10_000)])
def test_a_log_with_an_end_has_one_where_the_host_prints_without(seconds: float, piece: bytes) -> None:
    """A byte a minute, and as fast as it can: `logs` continued for as long as the host liked."""
    clock, sent = Clock(), 0

    def endless(_line: str) -> Iterator[bytes]:
        nonlocal sent
        yield b"HTTP/1.1 200 OK\r\n\r\n"
        while sent < 1 << 30:
            clock.sleep(seconds)
            sent += len(piece)
            yield piece

    docker, _ = canned(endless, clock)
    began = clock.monotonic()
    with docker.streams.log("node") as pieces, pytest.raises(TooLong, match="gpu1: read the log of node: its output"):
        for _ in pieces:
            clock.sleep(1000 if sent < 3 else 0)  # a person reads
    assert sent <= (256 << 20) + 20_000 and clock.monotonic() - began < WAITING_SECONDS + 4000
