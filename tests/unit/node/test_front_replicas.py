"""A replica that answers with what cannot be one: whoever has the port of one that has ended may be it."""

from __future__ import annotations

import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.fronted import behind, fronted, routed_to
from tests.support.waiting import until

pytestmark = pytest.mark.promise("P46")


# fault: serving/node/front_proxy.py: MAX_INTERIM = 16 → MAX_INTERIM = 1 << 40
@pytest.mark.parametrize("interim", ["100 Continue", "103 Early Hints"])
def test_interim_answers_without_end_are_refused(tmp_path: Path, interim: str) -> None:
    """The front had 210 MB of them after 16 s, and answered no other client for 5 s."""
    ends = time.monotonic() + 20

    def flood(connection: socket.socket) -> None:
        while time.monotonic() < ends:
            connection.sendall(f"HTTP/1.1 {interim}\r\n\r\n".encode() * 100)

    with behind(tmp_path, flood) as made:
        answer = made.ask("POST", "/v1/completions", {"model": "m"})
        assert (answer.status, answer.code) == (503, "replica_lost")
        assert time.monotonic() < ends - 5


def test_a_few_interim_answers_are_skipped(tmp_path: Path) -> None:
    few = b"HTTP/1.1 103 Early Hints\r\n\r\n" * 3 + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    with behind(tmp_path, lambda connection: connection.sendall(few)) as made:
        answer = made.ask("POST", "/v1/completions", {"model": "m"})
        assert (answer.status, answer.body) == (200, b"ok")


# fault: serving/node/front_proxy.py: except ValueError: → except KeyError:
@pytest.mark.parametrize("head", [b"200 \x1b[2J\xff", b"200 OK\r\nX: \x1b]0;x\x07\xff"])
def test_a_header_with_control_characters_is_an_error_of_the_replica(tmp_path: Path, head: bytes) -> None:
    raw = b"HTTP/1.1 " + head + b"\r\nContent-Length: 0\r\n\r\n"
    with behind(tmp_path, lambda connection: connection.sendall(raw)) as made:
        answer = made.ask("POST", "/v1/completions", {"model": "m"})
        assert (answer.status, answer.code) == (502, "replica_header")


# fault: serving/node/front_proxy.py: client = self._fresh if again else self._client → client = self._client
# fault: serving/node/front_proxy.py: aiohttp.ServerDisconnectedError | aiohttp.ClientOSError → aiohttp.ServerDisconnectedError
@pytest.mark.parametrize("reset", [False, True])
def test_a_request_is_asked_again_on_a_new_connection(tmp_path: Path, reset: bool) -> None:
    """Kept ones end together, where all have waited for as long: the second try met the next that had ended."""
    together = threading.Barrier(3)

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError, threading.BrokenBarrierError):
            connection.recv(1 << 16)
            if not together.broken:
                together.wait(10)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            # It has ended for what comes next, as if that had come too late.
            connection.recv(1 << 16)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", reset, 0))

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener, fronted(tmp_path) as made:
        threading.Thread(target=accept, daemon=True).start()
        made.put(routed_to(listener))
        until(lambda: made.ask("GET", "/ping", key=None).status == 200, 10)
        with ThreadPoolExecutor(3) as pool:
            assert [*pool.map(lambda _: made.ask("POST", "/v1/completions", {"model": "m"}).status, range(3))] == [
                200
            ] * 3
        together.abort()
        assert made.ask("POST", "/v1/completions", {"model": "m"}).status == 200
