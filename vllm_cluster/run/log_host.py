"""Reads all logs of one host side by side, and reads on after a cut, a restart or a new container."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime
from functools import partial

from vllm_cluster.core.log_lines import SECOND, LogRequest
from vllm_cluster.errors import ConnectionLost, HostError, TimedOut, Unreachable, VclusterError
from vllm_cluster.events import Emit, Event
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.run.connection import HostConnection
from vllm_cluster.run.log_feed import ContainerFeed, Feed, FileFeed
from vllm_cluster.run.log_merge import LogMerge
from vllm_cluster.run.node_handle import NodeHandle
from vllm_cluster.run.open_node import open_node
from vllm_cluster.text import age

AGAIN_SECONDS = 1.0
# A log that cannot be begun so often in a row, on a host that answers and whose node runs, never will be.
TRIES = 5
_BROKEN = (ConnectionLost, Unreachable, TimedOut)


class HostLogs:
    """The logs of one host, read by threads until they end or `stop`.

    `opened` is set once it is known whether the node can be read, `settled` once it is so for the files of its ranks;
    `failure` is why a log was not read to its end, `bug` what no log should raise.
    """

    def __init__(
        self,
        inventory: Inventory,
        connection: HostConnection,
        asked: LogRequest,
        *,
        merge: LogMerge,
        emit: Emit,
        covered: Callable[[str], bool],
    ) -> None:
        self.host = connection.name
        self.failure: VclusterError | None = None
        self.bug: Exception | None = None
        self.opened, self.settled, self.ranks_read = threading.Event(), threading.Event(), False
        self._inventory, self._connection, self._asked = inventory, connection, asked
        self._merge, self._emit = merge, emit
        self._node = node = NodeHandle(connection, inventory.cluster)
        self._ranks = FileFeed(node, asked, merge, group=False) if asked.ranks else None
        group = FileFeed(node, asked, merge, group=True) if asked.group else None
        container = ContainerFeed(node, asked, merge, covered) if asked.sources else None
        self._feeds: list[Feed] = [feed for feed in (self._ranks, group, container) if feed]
        for feed in self._feeds:
            merge.add(feed)
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self._ready, self._offset = False, 0
        self._until: int | None = None
        self._away: float | None = None

    def stop(self) -> None:
        """Begin nothing more; what is being read ends with the connection."""
        self._stopped.set()

    def run(self) -> None:
        """Read all of it; never raises."""
        try:
            self._open()
        except VclusterError as error:
            self.failure = error
            self.opened.set()
            if not self._asked.follow:
                self._end()
                return
            self._warn_once(f"cannot be read yet: {error.message.removeprefix(f'{self.host}: ')}")
        self.opened.set()
        background = self._connection.runtime.background
        for feed in self._feeds:
            background(partial(self._keep, feed), "log")

    def _end(self) -> None:
        self.settled.set()
        for feed in self._feeds:
            self._merge.end(feed)

    def _open(self) -> None:
        """Connect, find the node, and measure how far the host's clock is ahead."""
        open_node(self._inventory, self._connection)
        self._offset = self._connection.engine.streams.clock_offset()
        if self._asked.previous and (there := self._node.container()) and there["State"]["Status"] == "running":
            started = datetime.fromisoformat(there["State"]["StartedAt"])
            self._until = int(started.timestamp() * SECOND)
        self._ready, self.failure = True, None

    def _keep(self, feed: Feed) -> None:
        """Read one log to its end; where it is followed, again and again."""
        tries = 0
        try:
            if not self._ready:
                self._merge.pause(feed)
                self._await_node()
            while not self._stopped.is_set():
                begun, error = self._read(feed)
                tries = 0 if begun or isinstance(error, _BROKEN) else tries + 1
                if self._stopped.is_set():
                    return
                if error and (not self._asked.follow or tries >= TRIES):
                    raise error
                if not self._asked.follow:
                    return
                self._merge.pause(feed)
                self._await_node()
        except EOFError:
            return  # nothing is read any more
        except VclusterError as error:
            self.failure = self.failure or error
        except Exception as error:
            self.bug = error
        finally:
            if feed is self._ranks:
                self.settled.set()
            self._merge.end(feed)

    def _read(self, feed: Feed) -> tuple[bool, VclusterError | None]:
        """Read until it ends; whether it has begun, and why it broke off."""
        begun = threading.Event()

        def begin() -> None:
            begun.set()
            self._merge.begin(feed)
            if feed is self._ranks:
                self.ranks_read = True
                self.settled.set()

        try:
            feed.read(self._offset, self._until, begin)
        except HostError as error:
            return begun.is_set(), error
        return begun.is_set(), None

    def _await_node(self) -> None:
        """Wait until the host answers and its node runs."""
        while not self._stopped.wait(AGAIN_SECONDS):
            try:
                self._reconnect()
                there = self._node.container()
                if there and there["State"]["Running"]:
                    self._back()
                    return
                state = there["State"]["Status"] if there else "missing"
                self._warn_once(f"the node is {state}; its log continues when it runs again")
            except VclusterError as error:
                why = error.message.removeprefix(f"{self.host}: ")
                self._warn_once(f"its log continues when it answers again: {why}")

    def _reconnect(self) -> None:
        """Connect again where the connection is gone; one thread does it for all."""
        with self._lock:
            if not self._ready:
                self._open()
                return
            try:
                self._connection.transport.require_alive()
            except Unreachable:
                self._connection.reconnect()
                self._offset = self._connection.engine.streams.clock_offset()

    def _warn_once(self, text: str) -> None:
        """Name the reason once for each time that the host is away."""
        with self._lock:
            first, self._away = self._away is None, self._away or self._connection.runtime.clock.monotonic()
        if first and not self._stopped.is_set():
            self._emit(Event("warning", text, self.host))

    def _back(self) -> None:
        with self._lock:
            away, self._away = self._away, None
        if away is not None:
            seconds = self._connection.runtime.clock.monotonic() - away
            self._emit(Event("note", f"its log continues after {age(seconds)}", self.host))
