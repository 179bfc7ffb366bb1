"""The page of the dashboard is read by this machine's own page alone, with all that other sites and names may send."""

from __future__ import annotations

import http.client
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.waiting import until
from vllm_cluster.serving.status import local_page
from vllm_cluster.serving.status.local_page import MAX_OPEN, NONCE, LocalPage

SECRET_DATA = b'{"secret": "of the cluster"}'
PAGE = f'<script nonce="{NONCE}">1</script>'.encode()


@pytest.fixture
def page() -> Iterator[LocalPage]:
    contents = {"": lambda: ("text/html", PAGE), "data": lambda: ("application/json", SECRET_DATA)}
    with LocalPage(contents) as made:
        yield made


def ask(page: LocalPage, path: str, method: str = "GET", **headers: str) -> tuple[int, http.client.HTTPMessage, bytes]:
    """What a request gets; `_` in a header's name is a hyphen."""
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=60)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def secret(page: LocalPage) -> str:
    """The path of the page."""
    return urlsplit(page.url).path


def test_its_own_page_reads_it(page: LocalPage) -> None:
    assert ask(page, secret(page))[0] == 200
    status, headers, body = ask(page, f"{secret(page)}data", Sec_Fetch_Site="same-origin")
    assert (status, body) == (200, SECRET_DATA)
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Referrer-Policy"] == "no-referrer", "the path is a secret"
    assert not [name for name in headers if name.lower().startswith("access-control")]


# fault: serving/status/local_page.py: own = self.headers.get_all("Host") == [f"{address[0]}:{address[1]}"] → own = bool(address)
# fault: serving/status/local_page.py: site = self.headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin") → site = True
@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "localhost"},
        {"Host": "127.0.0.1"},
        {"Host": "127.0.0.1:1"},
        {"Host": "127.0.0.1.nip.io:8000"},
        {"Sec_Fetch_Site": "cross-site", "Origin": "https://evil.example"},
        {"Sec_Fetch_Site": "same-site", "Origin": "http://127.0.0.1:8888"},
    ],
)
def test_nothing_else_does(page: LocalPage, headers: dict[str, str]) -> None:
    for name in ("", "data"):
        status, _, body = ask(page, secret(page) + name, **headers)
        assert (status, body) == (404, b"not found\n")


@pytest.mark.parametrize("path", ["/", "/data", "/x/data", "//data", "/%2e/data", "data", "/\xe9/data"])
def test_without_its_secret_path_there_is_nothing(page: LocalPage, path: str) -> None:
    with socket.create_connection(("127.0.0.1", page.port), 60) as raw:
        raw.sendall(f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1:{page.port}\r\n\r\n".encode("latin-1"))
        answer = b"".join(iter(lambda: raw.recv(65_536), b""))
    assert b" 404 " in answer.split(b"\r\n", 1)[0]
    assert SECRET_DATA not in answer


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "HEAD"])
def test_it_only_answers_questions(page: LocalPage, method: str) -> None:
    assert ask(page, f"{secret(page)}data", method)[0] == 501


# fault: serving/status/local_page.py: nonce = secrets.token_urlsafe(16) → nonce = "once"
def test_its_scripts_are_its_own_and_differ_each_time(page: LocalPage) -> None:
    nonces = set()
    for _ in range(2):
        _, headers, body = ask(page, secret(page))
        found = re.search(rb'nonce="([^"]+)"', body)
        assert found
        policy = headers["Content-Security-Policy"]
        assert f"script-src 'nonce-{found[1].decode()}'" in policy
        assert "unsafe" not in policy
        assert policy.startswith("default-src 'none'")
        nonces.add(found[1])
    assert len(nonces) == 2


def test_it_listens_on_loopback_and_ends(page: LocalPage) -> None:
    assert page.url.startswith(f"http://127.0.0.1:{page.port}/")
    with pytest.raises(OSError, match="in use"):
        LocalPage({}, page.port)
    with LocalPage({}) as other:
        port = other.port
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5)


# fault: serving/status/local_page.py: if not isinstance(sys.exception(), OSError): → if sys.exception():
def test_a_connection_that_breaks_off_prints_nothing(
    page: LocalPage, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tab that is closed while it loads, or any user of this machine without the secret."""
    ended = threading.Event()
    shut = local_page._Server.shutdown_request

    def shut_and_note(server: local_page._Server, request: local_page.Request) -> None:
        shut(server, request)
        ended.set()

    monkeypatch.setattr(local_page._Server, "shutdown_request", shut_and_note)
    with socket.create_connection(("127.0.0.1", page.port)) as client:
        client.sendall(b"GET /")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert ended.wait(60)
    assert capfd.readouterr() == ("", "")


# fault: serving/status/local_page.py: self.rfile = _Head(self.rfile) → self.rfile = self.rfile
# fault: serving/status/local_page.py: self._left -= len(found) → pass
def test_headers_of_other_users_fill_no_memory(page: LocalPage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred headers of 64 KiB in each of 64 connections were 784 MB, and more while they were parsed."""
    seen: list[int] = []
    monkeypatch.setattr(
        BaseHTTPRequestHandler, "handle_one_request", _counted(BaseHTTPRequestHandler.handle_one_request, seen)
    )
    with socket.create_connection(("127.0.0.1", page.port), 60) as raw, suppress(OSError):
        raw.sendall(b"GET / HTTP/1.1\r\n" + b"".join(b"h%d: %s\r\n" % (n, b"x" * 60_000) for n in range(90)) + b"\r\n")
        while raw.recv(65_536):
            pass
    until(lambda: bool(seen))
    assert sum(seen) <= local_page.MAX_HEAD
    status, _, body = ask(page, f"{secret(page)}data", Cookie="x" * 32_000)
    assert (status, body) == (200, SECRET_DATA), "as other programs of this machine have set them"


def _counted(handle: Callable[[Any], None], seen: list[int]) -> Callable[[Any], None]:
    """Handle a request, and note how many characters its headers have."""

    def handled(handler: Any) -> None:
        handle(handler)
        if (headers := getattr(handler, "headers", None)) is not None:
            seen.append(sum(len(text) for text in headers.values()))

    return handled


# fault: serving/status/local_page.py: if len(self._open) > MAX_OPEN: → if False:
# fault: serving/status/local_page.py: self._open.pop(request, None) → pass
def test_connections_of_other_users_are_bounded_and_do_not_keep_the_browser_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each was a thread and a file: with 1,000 of them the page was gone, and its program busy."""
    # What ends sooner has ended for their number.
    monkeypatch.setattr(local_page, "REQUEST_SECONDS", 120.0)
    before = threading.active_count()
    with LocalPage({"": lambda: ("text/html", PAGE)}) as page, ExitStack() as stack:

        def opened() -> socket.socket:
            return stack.enter_context(socket.create_connection(("127.0.0.1", page.port), 20))

        first = opened()
        for _ in range(MAX_OPEN):
            assert ask(page, secret(page))[0] == 200
        first.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert first.recv(1) == b"H", "those that have ended do not count"
        first = opened()
        for _ in range(MAX_OPEN + 8):
            opened()
        assert ask(page, secret(page))[0] == 200
        assert first.recv(1) == b""
        until(lambda: threading.active_count() - before <= MAX_OPEN + 1, 20)
