"""A forwarded port: which connections it keeps, and a process that has no file descriptor left."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.ports import is_ended
from tests.support.waiting import until
from vllm_cluster.kernel.transport import forward
from vllm_cluster.kernel.transport import whose as whose_module
from vllm_cluster.kernel.transport.forward import PAUSE_MS, Away, LoopbackForward, Pipe, SocketPipe
from vllm_cluster.kernel.transport.whose import Whose, whose

REFUSED, MOST = 5, 4


class Ends:
    """A forwarded port, its clients, and the far end of each."""

    def __init__(self, stack: ExitStack, *, shared: bool = False) -> None:
        self._stack, self.far = stack, list[socket.socket]()
        self.made = LoopbackForward("gpu1", self._dial, shared=shared)
        stack.callback(self.made.close)

    def _dial(self) -> Pipe:
        near, far = socket.socketpair()
        far.settimeout(20)
        self.far.append(self._stack.enter_context(far))
        return SocketPipe(near)

    def client(self, sent: bytes = b"") -> socket.socket:
        """One more, whose connection is served once it has a far end."""
        client = self._stack.enter_context(socket.create_connection(("127.0.0.1", self.made.local_port), 20))
        client.sendall(sent)
        return client

    def served(self, sent: bytes) -> socket.socket:
        """The same, and wait for what it has sent."""
        count, client = len(self.far), self.client(sent)
        until(lambda: len(self.far) > count, 20, 0.01)
        assert self.far[count].recv(100) == sent
        return client


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ends]:
    """A port with few connections."""
    monkeypatch.setattr(forward, "MAX_CONNECTIONS", MOST)
    with ExitStack() as stack:
        yield Ends(stack)


# fault: kernel/transport/forward.py: return not self._has_asked or self._is_answered → return True
def test_a_client_that_waits_for_its_answer_is_left_alone(ends: Ends) -> None:
    """A new one takes the place of a silent one, and waits where there is none."""
    asking = [ends.served(b"%d" % n) for n in range(MOST - 1)]
    silent = ends.client()
    until(lambda: len(ends.far) == MOST, 20, 0.01)
    asking.append(ends.served(b"x"))
    assert silent.recv(1) == b""
    late = ends.client(b"y")
    time.sleep(3 * PAUSE_MS / 1000)
    assert len(ends.far) == MOST + 1
    asking.pop(0).close()
    ends.far[0].close()
    until(lambda: len(ends.far) > MOST + 1, 20, 0.01)
    for far, client in zip((*ends.far[1 : MOST - 1], *ends.far[MOST:]), (*asking, late), strict=True):
        far.sendall(b"answer")
        assert client.recv(100) == b"answer"


# fault: kernel/transport/forward.py: self._asks_no_more.wait(LINGER_SECONDS) → self._asks_no_more.wait(LINGER_SECONDS * 900)
def test_a_connection_ends_soon_after_its_far_end(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that kept its own end open kept its place for as long as it wanted."""
    monkeypatch.setattr(forward, "LINGER_SECONDS", 0.2)
    client = ends.served(b"question")
    ends.far[0].sendall(b"answer")
    ends.far[0].shutdown(socket.SHUT_WR)
    assert (client.recv(6), client.recv(1)) == (b"answer", b"")
    until(lambda: is_ended(client), 20, 0.05)


# fault: kernel/transport/forward.py: self._asks_no_more.wait(LINGER_SECONDS) → pass
def test_an_answer_is_read_whole_by_a_client_that_still_sends() -> None:
    """Where a connection is reset, what its client has not read yet is lost."""
    with (
        closing(LoopbackForward("gpu1", lambda: Away("it is away", 5))) as made,
        socket.create_connection(("127.0.0.1", made.local_port), 20) as client,
    ):
        for _ in range(5):
            time.sleep(0.1)
            client.sendall(b"x" * 1000)
        assert client.recv(12) == b"HTTP/1.1 503"


# fault: kernel/transport/forward.py: self._is_answered = True → pass
def test_a_client_that_has_its_answer_gives_its_place_to_a_new_one(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "LINGER_SECONDS", 600.0)
    answered = [ends.served(b"%d" % n) for n in range(MOST)]
    for far in ends.far[:]:
        far.close()
    for client in answered:
        assert client.recv(1) == b""
    for n in range(MOST):
        ends.served(b"new %d" % n)


class Full(socket.socket):
    """A listener for whose first connections there is no file descriptor."""

    times: list[float]

    def accept(self) -> tuple[socket.socket, object]:
        self.times.append(time.monotonic())
        if len(self.times) <= REFUSED:
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


# fault: kernel/transport/forward.py: closing.poll(PAUSE_MS) →
def test_a_process_without_a_free_file_descriptor_tries_a_few_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    full = Full()
    full.times = []
    full.bind(("127.0.0.1", 0))
    full.listen()
    monkeypatch.setattr(forward, "listener", lambda _port: full)
    near, far = socket.socketpair()
    made = LoopbackForward("gpu1", lambda: SocketPipe(near))
    try:
        with socket.create_connection(("127.0.0.1", made.local_port), 10) as client:
            client.sendall(b"question")
            far.settimeout(30)
            assert far.recv(100) == b"question"
    finally:
        made.close()
        far.close()
    assert full.times[REFUSED] - full.times[0] >= REFUSED * PAUSE_MS / 1000 * 0.9


# fault: kernel/transport/forward.py: oldest.end() → pass
def test_a_silent_connection_ends_where_there_is_no_file_descriptor_for_a_new_one(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = ends.client()
    until(lambda: len(ends.far) == 1, 20, 0.01)

    def accept(_: socket.socket) -> tuple[socket.socket, object]:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket.socket, "accept", accept)
    ends.client()
    assert silent.recv(1) == b""


# fault: kernel/transport/forward.py: except RuntimeError as error:  # no further thread can be started → except ZeroDivisionError as error:
@pytest.mark.parametrize("works", [0, 1], ids=["of the client", "of the way back"])
def test_where_no_thread_can_be_started_the_next_client_is_served(
    ends: Ends, works: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing more was accepted, though the port was listened on, or a place was lost for good."""
    start, left = threading.Thread.start, iter([True] * works + [False])

    def started(thread: threading.Thread) -> None:
        if not next(left, True):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", started)
    client = ends.client()
    until(lambda: is_ended(client), 10, 0.01)
    for n in range(MOST):
        ends.served(b"%d" % n)


# fault: kernel/transport/forward.py: (user != "own" and not self._of_others.take()) → (user != "own" and self._of_others.take() is None)
# fault: kernel/transport/forward.py: poll.poll() → poll.poll(), self._make_room()
# fault: kernel/transport/forward.py: if user == "own" else [self._of_others] → if True else [self._of_others]
def test_other_users_of_this_machine_have_a_part_of_the_places_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """With requests that need no key, one after the other on each connection, one of them kept all others away."""
    others = set[int]()
    monkeypatch.setattr(forward, "MAX_CONNECTIONS", MOST)
    monkeypatch.setattr(forward, "MAX_OF_OTHERS", MOST - 1)
    monkeypatch.setattr(forward, "OTHERS_SECONDS", 0.0)
    monkeypatch.setattr(forward, "whose", lambda client, _: "another's" if client[1] in others else "own")
    connect = socket.create_connection

    def of_another(*at: Any) -> socket.socket:
        client = socket.socket()
        client.settimeout(20)
        client.bind(("127.0.0.1", 0))
        others.add(client.getsockname()[1])
        client.connect(at[0])
        return client

    with ExitStack() as stack:
        ends = Ends(stack, shared=True)
        monkeypatch.setattr(socket, "create_connection", of_another)
        held = [ends.served(b"%d" % n) for n in range(MOST - 1)]
        monkeypatch.setattr(socket, "create_connection", connect)
        waits = ends.client()
        until(lambda: len(ends.far) == MOST, 20, 0.01)
        monkeypatch.setattr(socket, "create_connection", of_another)
        late = ends.client()
        until(lambda: is_ended(late), 20, 0.01)
        # It gave way to none for whom there is no place.
        waits.sendall(b"mine")
        assert ends.far[-1].recv(100) == b"mine"
        waits.close()
        ends.far[-1].close()
        held[0].close()
        ends.far[0].close()
        until(lambda: len(ends.made._live) == MOST - 2, 20, 0.01)
        monkeypatch.setattr(socket, "create_connection", of_another)
        ends.served(b"another")


# fault: kernel/transport/forward.py: if user == "gone" or → if
# fault: kernel/transport/forward.py: if shared or local_port else 0 → if True else 0
@pytest.mark.parametrize("kind", ["gone", "another's"])
def test_who_gets_no_place_costs_no_word_with_the_host(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """One that connects and goes, again and again, kept each client of this user waiting for as long as it ran.

    A port that no person has chosen has no places for other users.
    """
    users = iter([*[kind] * 9, "own"])
    monkeypatch.setattr(forward, "whose", lambda *_: next(users))
    with ExitStack() as stack:
        ends = Ends(stack, shared=kind == "gone")
        for _ in range(9):
            ends.client()
        ends.served(b"mine")
        assert len(ends.far) == 1


# fault: kernel/transport/forward.py: (many and now - self._begun[0] < OTHERS_SECONDS) or → False or
# fault: kernel/transport/forward.py: < OTHERS_SECONDS) or → < OTHERS_SECONDS * 9) or
def test_other_users_begin_so_many_connections_within_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "MAX_OF_OTHERS", MOST)
    monkeypatch.setattr(forward, "whose", lambda *_: "another's")
    now = [7.0]
    monkeypatch.setattr(forward, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with ExitStack() as stack:
        ends = Ends(stack, shared=True)
        for n in range(MOST):
            ends.served(b"%d" % n).close()
            ends.far[n].close()
        until(lambda: not ends.made._live and ends.made._of_others._free._value == MOST, 20, 0.01)
        late = ends.client()
        until(lambda: is_ended(late), 20, 0.01)
        now[0] += forward.OTHERS_SECONDS
        ends.served(b"later")


# fault: kernel/transport/whose.py: "own" if found.user == os.getuid() else "another's" → "own" if found.user != os.getuid() else "another's"
# fault: kernel/transport/whose.py: and found.inode: → and True:
# fault: kernel/transport/whose.py: found.ports == (client[1], server[1]) → True
# fault: kernel/transport/whose.py: for interface in (0, LOOPBACK_INTERFACE): → for interface in (0,):
@pytest.mark.parametrize("at", ["127.0.0.1", "::ffff:127.0.0.1"])
@pytest.mark.parametrize("bound", [False, True], ids=["", "to the interface"])
def test_a_client_of_another_user_is_known(monkeypatch: pytest.MonkeyPatch, at: str, bound: bool) -> None:
    """A client by IPv6 was in another list of sockets than its server, and passed for one of the own user."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        client = stack.enter_context(socket.socket(socket.AF_INET6 if ":" in at else socket.AF_INET))
        if bound:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
        client.connect((at, server.getsockname()[1]))
        here, there = server.accept()
        stack.enter_context(here)

        def found() -> Whose:
            return whose(there, here)

        assert found() == "own"
        client.shutdown(socket.SHUT_WR)
        assert found() == "own", "one that waits for its answer"
        own = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: own + 1)
        assert found() == "another's"
        monkeypatch.setattr(os, "getuid", lambda: 0)
        client.close()
        assert found() == "gone"
        # Of this user, and at the same place.
        listens = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        monkeypatch.setattr(os, "getuid", lambda: own)
        assert whose(listens.getsockname(), here) == "gone", "who listens is no client"


# fault: kernel/transport/whose.py: if state == ESTABLISHED else → if False else
def test_a_client_behind_a_translation_of_addresses_has_a_place_of_others() -> None:
    """As from a container, or from Windows: the kernel knows its end by other addresses."""
    server = socket.create_server(("127.0.0.1", 0))
    with server, socket.create_connection(server.getsockname()), server.accept()[0] as here:
        assert whose(("127.0.0.9", 9), here) == "another's"


# fault: kernel/transport/whose.py: except AttributeError: → except ZeroDivisionError:
# fault: kernel/transport/whose.py: if not _socket_at(server, client): → if False:
# fault: kernel/transport/whose.py: if error.errno in NO_ROOM: → if True:
@pytest.mark.parametrize("lacks", ["the family of sockets", "the kernel's module", "an answer"])
def test_where_the_kernel_shows_no_users_each_client_is_served(monkeypatch: pytest.MonkeyPatch, lacks: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        if lacks == "the family of sockets":
            monkeypatch.delattr(socket, "AF_NETLINK")
        elif lacks == "the kernel's module":
            monkeypatch.setattr(whose_module, "_socket_at", lambda *_: None)
        else:
            monkeypatch.setattr(whose_module, "_REQUEST", 0)
        with server.accept()[0] as here:
            assert whose(client.getsockname(), here) == "own"


# fault: kernel/transport/whose.py: if error.errno in NO_ROOM: → if False:
def test_a_client_that_cannot_be_asked_for_is_not_taken_for_an_own_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    with socket.create_server(("127.0.0.1", 0)) as here:
        monkeypatch.setattr(socket, "socket", full)
        with pytest.raises(OSError, match="Too many"):
            whose(("127.0.0.1", 1), here)
