"""What the carriers share: the count of what was started, and over SSH the limits and errors of a connection."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from vllm_cluster.clock import Deadline
from vllm_cluster.errors import ConnectionLost, TimedOut, Unreachable
from vllm_cluster.transport.base import MAX_COMMANDS, MAX_STREAMS, Target
from vllm_cluster.transport.connect_errors import AGAIN
from vllm_cluster.transport.jumps import Jumps
from vllm_cluster.transport.ssh_config import SshEndpoint, ensure_safe_names

RETRY_SECONDS = 0.1


class CountingTransport:
    """A host by its name, and how many times something was started there."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._counting = threading.Lock()
        self._round_trips = 0

    @property
    def host(self) -> str:
        """The host's name in the inventory."""
        return self._target.name

    @property
    def round_trips(self) -> int:
        """How many times something was started on the host."""
        return self._round_trips

    def _count(self) -> None:
        with self._counting:
            self._round_trips += 1

    def _not_ended(self, doing: str, seconds: float) -> TimedOut:
        return TimedOut(self.host, f"{doing} did not end in the {seconds:.0f} s that it had")


class SshTransport(CountingTransport):
    """A host over SSH, whose commands and streams take a slot each for as long as they are open."""

    def __init__(self, target: Target, jumps: Jumps, endpoint: SshEndpoint | None = None) -> None:
        ensure_safe_names(target)
        super().__init__(target)
        self._jumps, self._endpoint = jumps, endpoint
        self._connecting = threading.Lock()
        self._commands = threading.BoundedSemaphore(MAX_COMMANDS)
        self._streams = threading.BoundedSemaphore(MAX_STREAMS)

    def close(self) -> None:
        """End the connection and its streams."""
        with self._connecting:
            self._close()

    def _close(self) -> None:
        raise NotImplementedError

    @contextlib.contextmanager
    def _command(self, deadline: Deadline, doing: str) -> Iterator[None]:
        """A slot for one command."""
        self._take(self._commands, deadline, doing)
        try:
            yield
        finally:
            self._commands.release()

    def _take(self, slots: threading.BoundedSemaphore, deadline: Deadline, doing: str) -> None:
        if not slots.acquire(timeout=deadline.left()):
            raise TimedOut(self.host, f"{doing} did not start: too many commands run on this connection")

    def _unconnected(self) -> Unreachable:
        return Unreachable(self.host, "there is no connection", hint="connect first")

    def _gone(self, where: str, why: str) -> Unreachable:
        return Unreachable(self.host, f"the connection to {where} was lost earlier: {why}", hint=AGAIN)


def lost(host: str, where: str, doing: str, why: str) -> ConnectionLost:
    """The error for a connection that broke while `doing` was under way."""
    hint = "the command may have completed; rerun it to check and continue"
    return ConnectionLost(host, f"the connection to {where} was lost during {doing}: {why}", hint=hint)
