"""A port of the host on this machine."""

from __future__ import annotations

import os
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress

import pytest

from tests.support.carriers import REMOTE, Client
from tests.support.ports import free_port, is_ended
from tests.support.sshd import Sshd
from tests.support.waiting import until
from vllm_cluster.kernel.errors import HostError, UsageError, VclusterError
from vllm_cluster.kernel.events import Event
from vllm_cluster.kernel.hosts.connection import HostConnection
from vllm_cluster.kernel.transport import Kind, forward
from vllm_cluster.kernel.transport.base import Transport
from vllm_cluster.serving.endpoint.tunnel import Passage
from vllm_cluster.wire.status import ServeStatus


class Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while data := self.request.recv(1 << 16):
            self.request.sendall(data)
        self.request.sendall(b"end")


class Leaving(socketserver.BaseRequestHandler):
    """Sends all that it has, and takes what comes."""

    def handle(self) -> None:
        self.request.sendall(b"end")
        self.request.shutdown(socket.SHUT_WR)
        while self.request.recv(1 << 16):
            pass


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


@pytest.fixture(scope="module")
def echo_port() -> Iterator[int]:
    with Server(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def feed(sock: socket.socket, data: bytes) -> None:
    sock.sendall(data)
    sock.shutdown(socket.SHUT_WR)


def exchange(port: int, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 10) as sock:
        feeder = threading.Thread(target=feed, args=(sock, data))
        feeder.start()
        parts = []
        while got := sock.recv(1 << 16):
            parts.append(got)
        feeder.join()
        return b"".join(parts)


def is_gone(host: Transport) -> bool:
    try:
        host.require_alive()
    except HostError:
        return True
    return False


def test_connections_come_out_on_the_host(host: Transport, echo_port: int) -> None:
    forward = host.forward(echo_port)
    data = os.urandom(4 << 20)
    assert exchange(forward.local_port, data) == data + b"end"
    answers: list[bytes] = []
    threads = [
        threading.Thread(target=lambda n=n: answers.append(exchange(forward.local_port, b"%d" % n))) for n in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == sorted(b"%dend" % n for n in range(12))
    forward.close()
    forward.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", forward.local_port), 5)


def test_the_local_port_can_be_chosen(host: Transport, echo_port: int) -> None:
    port = free_port()
    forward = host.forward(echo_port, port, remote_host="localhost")
    assert forward.local_port == port
    assert exchange(port, b"x") == b"xend"
    forward.close()


def test_a_taken_port_is_reported(host: Transport, echo_port: int) -> None:
    with pytest.raises(UsageError, match=str(echo_port)):
        host.forward(1, echo_port)


# fault: kernel/transport/forward.py: logging.getLogger(__name__).debug("%s: %s", self._host, error) → self.close()
@pytest.mark.parametrize("kind", REMOTE)
def test_a_port_stays_taken_when_its_connection_breaks(
    kind: Kind, connect: Callable[..., Transport], client: Client, server: Sshd, echo_port: int
) -> None:
    """Clients send the key to it until they learn of the break: no other program of this machine may get that."""
    client.add("h", server)
    host = connect(client.target("h"), kind)
    forward = host.forward(echo_port)
    assert exchange(forward.local_port, b"x") == b"xend"
    server.drop_connections()
    until(lambda: is_gone(host))
    with socket.create_connection(("127.0.0.1", forward.local_port), 10) as sock, suppress(ConnectionResetError):
        assert sock.recv(1) == b""
    with pytest.raises(OSError, match="in use"):
        socket.create_server(("127.0.0.1", forward.local_port))
    forward.close()
    socket.create_server(("127.0.0.1", forward.local_port)).close()


def test_a_closed_port_of_the_host_closes_the_connection(host: Transport) -> None:
    forward = host.forward(free_port())
    try:
        with socket.create_connection(("127.0.0.1", forward.local_port), 10) as sock:
            assert sock.recv(1) == b""
    except ConnectionResetError:
        pass
    forward.close()


# fault: kernel/transport/forward.py: oldest.end() → pass
def test_silent_connections_do_not_keep_a_client_away(
    host: Transport, echo_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward, "MAX_CONNECTIONS", 16)
    with closing(host.forward(echo_port)) as made, ExitStack() as stack:
        for _ in range(2):
            for _ in range(16):
                stack.enter_context(socket.create_connection(("127.0.0.1", made.local_port), 20))
            assert exchange(made.local_port, b"x") == b"xend"


# fault: kernel/transport/forward.py: self._asks_no_more.wait(LINGER_SECONDS) → self._asks_no_more.wait(LINGER_SECONDS * 900)
def test_a_connection_that_the_host_has_ended_is_not_kept(host: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "LINGER_SECONDS", 0.2)
    with Server(("127.0.0.1", 0), Leaving) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        with (
            closing(host.forward(server.server_address[1])) as made,
            socket.create_connection(("127.0.0.1", made.local_port), 20) as client,
        ):
            assert (client.recv(3), client.recv(1)) == (b"end", b"")
            until(lambda: is_ended(client), 20)
        server.shutdown()


def model(phase: str, port: int, host: str = "127.0.0.1") -> ServeStatus:
    """What a node reports of its model."""
    return ServeStatus("1", "m", "m", host, port, phase, "", None, 0.0, 1, (1, 1), None, None, None, None)  # type: ignore[arg-type]


def hold(passage: Passage, events: list[Event]) -> VclusterError:
    """Watch until the connection breaks."""
    with pytest.raises(VclusterError) as caught:
        passage.hold(events.append)
    return caught.value


@pytest.mark.promise("P37")
@pytest.mark.parametrize("kind", REMOTE)
def test_a_tunnel_ends_with_a_reason_when_its_connection_does(
    kind: Kind, connect: Callable[..., Transport], client: Client, server: Sshd, echo_port: int
) -> None:
    client.add("h", server)
    link = HostConnection("h", connect(client.target("h"), kind))
    passage = Passage(link, free_port(), lambda: model("ready", echo_port))
    assert exchange(passage.port, b"x") == b"xend"
    threading.Timer(0.5, server.drop_connections).start()
    started = time.monotonic()
    error = hold(passage, [])
    assert time.monotonic() - started < 30
    assert (error.exit_code, str(error.hint)) == (1, "vcluster endpoint --tunnel")
    assert error.message.startswith("h: tunnel: the connection to ")
    passage.close()


@pytest.mark.promise("P37")
@pytest.mark.parametrize("kind", REMOTE)
def test_a_tunnel_through_which_nothing_passes_is_an_error(
    kind: Kind, connect: Callable[..., Transport], client: Client, server: Sshd
) -> None:
    client.add("h", server)
    link = HostConnection("h", connect(client.target("h"), kind))
    with pytest.raises(
        HostError, match=r"h: tunnel: cannot reach 127\.0\.0\.1:\d+ through SSH, though m is ready there"
    ):
        Passage(link, port := free_port(), lambda: model("ready", port))


@pytest.mark.promise("P37")
@pytest.mark.parametrize("kind", REMOTE)
def test_an_api_that_goes_away_and_comes_back_is_reported(
    kind: Kind, connect: Callable[..., Transport], client: Client, server: Sshd
) -> None:
    client.add("h", server)
    link = HostConnection("h", connect(client.target("h"), kind))
    port = free_port()
    passage = Passage(link, port, lambda: model("loading", port))
    events: list[Event] = []

    def emit(event: Event) -> None:
        events.append(event)
        if "yet" in event.text:
            shown.append(Server(("127.0.0.1", port), Echo))
            threading.Thread(target=shown[0].serve_forever, args=(0.02,), daemon=True).start()
        elif "again" in event.text:
            shown[0].shutdown()
            shown[0].server_close()
        else:
            server.drop_connections()

    shown: list[Server] = []
    with pytest.raises(VclusterError, match="tunnel: the connection to "):
        passage.hold(emit)
    words = [event.text.split(": ")[0] for event in events]
    assert words == [
        "no API answers yet",
        "the API answers again",
        "the API has stopped answering",
    ]
    passage.close()


# fault: serving/endpoint/tunnel.py: (place := self._place_of(serve)) != → (place := self._place_of(serve)) ==
@pytest.mark.promise("P37")
@pytest.mark.parametrize("kind", REMOTE)
def test_an_api_on_another_port_is_followed(
    kind: Kind, connect: Callable[..., Transport], client: Client, server: Sshd, echo_port: int
) -> None:
    client.add("h", server)
    link = HostConnection("h", connect(client.target("h"), kind))
    at = free_port()
    passage = Passage(link, at, lambda: model("loading", at))
    first = passage.port

    def look() -> None:
        try:
            until(lambda: passage.port != first and exchange(passage.port, b"x") == b"xend", 20)
        finally:
            server.drop_connections()

    at = echo_port
    looking = threading.Thread(target=look)
    looking.start()
    hold(passage, [])
    looking.join()
    assert passage.port != first
    socket.create_server(("127.0.0.1", first)).close()
    passage.close()


# fault: serving/endpoint/tunnel.py: if (now := self._key_at_end()) != self.key_id: → if False:
@pytest.mark.promise("P37")
@pytest.mark.parametrize("kind", REMOTE)
def test_another_key_at_the_end_of_an_open_tunnel_is_reported_once(
    kind: Kind, connect: Callable[..., Transport], client: Client, server: Sshd, echo_port: int
) -> None:
    """A rotation interrupts nothing: the way stays, and the key that may go there is another one from then on."""
    client.add("h", server)
    link = HostConnection("h", connect(client.target("h"), kind))
    ids = ["of the first", "of the second", "of the second"]
    seen = list[tuple[str, bytes]]()

    def key_at_end() -> str:
        if len(ids) == 1:
            server.drop_connections()
        return ids.pop(0) if len(ids) > 1 else ids[0]

    passage = Passage(link, free_port(), lambda: model("ready", echo_port), key_at_end)
    assert passage.key_id == "of the first"
    with pytest.raises(VclusterError, match="tunnel: the connection to "):
        passage.hold(lambda _: None, renewed=lambda now: seen.append((now, exchange(passage.port, b"x"))))
    assert seen == [("of the second", b"xend")]
    assert passage.key_id == "of the second"
    passage.close()
