"""A replica that answers with what cannot be one: whoever has the port of one that has ended may be it."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.fronted import Fronted, behind, fronted, read_answer, request, routed_to
from tests.support.waiting import until

pytestmark = pytest.mark.promise("P46")


# fault: serving/node/front_replica.py: if self._asked and self._came > _LIMIT: → if False:
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


WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@contextmanager
def endless(
    folder: Path, first: bytes, more: bytes, begin: threading.Event | None = None
) -> Iterator[tuple[Fronted, list[bool]]]:
    """A front whose replica answers so, and then sends more for 10 s; and whether each of its connections was ended."""
    ended: list[bool] = []
    until_then = time.monotonic() + 10

    def answer(connection: socket.socket) -> None:
        connection.sendall(first)
        try:
            if begin:
                begin.wait(10)
            while time.monotonic() < until_then:
                connection.sendall(more)
        except OSError:
            ended.append(True)
            raise
        ended.append(False)

    with behind(folder, answer) as made:
        yield made, ended


# fault: serving/node/front_replica.py: if not self._asked and (self._body is None or self._body.is_eof()): → if False:
@pytest.mark.parametrize("more", [WHOLE * 6000, b"\r\n" * 50_000])
def test_what_no_request_has_asked_for_ends_the_connection(tmp_path: Path, more: bytes) -> None:
    """Sixteen idle connections took 2.4 GB of answers behind the answer, and no client was answered for 20 s."""
    idle = threading.Event()
    with endless(tmp_path, WHOLE, more, idle) as (made, ended):
        assert made.process
        before = memory(made.process.pid)
        answer = made.ask("POST", "/v1/completions", {"model": "m"})
        assert (answer.status, answer.body) == (200, b"ok")
        idle.set()
        # Sooner than a kept connection ends.
        until(lambda: ended == [True], 3)
        assert memory(made.process.pid) - before < 20_000, "kB"
        assert made.ask("GET", "/ping", key=None).status == 200


# fault: serving/node/front_replica.py: self._came > MAX_FRAMING + 2 * body.total_bytes → False
@pytest.mark.parametrize("more", [b"1\r\na\r\n" * 40_000, b"0" * 200_000, b"2;" + b"x" * 200_000])
def test_an_answer_that_is_mostly_framing_ends(tmp_path: Path, more: bytes) -> None:
    """With 64 of them the front answered no other client for 30 s."""
    with endless(tmp_path, CHUNKED, more) as (made, ended):
        with made.connect() as client:
            client.sendall(request("POST", "/v1/completions", {"model": "m"}))
            client.settimeout(8)
            while client.recv(1 << 16):
                pass
        until(lambda: ended == [True], 5)


# fault: serving/node/front_replica.py: self.transport.pause_reading() → pass
@pytest.mark.parametrize(("size", "number"), [(1, 4_000), (8, 100_000), (200, 20_000)])
def test_an_answer_in_small_chunks_is_whole(tmp_path: Path, size: int, number: int) -> None:
    """Also where its client reads slowly: what is parsed then is less than what has come."""
    raw = CHUNKED + (b"%x\r\n" % size + b"a" * size + b"\r\n") * number + b"0\r\n\r\n"
    with behind(tmp_path, lambda connection: connection.sendall(raw)) as made, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(30)
        client.connect(("127.0.0.1", made.port))
        client.sendall(request("POST", "/v1/completions", {"model": "m"}))
        assert read_answer(client).body == b"a" * size * number


# fault: serving/node/front_replica.py: asyncio.get_running_loop().call_soon(self._take) → self._take()
def test_floods_of_chunks_keep_no_other_client_out(tmp_path: Path) -> None:
    """From 200 streams they did so for more than a minute."""
    ends = time.monotonic() + 8

    def flood(connection: socket.socket) -> None:
        connection.sendall(CHUNKED)
        while time.monotonic() < ends:
            connection.sendall(b"14\r\naaaaaaaaaaaaaaaaaaaa\r\n" * 10_000)

    with behind(tmp_path, flood, at_once=True) as made:
        clients = [made.connect() for _ in range(64)]
        for client in clients:
            client.sendall(request("POST", "/v1/completions", {"model": "m"}))
        waits = []
        while time.monotonic() < ends:
            began = time.monotonic()
            assert made.ask("GET", "/ping", key=None).status == 200
            waits.append(time.monotonic() - began)
        for client in clients:
            client.close()
    assert sorted(waits)[len(waits) // 2] < 1.5


# fault: serving/node/front_replica.py: if self._asked and self._came > _LIMIT: → if False:
@pytest.mark.parametrize("head", [b"A: b\r\n" * 40_000, b"\r\n" * 100_000])
def test_an_endless_head_is_refused(tmp_path: Path, head: bytes) -> None:
    with endless(tmp_path, b"HTTP/1.1 200 OK\r\n" if head[0] == 65 else b"", head) as (made, ended):
        answer = made.ask("POST", "/v1/completions", {"model": "m"})
        assert (answer.status, answer.code) == (503, "replica_lost")
        until(lambda: True in ended, 5)


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


def memory(pid: int) -> int:
    """The most that a process has held, in kB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
