"""What one client or one replica takes of the front: however much that is, the others have their answers."""

from __future__ import annotations

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.fronted import KEY, Fronted, behind, fronted, read_answer, request
from vllm_cluster.serving.node.front_body import read_body
from vllm_cluster.serving.node.front_held import Exchange, HeldBodies
from vllm_cluster.serving.node.front_refusal import FrontRefusal
from vllm_cluster.serving.node.front_routes import Table
from vllm_cluster.serving.node.front_settings import MAX_BODY, MAX_HELD
from vllm_cluster.wire.front import FrontDeployment, FrontRoutes

pytestmark = pytest.mark.promise("P46")

CHUNKED = (
    f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
    "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
).encode()
BEGIN, END = b'{"model": "m", "stream": true, "max_tokens": 100000, "prompt": "', b'"}'


def large(made: Fronted, size: int, missing: int) -> socket.socket:
    """A client whose body has so many bytes, of which some do not come."""
    body = BEGIN + b"a" * (size - len(BEGIN) - len(END)) + END
    raw = request("POST", "/v1/completions", body)
    client = made.connect()
    client.sendall(raw[: len(raw) - missing])
    if not missing:
        assert client.recv(40).startswith(b"HTTP/1.1 200")
    return client


# fault: serving/node/front_proxy.py: self._bodies.release(exchange) → pass
# fault: serving/node/front_held.py: largest.refuse(TOO_LARGE_NOW) → exchange.refuse(TOO_LARGE_NOW)
@pytest.mark.parametrize("missing", [0, 1])
def test_large_bodies_keep_no_other_client_out(tmp_path: Path, missing: int) -> None:
    """Four of 64 MB had all others refused for as long as their client read slowly, or sent slowly."""
    with fronted(tmp_path, "a") as made:
        clients = [large(made, MAX_BODY, missing) for _ in range(MAX_HELD // MAX_BODY)]
        small = {"model": "m", "prompt": "a" * 1000, "max_tokens": 1}
        assert [made.ask("POST", "/v1/completions", small).status for _ in range(3)] == [200] * 3
        if missing:
            # One of them made room, and knows why.
            assert {client.recv(12) for client in clients if readable(client)} == {b"HTTP/1.1 503"}
        else:
            assert all(client.recv(1 << 16) for client in clients for _ in range(3)), "no answer breaks off"


def readable(client: socket.socket) -> bool:
    """Whether something has come."""
    client.setblocking(False)
    try:
        return bool(client.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False


# fault: serving/node/front_held.py: if largest is exchange: → if False:
# fault: serving/node/front_held.py: max(self._sizes, key=self._sizes.__getitem__) → exchange
def test_the_largest_goes() -> None:
    bodies, small, other = HeldBodies(100), Exchange(None), Exchange(None)
    bodies.take(other, 90)
    bodies.take(small, 10)
    bodies.take(small, 10)
    assert [one.refused and one.refused.code for one in (small, other)] == [None, "too_busy"]
    with pytest.raises(FrontRefusal):
        bodies.take(small, 81)
    bodies.take(other, 100)


# fault: serving/node/front_door.py: MAX_FRAMING + 2 * body.total_bytes → 1 << 40
@pytest.mark.parametrize("begin", [b"", b"1\r\n{\r\n0\r\n"], ids=["chunks of a byte", "lines behind the last"])
def test_a_body_has_no_more_around_it_than_in_it(tmp_path: Path, begin: bytes) -> None:
    """In aiohttp 3.13 lines behind the last chunk took 26 times their bytes, and chunks of a byte quadratic time."""
    with fronted(tmp_path, "a") as made, made.connect() as client:
        client.sendall(CHUNKED + begin)
        piece = b"a:b\r\n" if begin else b"1\r\n \r\n"
        client.sendall(piece * 25_000 + (b"\r\n" if begin else b"1\r\n{\r\n1\r\n}\r\n0\r\n\r\n"))
        assert read_answer(client).status == 400


def test_chunks_of_a_few_bytes_are_a_body(tmp_path: Path) -> None:
    body = json.dumps({"model": "m", "prompt": "a" * 300_000, "max_tokens": 1}).encode()
    chunks = b"".join(b"10\r\n%b\r\n" % body[at : at + 16].ljust(16) for at in range(0, len(body), 16))
    with fronted(tmp_path, "a") as made, made.connect() as client:
        client.sendall(CHUNKED + chunks + b"0\r\n\r\n")
        assert read_answer(client).status == 200


# fault: serving/node/front_models.py: if self._asking is None or self._asking.done(): → if True:
def test_those_who_ask_for_the_models_at_once_get_one_answer(tmp_path: Path) -> None:
    """Sixty of them, where a replica lists a megabyte of empty lists, took 1.5 GB, and others waited for 19 s."""
    asked: list[float] = []

    def answer(connection: socket.socket) -> None:
        asked.append(time.monotonic())
        time.sleep(1.0)
        body = json.dumps({"data": [{"id": "m"}]}).encode()
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    with behind(tmp_path, answer) as made, ThreadPoolExecutor(20) as clients:
        found = list(clients.map(lambda _: made.ask("GET", "/v1/models"), range(20)))
    assert {json.loads(one.body)["data"][0]["id"] for one in found} == {"m"}
    assert len(asked) <= 2


# fault: serving/node/front_routes.py: self.listed[deployment], self._names = frozenset(models), None → self.listed[deployment] = frozenset(models)
# fault: serving/node/front_routes.py: self.routes, self._names = routes, None → self.routes = routes
def test_names_are_those_of_now() -> None:
    made = Table(FrontRoutes(1, (FrontDeployment("m"),)))
    assert made.names() == ["m"]
    made.learn("m", ["b", "a"])
    assert made.names() == ["m", "a", "b"]
    made.replace(FrontRoutes(1, (FrontDeployment("n"),)))
    assert made.names() == ["n"]


# fault: serving/node/front_body.py: if self._depth > 1 and (texts → if False and (texts
# fault: serving/node/front_body.py: MAX_TOKENS, KEY_TOKENS, MAX_DEPTH = 25_000 → MAX_TOKENS, KEY_TOKENS, MAX_DEPTH = 250_000
@pytest.mark.parametrize("piece", [b'"",', b'"\\n",', b"[],"])
def test_a_body_is_looked_through_about_as_fast_as_it_is_read(piece: bytes) -> None:
    """One by one its texts took 70 ms: 400 such bodies kept all other clients waiting for 29 s."""
    body = b'{"model": "m", "a": [' + piece * 89_000 + b"0]}"

    def seconds(what: object) -> float:
        found = []
        for _ in range(5):
            began = time.thread_time()
            assert what(body)  # type: ignore[operator]
            found.append(time.thread_time() - began)
        return min(found)

    assert read_body(body, b"application/json").model == "m"
    assert seconds(lambda one: read_body(one, b"application/json")) < 8 * seconds(json.loads)


# fault: serving/node/front_body.py: _ONCE = "+" if sys.version_info >= (3, 11) else "" → _ONCE = ""
def test_texts_with_many_escapes_are_read_once() -> None:
    """A body of 60 MB of them took 5 s, and four kept other large bodies waiting for 20 s."""

    def seconds(escapes: int) -> float:
        text, found = b'"' + (b"\\n" + b"x" * 3900) * escapes + b'",', []
        body = b'{"messages": [[' + text * (540 // escapes) + b'0]], "model": "m"}'
        for _ in range(5):
            began = time.thread_time()
            assert read_body(body, b"application/json").model == "m"
            found.append(time.thread_time() - began)
        return min(found)

    assert seconds(66) < 3 * seconds(60)


def test_long_lists_of_texts_hide_no_model() -> None:
    texts = ['a\\n"b" ' * 9, "c" * 5000] * 2000
    for role in ("x", "user"):
        document = {"input": texts, "messages": [{"role": role, "content": "q"}], "model": "m"}
        assert read_body(json.dumps(document).encode(), b"application/json").model == "m"
