"""Who gets past the front: no client without the key, and nothing that two parsers could read in two ways."""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.fronted import KEY, Fronted, fronted, read_answer, request
from tests.support.waiting import until

RIGHT = f"Authorization: Bearer {KEY}\r\n"
PING = b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n"
HEAD = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\n{RIGHT}Content-Type: application/json\r\n"


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fronted]:
    with fronted(tmp_path_factory.mktemp("front"), "a") as made:
        yield made


def ended(connection: socket.socket) -> bool:
    """Whether the other side has closed, and sent nothing before that."""
    try:
        return connection.recv(1 << 16) == b""
    except ConnectionError:
        return True


def reached(made: Fronted) -> int:
    """Requests that any replica has got."""
    return sum(one.seen()["requests"] for one in made.replicas.values())


# fault: serving/node/front.py: if not has_key(given, keys): → if path == "/v1/models":
@pytest.mark.parametrize(
    "path",
    [
        "/v1/models", "/v1/completions", "/metrics", "/docs", "/", "/health/", "//health", "/HEALTH",
        "/health/../v1/models", "/%68ealth", "/ping/x", "/./ping", "/health;x", "/v1//models", "/%2e%2e/metrics",
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"])
def test_no_route_but_two_is_open(front: Fronted, method: str, path: str) -> None:
    for key in (None, "wrong", KEY[:-1], KEY + "x", ""):
        answer = front.ask(method, path, key=key)
        assert answer.status == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert method == "HEAD" or answer.code == "invalid_api_key"


@pytest.mark.parametrize(
    "line",
    [
        f"Authorization: {KEY}", "Authorization: Bearer", f"Authorization: Basic {KEY}", f"X-Api-Key: {KEY}",
        f"{RIGHT}Authorization: Bearer other", f"Proxy-Authorization: Bearer {KEY}",
    ],
)  # fmt: skip
def test_only_one_right_header_is_the_key(front: Fronted, line: str) -> None:
    assert front.ask("GET", "/v1/models", key=None, headers=line + "\r\n").status == 401


@pytest.mark.parametrize(
    ("method", "path"), [(m, p) for m in ("GET", "HEAD") for p in ("/health", "/ping", "/health?x")]
)
def test_two_routes_are_open(front: Fronted, method: str, path: str) -> None:
    answer = front.ask(method, path, key=None)
    assert (answer.status, answer.body) == (200, b"")


# fault: serving/node/front.py: close=request.body_exists) → close=False)
def test_without_the_key_no_body_is_read(front: Fronted) -> None:
    """The answer is there while the body is not, and the connection ends: what follows cannot be a request."""
    raw = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999\r\n\r\n{"
    with front.connect() as connection:
        connection.sendall(raw)
        answer = read_answer(connection)
        assert (answer.status, answer.headers["connection"]) == (401, "close")
        assert ended(connection)
    smuggled = request("GET", "/v1/models").decode()
    raw = f"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {len(smuggled)}\r\n\r\n{smuggled}".encode()
    with front.connect() as connection:
        connection.sendall(raw)
        assert read_answer(connection).status == 401
        assert ended(connection)


@pytest.mark.parametrize(
    "head",
    [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Content-Length: 5\r\nContent-Length: 5\r\n",
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: 5, 5\r\n",
        "Content-Length: +5\r\n",
        "Content-Length: -5\r\n",
        "Content-Length: 0x5\r\n",
        "Content-Length: \r\n",
        "Content-Length: 99999999999999999999\r\n",
        "Content-Length : 5\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: \x0bchunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding:\r\n chunked\r\n",
        "X: a\r\n b\r\nContent-Length: 5\r\n",
        "X: a\nContent-Length: 5\r\n",
        "X: a\rContent-Length: 5\r\n",
        "X: a\0b\r\n",
        " X: a\r\n",
        "X\r\n",
        ": a\r\n",
        "Host: other\r\n",
    ],
)
def test_what_can_be_read_in_two_ways_is_refused(front: Fronted, head: str) -> None:
    before = reached(front)
    body = '0\r\n\r\n{"a":'
    smuggled = request("POST", "/v1/completions", {"model": "m"}).decode()
    with front.connect() as connection:
        connection.sendall((HEAD + head + "\r\n" + body + smuggled).encode())
        assert read_answer(connection).status == 400
        assert ended(connection)
    assert reached(front) == before


@pytest.mark.parametrize(
    "chunks",
    ["5\n{}\r\n0\r\n\r\n", "2;\nx\r\n{}\r\n0\r\n\r\n", "0x2\r\n{}\r\n0\r\n\r\n", "-2\r\n{}\r\n", "2\r\n{}0\r\n\r\n",
     "ffffffffffffffffff\r\n{}", "2\r\n{}\r\n0\r\nContent-Length: 5\r\n\r\n"],
)  # fmt: skip
def test_chunks_that_are_none_are_refused(front: Fronted, chunks: str) -> None:
    before = reached(front)
    with front.connect() as connection:
        connection.sendall((HEAD + "Transfer-Encoding: chunked\r\n\r\n" + chunks).encode())
        assert read_answer(connection).status == 400
        assert ended(connection)
    assert reached(front) == before


def test_a_replica_gets_one_length_its_own_key_and_its_own_host(front: Fronted) -> None:
    headers = (
        "Transfer-Encoding: chunked\r\nConnection: keep-alive, X-Gone, Authorization\r\nX-Gone: 1\r\nX-Kept: 2\r\n"
        "X-Forwarded-For: 10.0.0.1\r\nForwarded: for=10.0.0.1\r\nTE: trailers\r\nKeep-Alive: 5\r\n"
    )
    chunks = '6;x=y\r\n{"mode\r\n7\r\nl":"m"}\r\n0\r\nAuthorization: Bearer other\r\n\r\n'
    answer = front.send(f"{HEAD}{headers}\r\n{chunks}".encode())
    assert answer.status == 200
    seen = front.replicas["a"].seen()["last"]
    assert seen["headers"] == [
        ["host", f"127.0.0.1:{front.replicas['a'].route.port}"],
        ["content-type", "application/json"],
        ["x-kept", "2"],
        ["authorization", "Bearer replica-key"],
        ["content-length", "13"],
    ]


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1:1", "[::1]", "a b", ""])
def test_a_forged_host_leads_nowhere(front: Fronted, host: str) -> None:
    answer = front.send(f"GET /version HTTP/1.1\r\nHost: {host}\r\n{RIGHT}\r\n".encode())
    assert answer.status in (200, 400)
    place = ["host", f"127.0.0.1:{front.replicas['a'].route.port}"]
    assert answer.status == 400 or place in front.replicas["a"].seen()["last"]["headers"]


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("GET http://evil.example/v1/models HTTP/1.1", 400),
        ("GET v1/models HTTP/1.1", 400),
        ("GET /v1/models#x HTTP/1.1", 400),
        ("OPTIONS * HTTP/1.1", 400),
        ("CONNECT evil.example:80 HTTP/1.1", 405),
        ("TRACE / HTTP/1.1", 405),
        ("FOO / HTTP/1.1", 400),
        ("get / HTTP/1.1", 400),
        ("GET / HTTP/1.2", 400),
        ("GET / HTTP/2.0", 505),
        ("GET / HTTP/0.9", 505),
        ("GET  /", 505),
        ("GET /\x01 HTTP/1.1", 400),
    ],
)
def test_another_first_line_is_refused(front: Fronted, line: str, status: int) -> None:
    assert front.send(f"{line}\r\nHost: x\r\n{RIGHT}\r\n".encode()).status == status


@pytest.mark.parametrize("path", ["/a/../v1/models", "/%2e%2e/v1/models", "/v1/%6dodels", "//v1/models", "/..%2f"])
def test_a_path_is_passed_on_as_it_is(front: Fronted, path: str) -> None:
    assert front.ask("GET", path).status == 200
    assert front.replicas["a"].seen()["last"]["target"] == path


def test_a_first_line_without_a_host_is_refused(front: Fronted) -> None:
    assert front.send(f"GET /version HTTP/1.1\r\n{RIGHT}\r\n".encode()).status == 400


@pytest.mark.parametrize(("name", "with_key"), [("websocket", 501), ("h2c", 200), ("h2c, websocket", 501)])
def test_no_connection_becomes_another_protocol(front: Fronted, name: str, with_key: int) -> None:
    lines = f"GET /v1/realtime HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: {name}\r\n"
    for key, status in (("", 401), (RIGHT, with_key)):
        with front.connect() as connection:
            connection.sendall(f"{lines}{key}\r\n".encode() + request("GET", "/v1/models"))
            assert read_answer(connection).status == status
            assert ended(connection)


# fault: serving/node/front_refusal.py: one.strip().lower() != "h2c" for → one.strip().lower() != "" for
@pytest.mark.parametrize("chunked", [False, True])
def test_a_client_that_offers_http_2_is_answered_by_http_1(front: Fronted, chunked: bool) -> None:
    """Java's client does so in its first request to each server."""
    body = b'{"model":"m","prompt":"%s","max_tokens":1}' % (b"x" * 200_000)
    offer = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAA\r\n"
    length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(body)}"
    sent = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if chunked else body
    with front.connect() as connection:
        connection.sendall(f"{HEAD}{offer}{length}\r\n\r\n".encode() + sent)
        assert read_answer(connection).status == 200
        assert ended(connection)
    names = {name for name, _ in front.replicas["a"].seen()["last"]["headers"]}
    assert names == {"host", "content-type", "authorization", "content-length"}


def test_http_1_0_is_answered_and_closed(front: Fronted) -> None:
    with front.connect() as connection:
        connection.sendall(f"GET /version HTTP/1.0\r\n{RIGHT}\r\n".encode())
        assert read_answer(connection).status == 200
        assert ended(connection)
    raw = request("POST", "/v1/completions", {"stream": True, "max_tokens": 3}).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    answer = front.send(raw)
    assert "transfer-encoding" not in answer.headers
    assert answer.body.count(b"data: {") == 3
    chunked = f"POST / HTTP/1.0\r\n{RIGHT}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n".encode()
    assert front.send(chunked).status == 400


def test_requests_sent_at_once_are_answered_in_their_order(front: Fronted) -> None:
    slow = request("POST", "/v1/completions", {"stream": True, "max_tokens": 5})
    answers = b""
    with front.connect() as connection:
        connection.sendall(slow + request("GET", "/one") + request("GET", "/x", key="wrong") + request("GET", "/two"))
        # The end of one answer and the start of the next may come in one piece.
        while answers.count(b"HTTP/1.1 ") < 4 or not answers.endswith(b"}"):
            answers += connection.recv(1 << 16)
    streamed, _, rest = answers.partition(b"\r\n0\r\n\r\n")
    assert streamed.count(b"data: {") == 5
    places = [rest.index(word) for word in (b"/one", b"invalid_api_key", b"/two")]
    assert places == sorted(places)


# fault: serving/node/front.py: web.RequestPayloadError, OSError, ValueError → web.RequestPayloadError, ValueError
def test_a_client_that_resets_within_its_body_has_made_no_error_500(tmp_path: Path) -> None:
    """Each of them was counted as 500, with a line in the log."""
    with fronted(tmp_path, "a") as made:
        assert made.process and made.process.stdout
        for _ in range(5):
            with made.connect() as connection:
                connection.sendall(f"{HEAD}Content-Length: 9\r\n\r\n{{".encode())
                until(lambda: made.status().connections == 1, 10)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            until(lambda: made.status().connections == 0, 10)
        assert {*made.status().by_status} <= {"400"}
        made.process.terminate()
        assert "ended with" not in made.process.communicate(timeout=10)[0]


def test_large_heads_are_refused(front: Fronted) -> None:
    for headers in (f"X: {'a' * 70_000}\r\n", "X: a\r\n" * 300):
        assert front.ask("GET", "/v1/models", headers=headers).status == 400
    with front.connect() as connection:
        connection.sendall(b"GET /" + b"a" * 200_000)
        assert read_answer(connection).status == 400


def test_a_body_over_the_limit_is_refused_before_it_comes(front: Fronted) -> None:
    raw = f"{HEAD}Expect: 100-continue\r\nContent-Length: {(64 << 20) + 1}\r\n\r\n".encode()
    answer = front.send(raw)
    assert (answer.status, answer.code) == (413, "request_too_large")


def test_a_body_without_a_length_is_refused_once_it_is_too_large(front: Fronted) -> None:
    piece = b"100000\r\n" + b"x" * (1 << 20) + b"\r\n"
    answer = front.send(f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode() + piece * 65)
    assert answer.status == 413


def test_a_large_body_arrives_whole(front: Fronted) -> None:
    answer = front.ask("POST", "/v1/completions", {"prompt": "x" * (20 << 20), "model": "m"})
    assert answer.status == 200
    assert front.replicas["a"].seen()["last"]["length"] > 20 << 20


def test_a_client_that_waits_for_a_word_gets_it(front: Fronted) -> None:
    with front.connect() as connection:
        connection.sendall(f"{HEAD}Expect: 100-continue\r\nContent-Length: 13\r\n\r\n".encode())
        assert read_answer(connection).status == 100
        connection.sendall(b'{"model":"m"}')
        assert read_answer(connection).status == 200
    assert front.send(f"{HEAD}Expect: other\r\nContent-Length: 2\r\n\r\n{{}}".encode()).status == 417


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[Fronted]:
    """A front that waits a second where another waits ten, and takes eight connections."""
    with fronted(tmp_path, "a", options=["--patience=0.05", "--connections=8"]) as made:
        yield made


def test_slow_heads_and_bodies_are_given_up(hasty: Fronted) -> None:
    with hasty.connect() as head, hasty.connect() as body, hasty.connect() as idle:
        head.sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX")
        body.sendall(f"{HEAD}Content-Length: 10\r\n\r\n{{".encode())
        assert ended(head)
        assert read_answer(body).status == 408
        assert ended(idle)


# fault: serving/node/front_door.py: first = next(iter(self._idle), None) → first = None
def test_strangers_do_not_keep_others_out(hasty: Fronted) -> None:
    stream = hasty.connect()
    stream.sendall(request("POST", "/v1/completions", {"stream": True, "max_tokens": 100_000}))
    assert stream.recv(100)
    strangers = [hasty.connect() for _ in range(20)]
    assert hasty.ask("GET", "/v1/models").status == 200
    until(lambda: stream.recv(1 << 16), 5, every=0)
    for one in (stream, *strangers):
        one.close()


# fault: serving/node/front_door.py: while self._sent_by_all > self._unproved: → while False:
def test_strangers_fill_no_memory_with_their_heads(tmp_path: Path) -> None:
    """A head of many lines may have megabytes, and each of 8,192 connections may send one for ten seconds."""
    line = b"X: " + b"a" * 60_000 + b"\r\n"
    with fronted(tmp_path, "a", options=["--unproved=2000000"]) as made:
        small, *strangers = (made.connect() for _ in range(5))
        for one in (small, *strangers):
            one.sendall(f"GET /v1/models HTTP/1.1\r\nHost: x\r\n{RIGHT}".encode())
        for one in strangers:
            with suppress(ConnectionError):
                one.sendall(line * 10)
        assert sum(map(ended, select.select(strangers, [], [], 10)[0])) >= 1
        # Who has sent little is not the one that goes, and what came with the right key is not counted.
        small.sendall(b"\r\n")
        assert read_answer(small).status == 200
        body = {"model": "m", "prompt": "a" * 3_000_000}
        assert [made.ask("POST", "/v1/completions", body).status for _ in range(3)] == [200] * 3


# fault: serving/node/front.py: or "Upgrade" in request.headers: → :
@pytest.mark.parametrize(
    ("status", "head"),
    [
        (401, "CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n"),
        (405, f"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n{RIGHT}\r\n"),
        (200, "GET /ping HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"),
    ],
)
def test_nothing_is_kept_of_what_follows_another_protocol(front: Fronted, status: int, head: str) -> None:
    """aiohttp keeps it in one text that grows: 4 strangers took 449 MB, and others waited 10 s for /ping."""
    with front.connect() as connection:
        connection.sendall(head.encode())
        answer = read_answer(connection)
        assert (answer.status, answer.headers["connection"]) == (status, "close")
        assert ended(connection)


# fault: serving/node/front_replica.py: read_bufsize=_AHEAD → read_bufsize=1 << 18
def test_clients_that_read_slowly_fill_no_memory(tmp_path: Path) -> None:
    """Each had 2 MB of tokens in the front, and 4,096 streams may be open."""
    with fronted(tmp_path, "a") as made:
        assert made.process
        status = Path(f"/proc/{made.process.pid}/status")

        def most() -> int:
            return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM"))

        body = {"model": "m", "stream": True, "max_tokens": 1, "burst": 40_000}
        # What only the first answer takes is left out.
        assert made.ask("POST", "/v1/completions", body).status == 200
        before = most()
        clients = [socket.socket() for _ in range(20)]
        for one in clients:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.settimeout(60)
            one.connect(("127.0.0.1", made.port))
            one.sendall(request("POST", "/v1/completions", body))
        # While one is read, the others wait.
        for one in clients:
            with one:
                assert read_answer(one).body.count(b"data: {") == 40_000
        assert (most() - before) / len(clients) < 700  # kB


# fault: serving/node/front_door.py: return STRANGER_PIECE if → return PIECE if
def test_requests_behind_one_another_fill_no_memory(tmp_path: Path) -> None:
    """4,000 strangers, each with 256 kB of requests whose answers it does not read, took 432 MB."""
    with fronted(tmp_path, "a") as made:
        assert made.process
        status = Path(f"/proc/{made.process.pid}/status")
        before = peak(status)
        strangers = [made.connect() for _ in range(300)]
        for one in strangers:
            one.setblocking(False)
            with suppress(BlockingIOError):
                one.sendall(PING * 9000)
        assert made.ask("GET", "/v1/models").status == 200
        # In kB of each, with its connection.
        assert (peak(status) - before) / len(strangers) < 40


# fault: serving/node/front_door.py: transport.abort() → pass
def test_a_stranger_who_reads_nothing_goes(tmp_path: Path) -> None:
    """A close waits until all is read: such connections were counted no more, and stayed without end."""
    with fronted(tmp_path, "a", options=["--patience=0.02"]) as made:
        assert made.process
        files = Path(f"/proc/{made.process.pid}/fd")
        asked = request("GET", "/v1/models", key=None) * 1000
        with socket.socket() as stranger:
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stranger.settimeout(2)
            stranger.connect(("127.0.0.1", made.port))
            with pytest.raises(OSError, match=r"timed out|reset|Broken"):
                for _ in range(200):
                    stranger.sendall(asked)
            until(lambda: made.status().connections == 0, 10)
            assert connected(files) == []


# fault: serving/node/front_door.py: or len(self._idle) >= self._most // IDLE_PART: → :
def test_half_of_all_connections_wait_for_a_request(tmp_path: Path) -> None:
    """8,192 that wait take 80 MB in four processes, and the front may take 150."""
    with fronted(tmp_path, "a", options=["--connections=8"]) as made:
        first, *_ = [made.connect() for _ in range(5)]
        first.settimeout(5)
        assert ended(first)
        until(lambda: made.status().connections == 4, 10)


def peak(status: Path) -> int:
    """The most memory that a process has had, in kB."""
    return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM"))


def connected(files: Path) -> list[str]:
    """The sockets of a process that are connected."""
    rows = [line.split() for line in (files.parent / "net/tcp").read_text().splitlines()[1:]]
    own = {str(one.readlink()) for one in files.iterdir()}
    return [row[9] for row in rows if row[3] == "01" and f"socket:[{row[9]}]" in own]
