"""A port of the host on this machine."""

from __future__ import annotations

import os
import socket
import socketserver
import threading
from collections.abc import Iterator

import pytest

from tests.support.sshd import free_port
from vllm_cluster.core.errors import UsageError
from vllm_cluster.transport.base import Transport


class Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while data := self.request.recv(1 << 16):
            self.request.sendall(data)
        self.request.sendall(b"end")


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


@pytest.fixture(scope="module")
def echo_port() -> Iterator[int]:
    with Server(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
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


def test_a_taken_port_is_named(host: Transport, echo_port: int) -> None:
    with pytest.raises(UsageError, match=str(echo_port)):
        host.forward(1, echo_port)


def test_a_closed_port_of_the_host_closes_the_connection(host: Transport) -> None:
    forward = host.forward(free_port())
    try:
        with socket.create_connection(("127.0.0.1", forward.local_port), 10) as sock:
            assert sock.recv(1) == b""
    except ConnectionResetError:
        pass
    forward.close()
