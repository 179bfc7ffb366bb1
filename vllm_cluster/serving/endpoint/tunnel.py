"""The way from this machine to the endpoint: a port brought here."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from vllm_cluster.kernel.errors import (
    AuthenticationFailed,
    ConnectionLost,
    HostError,
    HostKeyRejected,
    OpenSshNeeded,
    PreflightFailed,
    Unreachable,
    VclusterError,
)
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.hosts.connection import HostConnection, machine_of, ssh_target
from vllm_cluster.kernel.hosts.runtime import SYSTEM, Runtime
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.listeners import LOOPBACK
from vllm_cluster.kernel.node.handle import NodeHandle
from vllm_cluster.serving.endpoint.relay import Relay
from vllm_cluster.serving.head import at_head, key_id, key_now, read_key
from vllm_cluster.wire.status import ServeStatus

POLL_SECONDS = 2.0
# A laptop sleeps for hours, but it connects again within minutes of waking up.
RETRY_SECONDS, RETRY_POLL = 3600.0, 5.0
# A connection that the far end refuses is closed here within a round trip.
ANSWER_SECONDS = 1.0
# Between two looks at where SSH leads: a `Match exec` of ssh_config runs a program at each. So does `hosts_from`, whose
# answer may be older while all is well, and no older than that once the connection broke.
LOCATE_SECONDS, SOURCE_SECONDS = 30.0, 300.0
# Then the head's own front may not listen, and another user's program at its port would get the key and the prompts.
_NO_FRONT = ("waiting", "backoff", "failed", "unknown")


def tunnel(
    latest: Callable[[float], Inventory],
    emit: Emit,
    *,
    port: int,
    opened: Callable[[int, str], None] = lambda *_: None,
    closing: Callable[[], None] = lambda: None,
    runtime: Runtime = SYSTEM,
) -> NoReturn:
    """Forward the API to this machine's loopback: what breaks is opened again, at the head that the inventory has then.

    `latest` gives it, by how many seconds old the answer of another source may be, as that of `hosts_from`.
    What is away is waited for, for up to an hour; the port is kept. `opened` gets it, and the id of the key that the
    end has to which it leads from then on, each time that one is reached, and once its key is another; `closing` is
    called while the port is still held.

    Raises:
        VclusterError: it could not be opened, or not again; or the inventory is of another cluster now.
    """
    inventory, relay = latest(SOURCE_SECONDS), Relay(port, RETRY_POLL)
    patience, url = runtime.after(RETRY_SECONDS), f"http://127.0.0.1:{relay.port}"
    was_open = broken = False

    try:
        while True:
            try:
                # Its port leads there no longer than the passage has its own, which any program here may take then.
                with passage_to(inventory, runtime) as passage:
                    patience = runtime.after(RETRY_SECONDS)
                    # Before it leads there: a key for the head that was noted until then never gets to this one.
                    opened(relay.port, passage.key_id)
                    with relay.leading_to(passage):
                        text, data = f"{url} forwards to {passage.host}", {"url": url, "port": relay.port}
                        emit(Event("note", text) if was_open else Event("result", f"{text} until Ctrl-C", data=data))
                        was_open, broken = True, False
                        moved = _watch(inventory, passage.machine, latest, runtime)
                        passage.hold(emit, moved, lambda key_id: opened(relay.port, key_id))
            except (HostKeyRejected, AuthenticationFailed, OpenSshNeeded):
                raise
            except (HostError, PreflightFailed) as error:  # Docker starts again there, or `up` moves the head to it
                if not was_open or not patience.left():
                    raise
                if not broken:
                    emit(Event("warning", f"{error.message}; {url} answers with HTTP 503 until it is back"))
                broken = True
            runtime.clock.sleep(RETRY_POLL)
            inventory = _of_cluster(latest(LOCATE_SECONDS if broken else SOURCE_SECONDS), inventory.cluster)
    finally:
        closing()
        relay.close()


def _watch(
    before: Inventory, machine: str, latest: Callable[[float], Inventory], runtime: Runtime
) -> Callable[[], bool]:
    """Whether the head is another machine than this one, by the inventory and by where SSH leads for its words."""
    fresh = runtime.after(LOCATE_SECONDS)

    def moved() -> bool:
        nonlocal fresh
        now = _of_cluster(latest(SOURCE_SECONDS), before.cluster)
        head = now.hosts[now.head_name]
        if ssh_target(now, head) != ssh_target(before, before.hosts[before.head_name]):
            return True
        if fresh.left():
            return False
        found, fresh = machine_of(now, head, runtime), runtime.after(LOCATE_SECONDS)
        return found not in ("", machine)

    return moved


def _of_cluster(inventory: Inventory, cluster: str) -> Inventory:
    if inventory.cluster != cluster:
        text = f"the inventory is of cluster {inventory.cluster} now, and was of {cluster}"
        raise VclusterError(text, hint="vcluster endpoint --detach")
    return inventory


@contextmanager
def passage_to(inventory: Inventory, runtime: Runtime = SYSTEM) -> Iterator[Passage]:
    """The API of the cluster's head at a free port of this machine.

    Raises:
        HostError: nothing passes.
    """
    with at_head(inventory, runtime) as head:
        at_end = _KeyAtEnd(inventory, head, runtime)
        passage = Passage(head, inventory.ports.api, lambda: _served(inventory, head), at_end.key_id)
        try:
            yield passage
        finally:
            passage.close()


class _KeyAtEnd:
    """The key that the end of a connection has itself: names of hosts lead here today and there tomorrow.

    Raises:
        VclusterError: it has none, or cannot be reached.
    """

    def __init__(self, inventory: Inventory, head: HostConnection, runtime: Runtime) -> None:
        self._inventory, self._head, self._runtime = inventory, head, runtime
        self._key = read_key(inventory, head)
        self._id = key_id(inventory, self._key, runtime)

    def key_id(self) -> str:
        """Its id now; the last one while it cannot be read, as while `up` makes the node again: the end is the same."""
        now = None
        try:
            now = key_now(self._inventory, self._head)
        except Unreachable:
            raise
        except VclusterError:
            pass
        if now and now != self._key:
            # Slow on purpose, and this is asked all the time.
            self._key, self._id = now, key_id(self._inventory, now, self._runtime)
        return self._id


class Passage:
    """The API of the head here, for as long as its connection lives; `remote` is its port where none is served yet.

    Raises:
        HostError: a model is ready there, and nothing passes.
    """

    def __init__(
        self,
        head: HostConnection,
        remote: int,
        served: Callable[[], ServeStatus | None],
        key_at_end: Callable[[], str] = str,
    ) -> None:
        """`key_at_end` is the id of the key that the head has now."""
        self._head, self._remote, self._served, self._key_at_end = head, remote, served, key_at_end
        self.host, self.machine, self.key_id = head.name, head.machine, key_at_end()
        self._place = self._place_of(serve := served())
        address, port = self._place
        self._forward = head.transport.forward(port, 0, remote_host=address)
        self.port = self._forward.local_port
        self.answers = self._leads(serve)
        if serve and serve.phase == "ready" and not self.answers:
            self._forward.close()
            raise no_passage(head, serve)

    def _place_of(self, serve: ServeStatus | None) -> tuple[str, int]:
        # The port of what is served: that of the inventory may have changed since.
        return address_of(serve), serve.port if serve else self._remote

    def _leads(self, serve: ServeStatus | None) -> bool:
        return has_front(serve) and answers(self.port)

    def hold(
        self, emit: Emit, ended: Callable[[], bool] = lambda: False, renewed: Callable[[str], None] = lambda _: None
    ) -> None:
        """Watch the connection and what is behind it until the connection breaks, or it has ended.

        That something answers keeps none open: what `ended` looks at is not the head's to decide. `renewed` gets the
        id of the head's key once that is another.

        Raises:
            ConnectionLost: the connection broke.
        """
        if not self.answers:
            emit(Event("warning", "no API answers yet: no model is ready there; see vcluster status", self._head.name))
        while not ended():
            self._head.runtime.clock.sleep(POLL_SECONDS)
            try:
                self._head.transport.require_alive()
                self._follow(emit)
                if (now := self._key_at_end()) != self.key_id:
                    self.key_id = now
                    renewed(now)
            except Unreachable as error:
                raise ConnectionLost(
                    self._head.name, f"tunnel: {error.detail}", hint="vcluster endpoint --tunnel"
                ) from None

    def _follow(self, emit: Emit) -> None:
        serve = self._served()
        # Where it is not known any more, what was there last is kept.
        if (place := self._place_of(serve)) != self._place and (serve or not self.answers):
            # It was served again with or without --expose, or on another port: at the old one others may listen.
            address, port = self._place = place
            before, self._forward = self._forward, self._head.transport.forward(port, 0, remote_host=address)
            self.port = self._forward.local_port
            before.close()
        now = self._leads(serve)
        if now != self.answers:
            where = "{}:{}".format(*self._place)
            gone = Event("warning", f"the API has stopped answering: {where}", self._head.name)
            emit(Event("note", f"the API answers again: {where}", self._head.name) if now else gone)
        self.answers = now

    def close(self) -> None:
        """Stop listening."""
        self._forward.close()


def no_passage(head: HostConnection, serve: ServeStatus) -> HostError:
    """The error of a host that forwards nothing, though a model is ready there."""
    text = f"tunnel: cannot reach {address_of(serve)}:{serve.port} through SSH, though {serve.name} is ready there"
    return HostError(head.name, text, hint="set AllowTcpForwarding yes in its sshd_config")


def is_free(port: int) -> bool:
    """Whether this machine can listen on this local port."""
    try:
        socket.create_server((LOOPBACK, port)).close()
    except OSError:
        return False
    return True


def answers(port: int) -> bool:
    """Whether a connection to this local port is taken at the far end: one that is not ends at once.

    Nothing is sent, since each request would be a line of the server's log.
    """
    try:
        with socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS) as near:
            return near.recv(1) != b""
    except TimeoutError:
        return True
    except OSError:
        return False


def address_of(serve: ServeStatus | None) -> str:
    """Where the API listens, as the head reaches it."""
    return serve.host if serve else "127.0.0.1"


def has_front(serve: ServeStatus | None) -> bool:
    """Whether what listens at the API's port is the head's own front, by what the head reports."""
    return serve is not None and serve.phase not in _NO_FRONT


def _served(inventory: Inventory, head: HostConnection) -> ServeStatus | None:
    try:
        rows = NodeHandle(head, inventory.cluster).state().replicas
        return next(filter(has_front, rows), rows[0] if rows else None)
    except Unreachable:
        raise
    except VclusterError:  # the node restarts, or is gone for now
        return None
