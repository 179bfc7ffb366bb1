"""The port of a tunnel, to which every user of this machine may connect."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.bounds import open_files
from vllm_cluster.kernel.transport.forward import MAX_CONNECTIONS
from vllm_cluster.serving.endpoint.relay import Relay

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


class Api(socketserver.BaseRequestHandler):
    """A far end that waits for a request without a limit."""

    def handle(self) -> None:
        while self.request.recv(1 << 16):
            self.request.sendall(ANSWER)


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 1024


@pytest.fixture
def api() -> Iterator[int]:
    """The port of it."""
    with Server(("127.0.0.1", 0), Api) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


# fault: kernel/transport/forward.py: oldest.end() → pass
# fault: kernel/transport/forward.py: return not self._has_asked or self._is_answered → return self._is_answered
@pytest.mark.parametrize("answers", [True, False])
def test_silent_connections_of_other_users_do_not_keep_a_client_away(api: int, answers: bool) -> None:
    """512 of them took all there is, whether the head answered or was away, for as long as they were held."""
    way = SimpleNamespace(host="gpu1", port=api, answers=answers)
    with open_files(8 * MAX_CONNECTIONS), closing(Relay(0, 5.0)) as relay, ExitStack() as stack:

        def opened() -> socket.socket:
            return stack.enter_context(socket.create_connection(("127.0.0.1", relay.port), 20))

        stack.enter_context(relay.leading_to(cast(Any, way)))
        for _ in range(2):
            for _ in range(MAX_CONNECTIONS):
                opened()
            client = opened()
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert client.recv(12) == (b"HTTP/1.1 200" if answers else b"HTTP/1.1 503")
