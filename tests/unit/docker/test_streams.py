"""How long the streams of a host's Docker are waited for where it says nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.canned_docker import CannedStream, answer, canned
from vllm_cluster.kernel.docker.streams import SILENT_SECONDS


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The limits by which something is read."""
    found = list[float]()
    monkeypatch.setattr(CannedStream, "settimeout", lambda _, seconds: found.append(seconds))
    return found


def replies(line: str) -> Iterator[bytes]:
    """A Docker that has one exec, and prints two pieces of anything else."""
    if line.startswith("POST") and "/containers/" in line:
        yield answer(b'{"Id": "e1"}', 201)
        return
    yield b"HTTP/1.1 200 OK\r\n\r\n"
    yield b"one"
    yield b"two"


# fault: kernel/docker/streams.py: (ENDLESS if follow else SILENT_SECONDS) → ENDLESS
# fault: kernel/docker/streams.py: None if follow or seconds else SILENT_SECONDS → None
@pytest.mark.parametrize("follow", [False, True])
def test_a_log_that_has_an_end_is_not_waited_for_without_one(follow: bool, waits: list[float]) -> None:
    docker, _ = canned(replies)
    waits.clear()
    with docker.streams.log("node", follow=follow) as pieces:
        assert b"".join(pieces) == b"onetwo"
    # What is followed may be silent for days.
    assert (max(waits) > SILENT_SECONDS) == follow
    # Each piece has the whole time anew.
    assert min(waits[2:]) > SILENT_SECONDS - 5


# fault: kernel/docker/streams.py: self._calls.after(silent or ENDLESS) → self._calls.after(ENDLESS)
# fault: kernel/docker/calls.py: if silent: → if False:
@pytest.mark.parametrize("silent", [7.0, None])
def test_a_command_that_prints_nothing_is_waited_for_as_long_as_was_asked(
    silent: float | None, waits: list[float]
) -> None:
    docker, _ = canned(replies)
    with docker.streams.exec("node", ["true"], silent=silent) as running:
        waits.clear()
        assert b"".join(running.output()) == b"onetwo"
    assert (max(waits) > 7.0) == (silent is None)
