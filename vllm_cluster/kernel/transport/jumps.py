"""Connections to jump hosts, shared by all the hosts behind them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Protocol, TypeVar, cast

from vllm_cluster.kernel.clock import Clock, Deadline
from vllm_cluster.kernel.errors import Unreachable
from vllm_cluster.kernel.transport import connect_errors
from vllm_cluster.kernel.transport.ssh_config import SshEndpoint


class Jump(Protocol):
    """A connection to a jump host."""

    def alive(self) -> bool: ...
    def close(self) -> None: ...


J = TypeVar("J", bound=Jump)
# Hosts that are connected to at once share a failure; who comes later, such as a log that is followed, tries again.
AGAIN_SECONDS = 5.0


class Jumps:
    """One connection to each jump host. One login a host behind it would be more than its sshd takes (MaxStartups).

    One that could not be reached is not asked again at once, so that many hosts behind it do not wait in turn.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opened: dict[SshEndpoint, Future[Jump]] = {}
        # When the last attempt failed.
        self._failed: dict[SshEndpoint, float] = {}

    def through(self, at: SshEndpoint, connect: Callable[[], J], deadline: Deadline) -> J:
        """The connection to the jump host, made by `connect` where there is none.

        Raises:
            Unreachable: in the name of the host that `at` is on the way to.
        """
        key, begun = _route_key(at), deadline.left()
        with self._lock:
            last = self._opened.get(key)
            first = last is None or self._is_over(last, key, deadline.clock)
            opened = self._opened[key] = Future() if last is None or first else last
        if first:
            if last is not None and not last.exception():
                last.result().close()
            try:
                opened.set_result(connect())
            except BaseException as error:
                self._failed[key] = deadline.clock.monotonic()
                opened.set_exception(error)
        try:
            return cast(J, opened.result(deadline.left()))
        except TimeoutError:
            raise connect_errors.no_answer(at, begun) from None
        except Unreachable as error:
            raise type(error)(at.name, error.detail, hint=error.hint) from error

    def _is_over(self, opened: Future[Jump], key: SshEndpoint, clock: Clock) -> bool:
        if not opened.done():
            return False
        if opened.exception():
            return clock.monotonic() - self._failed[key] > AGAIN_SECONDS
        return not opened.result().alive()

    def close(self) -> None:
        """End every connection."""
        with self._lock:
            opened = list(self._opened.values())
            self._opened.clear()
        for future in opened:
            if future.done() and not future.exception():
                future.result().close()


def _route_key(at: SshEndpoint) -> SshEndpoint:
    """What makes two ways one: all but the host that they lead to."""
    return replace(at, name="", jump=_route_key(at.jump) if at.jump else None)
