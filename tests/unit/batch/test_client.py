"""What becomes of answers that are too long or cut off, on a socket that sends them."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from vllm_cluster.batch import client
from vllm_cluster.batch.client import ApiAddress, ApiConnection


@contextmanager
def sending(*answers: bytes) -> Iterator[ApiConnection]:
    """A connection to a server that answers each request with the next of these, and then closes."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for answer in answers:
                with suppress(OSError), server.accept()[0] as peer:  # whoever has read enough closes
                    head = b""
                    while b"\r\n\r\n{}" not in head:
                        head += peer.recv(65536)
                    peer.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        connection = ApiConnection(ApiAddress(server.getsockname()[1], "k"), 30.0)
        try:
            yield connection
        finally:
            connection.close()
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def sized(status: str, body: bytes, length: int | None = None) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {length or len(body)}\r\n\r\n".encode() + body


def chunked(status: str, body: bytes, end: bytes) -> bytes:
    return f"HTTP/1.1 {status}\r\nTransfer-Encoding: chunked\r\n\r\n{len(body):x}\r\n".encode() + body + end


REASON = json.dumps({"error": {"message": "too long: " + "x" * (2 << 20)}}).encode()


# fault: batch/client.py: if reply.status == OK and not reply.isclosed(): → if not reply.isclosed():
@pytest.mark.parametrize(
    "answer",
    [sized("400 Bad Request", REASON), chunked("400 Bad Request", REASON, b"\r\n0\r\n\r\n")],
    ids=["sized", "chunked"],
)
def test_a_refusal_of_any_length_is_one_and_keeps_its_reason(answer: bytes) -> None:
    with sending(answer, sized("200 OK", b'{"id": "a"}')) as connection:
        refusal = connection.post("/v1/completions", {})
        assert (refusal.status, refusal.refused) == (400, True)
        assert refusal.message.startswith('{"error": {"message": "too long: xxx')
        # What is left of it is not taken for the next answer.
        assert connection.post("/v1/completions", {}).body == {"id": "a"}


def test_a_refusal_that_breaks_off_is_one() -> None:
    with sending(sized("404 Not Found", b"no such path", 100)) as connection:
        refusal = connection.post("/v1/completions", {})
        assert (refusal.status, refusal.refused, refusal.message) == (404, True, "no such path")


@pytest.mark.parametrize(
    "answer", [sized("200 OK", b'{"id": ', 100), chunked("200 OK", b'{"id": ', b"")], ids=["sized", "chunked"]
)
def test_an_answer_that_breaks_off_is_not_called_too_long(answer: bytes) -> None:
    with sending(answer) as connection:
        found = connection.post("/v1/completions", {})
        assert (found.status, found.message) == (0, "the answer was cut off after 7 bytes")


def test_an_answer_that_is_too_long_is_called_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_ANSWER", 1 << 20)
    for answer in (sized("200 OK", REASON), chunked("200 OK", REASON, b"\r\n0\r\n\r\n")):
        with sending(answer) as connection:
            found = connection.post("/v1/completions", {})
            assert (found.status, found.message) == (0, "the answer is longer than 1 MiB")
