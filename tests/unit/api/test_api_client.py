"""Answers that come piece by piece, refusals, and servers that break off, over real sockets."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.support.bounds import within
from vllm_cluster.kernel.clock import SYSTEM_CLOCK
from vllm_cluster.kernel.errors import HostError
from vllm_cluster.kernel.text import first_of
from vllm_cluster.serving.api import client
from vllm_cluster.serving.api.client import MAX_NAMES, Broken, Refused, Silent, get, model_names, post
from vllm_cluster.serving.head import key_file

EVENTS = [{"choices": [{"text": "a"}]}, {"choices": [{"text": "b"}]}]
STREAM = b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in EVENTS)


@contextmanager
def server(status: int, kind: str, *parts: bytes | threading.Event) -> Iterator[int]:
    """Answers every request with these parts; an event is waited for, and the answer ends without its last chunk."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def do_GET(self) -> None:
            assert self.headers["Authorization"].encode("latin-1").decode() in ("Bearer k", "Bearer \u20ac")
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for part in parts:
                if isinstance(part, threading.Event):
                    part.wait(60)
                    self.close_connection = True
                    return
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.wfile.write(b"0\r\n\r\n")

        def log_message(self, *_: object) -> None:
            pass

    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield made.server_address[1]
    finally:
        for part in parts:
            if isinstance(part, threading.Event):
                part.set()
        made.shutdown()
        thread.join()
        made.server_close()


def test_each_event_arrives_when_it_is_sent() -> None:
    gate = threading.Event()
    with server(200, "text/event-stream; charset=utf-8", STREAM, gate) as port:
        answer = post(port, "/v1/completions", {}, "k", 60)
        # The server is still waiting: nothing was held back for more.
        assert [next(answer), next(answer)] == EVENTS


def test_a_stream_ends_with_its_mark() -> None:
    with server(200, "text/event-stream", STREAM, b": a comment\n\ndata: [DONE]\n\n", b"data: never\n\n") as port:
        assert list(post(port, "/", {}, "k", 60)) == EVENTS


# fault: serving/api/client.py: page = document(raw, "the API") → page = json.loads(raw)
@pytest.mark.parametrize(
    "raw",
    [b'{"data": [' + b"[]," * 200_000 + b"0]}", b'{"data": NaN}', b'{"data": "\xff"}', b"[]", b"[" * 100_000, b""],
)
def test_a_page_of_another_form_is_an_empty_one(raw: bytes) -> None:
    with server(200, "application/json", raw) as port:
        assert get(port, "/v1/models", "k", 60) == (200, {})


# fault: serving/api/client.py: for row in rows[:MAX_NAMES] if → for row in rows if
# fault: serving/api/client.py:     id: ServedName →     id: str
def test_names_of_models_are_bounded() -> None:
    rows = [{"id": "org/model"}, {"id": "fix: touch x"}, {"id": 1}, 2, *({"id": f"lora-{n}"} for n in range(5000))]
    found = model_names({"data": rows})
    assert (found[:2], len(found)) == (["org/model", "lora-0"], MAX_NAMES - 3)
    assert model_names({}) == model_names({"data": "x"}) == []
    assert first_of(found) == f"org/model, {', '.join(f'lora-{n}' for n in range(9))} and {MAX_NAMES - 13} more"


def test_an_answer_without_a_stream_is_one_event() -> None:
    with server(200, "application/json", json.dumps(EVENTS[0]).encode()) as port:
        assert list(post(port, "/", {}, "k", 60)) == EVENTS[:1]


@pytest.mark.parametrize(
    ("status", "raw", "message"),
    [
        (400, json.dumps({"error": {"message": "too long", "code": 400}}).encode(), "too long"),
        (401, json.dumps({"error": "Unauthorized"}).encode(), "Unauthorized"),
        (502, b"<html>bad gateway</html>", "<html>bad gateway</html>"),
        (500, b"[" * 100_000, "[" * 500),
    ],
)
def test_a_refusal_has_the_words_of_the_server(status: int, raw: bytes, message: str) -> None:
    with server(status, "application/json", raw) as port, pytest.raises(Refused) as caught:
        list(post(port, "/", {}, "k", 60))
    assert (caught.value.status, caught.value.message) == (status, message)


def test_an_error_within_a_stream_is_a_refusal() -> None:
    error = b'data: {"error": {"message": "engine died", "code": 500}}\n\ndata: [DONE]\n\n'
    seen: list[object] = []
    with server(200, "text/event-stream", STREAM, error) as port, pytest.raises(Refused, match="engine died") as caught:
        seen.extend(post(port, "/", {}, "k", 60))
    assert caught.value.status == 500


@pytest.mark.parametrize(
    "last", [b"", b"data: {\n\n", b"data: 7\n\n"], ids=["no end", "half an event", "another document"]
)
def test_an_answer_that_breaks_off_is_an_error(last: bytes) -> None:
    parts = [STREAM, last] if last else [STREAM]
    with server(200, "text/event-stream", *parts) as port, pytest.raises(Broken):
        list(post(port, "/", {}, "k", 60))


def test_a_connection_that_ends_in_the_middle_is_broken() -> None:
    ended = threading.Event()
    ended.set()
    with server(200, "text/event-stream", STREAM, ended) as port, pytest.raises(Broken):
        list(post(port, "/", {}, "k", 60))


def test_a_port_without_a_listener() -> None:
    with server(200, "text/event-stream") as port:
        pass
    with pytest.raises(Broken, match="refused"):
        list(post(port, "/", {}, "k", 60))


def test_silence_has_an_end() -> None:
    with (
        server(200, "text/event-stream", STREAM, threading.Event()) as port,
        pytest.raises(Silent, match=r"no token for 0\.2 s|no token for 0 s"),
    ):
        list(post(port, "/", {}, "k", 0.2))


BEGUN = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
NO_ENDS = {
    "a status": (b"", b"H"),
    "other statuses": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "a header": (b"HTTP/1.1 200 OK\r\nX: ", b"x"),
    "a content": (BEGUN + b"Content-Length: 1000000\r\n\r\n", b"x"),
    "comments": (BEGUN + b"\r\n", b": x\n"),
    "a chunk": (BEGUN + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
}


# fault: serving/api/client.py: if left <= 0: → if False:
@pytest.mark.timeout(30)
@pytest.mark.parametrize(("begin", "piece"), NO_ENDS.values(), ids=NO_ENDS)
def test_a_byte_at_a_time_gains_no_time(begin: bytes, piece: bytes) -> None:
    """Also from a server that sends its pieces as fast as it can: each byte buys a little time, up to a limit."""
    for pause in (0.05, 0.0):
        # Of what comes fast a page may be read to its limit.
        ended = suppress(Broken) if pause == 0.0 else pytest.raises(Broken)
        with dripping(begin, piece, pause) as port, pytest.MonkeyPatch.context() as changed:
            changed.setattr(client, "SLOWEST", 2e7)
            with within(10), ended:
                get(port, "/", "k", 0.3)
            with within(10), pytest.raises((Broken, Silent)):
                list(post(port, "/", {}, "k", 0.3))


# fault: serving/api/client.py: _Connection(port, seconds, 0) → _Connection(port, seconds, MAX_PAGE)
@pytest.mark.timeout(15)
def test_a_page_comes_within_its_seconds_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one that came at its slowest `vcluster endpoint` waited 115 s."""
    begin = b"HTTP/1.1 200 OK\r\nContent-Length: 3000000\r\n\r\n"
    monkeypatch.setattr(client, "SLOWEST", 100)
    with dripping(begin, b" " * 100, 0.05) as port, pytest.raises(Broken):
        get(port, "/", "k", 0.3)


# fault: serving/api/client.py: self.settimeout(left) → pass
@pytest.mark.timeout(30)
def test_no_wait_for_a_byte_outlives_the_limit() -> None:
    near, far = socket.socketpair()
    waiting = client._Socket(fileno=near.detach())
    waiting.settimeout(20)
    waiting.end = SYSTEM_CLOCK.monotonic() + 0.1
    late = threading.Timer(2, far.send, [b"x"])
    late.start()
    with far, waiting, pytest.raises(TimeoutError):
        waiting.recv_into(bytearray(1))
    late.cancel()


@contextmanager
def dripping(begin: bytes, piece: bytes, pause: float) -> Iterator[int]:
    """A server whose answers do not end."""
    over = threading.Event()

    def answer(peer: socket.socket) -> None:
        with peer, suppress(OSError):
            peer.recv(65536)
            peer.sendall(begin)
            while not over.is_set():
                peer.sendall(piece * (1 if pause else 1000))
                over.wait(pause)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threads.append(threading.Thread(target=answer, args=(made.accept()[0],)))
                threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as made:
        threads = [threading.Thread(target=accept)]
        threads[0].start()
        try:
            yield made.getsockname()[1]
        finally:
            over.set()
            made.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()


# fault: serving/api/client.py: document(raw, "the answer", most.bytes, most.values) → json.loads(raw)
# fault: serving/api/client.py: MAX_VALUES + count * TOKEN_VALUES → MAX_VALUES
@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
@pytest.mark.parametrize("asked", [{}, {"prompt_logprobs": 5}, {"logprobs": True, "top_logprobs": 20, "stream": True}])
def test_an_answer_takes_little_memory(kind: str, asked: dict[str, object]) -> None:
    """3 MB of empty lists became 100 MB here; an answer with logprobs could have 256 MB of them, and took 5 GB."""
    raw = b'{"choices": [' + b"[]," * 1_000_000 + b"0]}"
    line = b"data: " + raw + b"\n\n" if kind == "text/event-stream" else raw
    with server(200, kind, line) as port, within(60, megabytes=60), pytest.raises(Broken, match="JSON document"):
        list(post(port, "/", asked, "k", 60))
    # What a long prompt asks for is as long.
    with server(200, kind, line) as port:
        choices = next(post(port, "/", {"prompt_logprobs": 1, "prompt": "x" * 110_000}, "k", 60))["choices"]
        assert isinstance(choices, list)
        assert len(choices) == 1_000_001


def test_a_key_that_a_person_has_thought_up_may_have_any_letter() -> None:
    with server(200, "application/json", json.dumps(EVENTS[0]).encode()) as port:
        assert list(post(port, "/", {}, "\u20ac", 60)) == EVENTS[:1]
        assert get(port, "/", "\u20ac", 60) == (200, EVENTS[0])


# fault: serving/head.py: not found.key.isprintable() → False
@pytest.mark.parametrize("content", [b"", b"a\nb", b"a\r\nX: y", b"a\x1b[31m", b" a", b"\xff", b"k" * 5000])
def test_a_file_without_a_key_is_an_error_of_its_host(content: bytes) -> None:
    """It ended in a traceback where it became a header, and steered the terminal where it was printed."""
    with pytest.raises(HostError, match="gpu1: key: the file of the API key holds none"):
        key_file(content, "gpu1")
    assert key_file("\u20ac1".encode(), "gpu1").key == "\u20ac1"
