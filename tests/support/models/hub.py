"""A hub on loopback that answers as the real one does, or as it does on a bad day."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Files = Mapping[str, bytes]


@dataclass
class Hub:
    """Repositories by name; `gated` ones want the token, and `broken` is what every request is answered with."""

    url: str
    repositories: dict[str, Files] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    token: str = "hf_right"
    broken: int = 0
    ranges: bool = True
    refused: str = ""
    drips: bool = False
    elsewhere: str = ""
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    hub: Hub

    def do_GET(self) -> None:
        hub = self.hub
        hub.asked.append((self.path, dict(self.headers)))
        match = re.fullmatch(r"/(.+)/resolve/main/(.+)", self.path)
        if hub.broken or not match:
            return self._answer(hub.broken or 404, b"trouble")
        model, name = match.groups()
        if model not in hub.repositories:
            return self._answer(404, b"", {"X-Error-Code": "RepoNotFound"})
        if model in hub.gated and self.headers.get("Authorization") != f"Bearer {hub.token}":
            return self._answer(403 if "Authorization" in self.headers else 401, b"", {"X-Error-Code": "GatedRepo"})
        content = hub.repositories[model].get(name)
        if content is None:
            return self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        if hub.refused and hub.refused in name:
            return self._answer(503, b"")
        if hub.elsewhere and name.endswith(".safetensors"):
            return self._answer(302, b"", {"Location": hub.elsewhere + self.path})
        if hub.drips:
            return self._drip()
        begin, end = map(int, re.findall(r"\d+", self.headers.get("Range", "bytes=0-99999999999")))
        if not hub.ranges:
            return self._answer(200, content)
        if begin >= len(content):
            return self._answer(416, b"")
        return self._answer(206, content[begin : end + 1])

    def _answer(self, code: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _drip(self) -> None:
        """A byte now and then, each in time for any time-out on silence."""
        self.send_response(206)
        self.send_header("Content-Length", "1000000")
        self.end_headers()
        try:
            while not self.hub.over.wait(0.05):
                self.wfile.write(b" ")
        except OSError:
            self.close_connection = True

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: Any) -> None:
        """Whoever asked has read enough and closed the connection; the tests look at what was asked, not at this."""


@contextmanager
def hub(**settings: Any) -> Iterator[Hub]:
    """A hub, for as long as it is needed."""
    made = Hub("", **settings)
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": made}))
    made.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.over.set()
        server.shutdown()
        server.server_close()
        thread.join(5)
