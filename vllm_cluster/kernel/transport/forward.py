"""A local listening port whose connections are forwarded over streams."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from vllm_cluster.kernel.errors import HostError, PortInUse
from vllm_cluster.kernel.listeners import LOOPBACK
from vllm_cluster.kernel.shell_line import listener_line
from vllm_cluster.kernel.transport.whose import Address, whose

# Two threads each; more connections wait in the queue of the socket.
MAX_CONNECTIONS = 512
# Of them those of other users of this machine, together: an API's connections are kept open for more requests, and
# one that only holds a place looks as they do.
MAX_OF_OTHERS = 128
# And as many new ones within these seconds: each costs a thread and a word with the host, also one that goes at once.
OTHERS_SECONDS = 2.0
CHUNK = 65_536
PAUSE_MS = 100
UNAVAILABLE = 503
# In the queue: one that asks again and again fills it while this process does something else.
BACKLOG = 1024
# So long what a client still sends is taken once its answer is there.
LINGER_SECONDS = 2.0


class _Place(Protocol):
    """What is given back once a connection has ended."""

    def release(self) -> None: ...


class Pipe(Protocol):
    """The far end of one forwarded connection."""

    def sendall(self, data: bytes, /) -> None: ...
    def recv(self, size: int, /) -> bytes: ...
    def shutdown_write(self) -> None: ...
    def close(self) -> None: ...


class SocketPipe:
    """A plain socket as the far end."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.sendall = sock.sendall
        self.recv = sock.recv

    @classmethod
    def dial(cls, host: str, port: int, seconds: float) -> SocketPipe:
        """Connect within these seconds; what goes through may be silent for as long as it lasts.

        Raises:
            OSError: nothing answers there.
        """
        sock = socket.create_connection((host, port), seconds)
        sock.settimeout(None)
        return cls(sock)

    def shutdown_write(self) -> None:
        """Close the sending direction."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """End it and wake who reads from it."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()


class Away:
    """The far end of a connection while there is none: a client of HTTP gets an answer that it may ask again."""

    def __init__(self, why: str, seconds: float) -> None:
        body = json.dumps({"error": {"message": why, "type": "vcluster_tunnel", "code": UNAVAILABLE}}).encode()
        lines = ["HTTP/1.1 503 Service Unavailable", "Content-Type: application/json", f"Retry-After: {seconds:.0f}"]
        lines += [f"Content-Length: {len(body)}", "Connection: close", "", ""]
        self._left = "\r\n".join(lines).encode() + body

    def sendall(self, data: bytes, /) -> None:
        """Take what the client asks: an unread request would break the connection before the answer is read."""

    def recv(self, size: int, /) -> bytes:
        """The answer."""
        part, self._left = self._left[:size], self._left[size:]
        return part

    def shutdown_write(self) -> None:
        """There is nothing to end."""

    def close(self) -> None:
        """There is nothing to end."""


class _Forwarded:
    """One client and the far end of its connection, until one of them has gone."""

    def __init__(self, near: Pipe, far: Pipe) -> None:
        self._near, self._far = near, far
        self._has_asked, self._is_answered = False, False
        self._asks_no_more = threading.Event()

    @property
    def may_go(self) -> bool:
        """Whether its client has sent nothing, or its far end has sent all."""
        return not self._has_asked or self._is_answered

    def end(self) -> None:
        """End both sides and wake who waits for them."""
        self._near.close()
        self._far.close()

    def run(self) -> None:
        """Forward in both directions until nothing more can come back."""
        back = threading.Thread(target=self._guarded, args=(self._answer,), daemon=True)
        back.start()
        self._guarded(self._ask)
        self._asks_no_more.set()
        back.join()
        self.end()

    def _guarded(self, pump: Callable[[], None]) -> None:
        try:
            pump()
        except (OSError, HostError):
            # One direction broke: without an end of both, the other would wait without end.
            self.end()

    def _ask(self) -> None:
        while data := self._near.recv(CHUNK):
            self._has_asked = True
            self._far.sendall(data)
        self._far.shutdown_write()

    def _answer(self) -> None:
        while data := self._far.recv(CHUNK):
            self._near.sendall(data)
        self._near.shutdown_write()
        self._is_answered = True
        # What the client still sends is taken: an answer is lost where its connection is reset.
        self._asks_no_more.wait(LINGER_SECONDS)
        self.end()


class _OfOthers:
    """The places that other users of this machine have; none where a port is for this program alone."""

    def __init__(self, number: int) -> None:
        self._free = threading.Semaphore(number)
        self._begun: deque[float] = deque(maxlen=MAX_OF_OTHERS)

    def take(self) -> bool:
        """Take one, unless all are taken, or were within the last seconds."""
        now, many = time.monotonic(), len(self._begun) == MAX_OF_OTHERS
        if (many and now - self._begun[0] < OTHERS_SECONDS) or not self._free.acquire(blocking=False):
            return False
        self._begun.append(now)
        return True

    def release(self) -> None:
        """Give it back."""
        self._free.release()


class LoopbackForward:
    """Accepts on 127.0.0.1 and forwards each connection through a pipe of its own.

    Every user of this machine may connect: where there are too many, the oldest goes whose client waits for nothing.
    Those of other users have a part of the places of a port that a person chose, or that is `shared`, and else none;
    one for which there is none is closed.
    """

    def __init__(self, host: str, dial: Callable[[], Pipe], local_port: int = 0, *, shared: bool = False) -> None:
        self._host = host
        self._dial = dial
        self._slots = threading.Semaphore(MAX_CONNECTIONS)
        self._of_others = _OfOthers(MAX_OF_OTHERS if shared or local_port else 0)
        self._lock = threading.Lock()
        # In the order in which they came.
        self._live: dict[_Forwarded, None] = {}
        self._closed = False
        self._listener = listener(local_port)
        self._port: int = self._listener.getsockname()[1]
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._accept, daemon=True, name=f"forward-{host}")
        self._thread.start()

    @property
    def local_port(self) -> int:
        """The port here."""
        return self._port

    def close(self) -> None:
        """Stop listening and end every connection."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            live = list(self._live)
        self._wake.close()
        for one in live:
            one.end()
        self._thread.join()
        self._woken.close()
        self._listener.close()

    def _accept(self) -> None:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        closing = select.poll()
        closing.register(self._woken, select.POLLIN)
        while True:
            poll.poll()
            if self._closed:
                return
            sock = None
            try:
                sock, client = self._listener.accept()
                if not self._admit(sock, client):
                    sock.close()
            except (OSError, RuntimeError):
                # Without a free file descriptor the connection stays in the queue, and the poll returns at once; where
                # no thread can be started it ends.
                if sock:
                    sock.close()
                self._make_room()
                closing.poll(PAUSE_MS)

    def _admit(self, sock: socket.socket, client: Address) -> bool:
        """Serve a connection once there is a place; False where it gets none.

        Raises:
            RuntimeError: no thread can be started.
        """
        # Before anyone gives way to it, and before it costs a thread. To one that has gone nothing can be answered.
        user = whose(client, sock)
        if user == "gone" or (user != "own" and not self._of_others.take()):
            return False
        places: list[_Place] = [] if user == "own" else [self._of_others]
        try:
            if self._take_slot():
                places.append(self._slots)
                threading.Thread(target=self._serve, args=(sock, tuple(places)), daemon=True).start()
                places.clear()
                return True
        finally:
            for place in places:
                place.release()
        return False

    def _take_slot(self) -> bool:
        """Wait until one more connection may be served; False once this is closed."""
        seconds = 0.0
        while not self._closed:
            if self._slots.acquire(timeout=seconds):
                return True
            self._make_room()
            seconds = PAUSE_MS / 1000
        return False

    def _make_room(self) -> None:
        with self._lock:
            oldest = next((one for one in self._live if one.may_go), None)
            if oldest:
                del self._live[oldest]
        if oldest:
            oldest.end()

    def _serve(self, sock: socket.socket, places: tuple[_Place, ...]) -> None:
        try:
            self._forward(SocketPipe(sock))
        finally:
            for place in places:
                place.release()

    def _forward(self, near: Pipe) -> None:
        try:
            far = self._dial()
        except Exception as error:  # after any error of the carrier, the one sign to the caller is a closed connection
            logging.getLogger(__name__).debug("%s: %s", self._host, error)
            near.close()
            return
        connection = _Forwarded(near, far)
        with self._lock:
            self._live[connection] = None
            if self._closed:
                connection.end()
        try:
            connection.run()
        except RuntimeError as error:  # no further thread can be started
            logging.getLogger(__name__).debug("%s: no answer is carried: %s", self._host, error)
        finally:
            connection.end()
            with self._lock:
                self._live.pop(connection, None)


def listener(local_port: int) -> socket.socket:
    """A socket that listens on 127.0.0.1; port 0 takes a free one."""
    try:
        return socket.create_server((LOOPBACK, local_port), backlog=BACKLOG)
    except OSError as error:
        # The text of `create_server` repeats the address as Python writes it.
        why = os.strerror(error.errno or 0)
        hint = f"{listener_line(local_port)} shows which program listens there"
        raise PortInUse(f"cannot listen on 127.0.0.1:{local_port}: {why}", hint=hint) from None
