"""A page for this machine's browser alone: on loopback, under a name that cannot be guessed, and read by no other site.

Another site's script may send requests here, so each is judged: by the host that it asked for (a name that was made to
lead here is refused), by the path, which holds a secret, and by what the browser reports of where it comes from.
"""

from __future__ import annotations

import secrets
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase

from vllm_cluster.kernel.listeners import LOOPBACK

HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
POLICY = "default-src 'none'; script-src 'nonce-{0}'; style-src 'nonce-{0}'; connect-src 'self'; frame-ancestors 'none'"
NONCE = "@NONCE@"
# A browser that sends no whole request for so long is not waited for.
REQUEST_SECONDS = 10.0
# Of the first line and all headers: a hundred headers may have 64 KiB each, in each of the connections below.
MAX_HEAD = 64 << 10
# A thread and a file each; any user of this machine may open more, and keep them by a byte each now and then.
MAX_OPEN = 64
Content = Callable[[], tuple[str, bytes]]
# The second is for datagrams, as the library has it.
Request = socket.socket | tuple[bytes, socket.socket]


class _Server(ThreadingHTTPServer):
    """Of too many connections the oldest ends: those of other users must not keep this user's browser away."""

    daemon_threads = True

    def __init__(self, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        self._open: dict[Request, None] = {}
        self._lock = threading.Lock()
        super().__init__((LOOPBACK, port), handler)

    def process_request(self, request: Request, client_address: object) -> None:
        """Serve a new connection, in a thread."""
        with self._lock:
            self._open[request] = None
            if len(self._open) > MAX_OPEN:
                oldest = next(iter(self._open))
                del self._open[oldest]
                # Its thread then closes it.
                if isinstance(oldest, socket.socket):
                    with suppress(OSError):
                        oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def handle_error(self, request: Request, client_address: object) -> None:
        """Print nothing of a connection that broke off, which any user of this machine may have it do."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def shutdown_request(self, request: Request) -> None:
        """Close a connection."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)


class _Head:
    """The beginning of a connection, line by line; what comes after is its end."""

    def __init__(self, source: BufferedIOBase) -> None:
        self._source, self._left = source, MAX_HEAD
        self.close = source.close

    @property
    def closed(self) -> bool:
        """Whether no more is read."""
        return self._source.closed

    def readline(self, size: int) -> bytes:
        """The next line, or so much of it as may still come."""
        found = self._source.readline(min(size, self._left))
        self._left -= len(found)
        return found


class LocalPage:
    """Serves the contents by their names until it is closed; `url` leads to the one without a name.

    Raises:
        OSError: the port is taken.
    """

    def __init__(self, contents: Mapping[str, Content], port: int = 0) -> None:
        self._server = _Server(port, _handler(contents, secret := secrets.token_urlsafe(16)))
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}/{secret}/"
        # How often it looks whether it is to end, which Ctrl-C waits for.
        poll = {"poll_interval": 0.05}
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs=poll, name="page", daemon=True)
        self._thread.start()

    def __enter__(self) -> LocalPage:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(REQUEST_SECONDS)


def _handler(contents: Mapping[str, Content], secret: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_SECONDS
        server_version, sys_version = "vcluster", ""

        def setup(self) -> None:
            super().setup()
            self.rfile = _Head(self.rfile)  # type: ignore[assignment]

        def do_GET(self) -> None:
            content = self._judged()
            if content is None:
                self._reply(HTTPStatus.NOT_FOUND, "text/plain", b"not found\n")
                return
            kind, body = content()
            nonce = secrets.token_urlsafe(16)
            self._reply(HTTPStatus.OK, kind, body.replace(NONCE.encode(), nonce.encode()), POLICY.format(nonce))

        def _judged(self) -> Content | None:
            """What is asked for, where this machine's own page asks."""
            address = self.connection.getsockname()
            own = self.headers.get_all("Host") == [f"{address[0]}:{address[1]}"]
            site = self.headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin")
            _, given, name = [*self.path.split("/", 2), "", ""][:3]
            mine = secrets.compare_digest(given.encode(), secret.encode())
            return contents.get(name) if own and site and mine else None

        def _reply(self, status: HTTPStatus, kind: str, body: bytes, policy: str = "default-src 'none'") -> None:
            self.send_response(status)
            for key, value in {**HEADERS, "Content-Security-Policy": policy, "Content-Type": kind}.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    return Handler
