"""A hub with commits, ETags, LFS metadata and redirects, as the real huggingface_hub needs them; no Xet."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

# What is larger lies in LFS.
LFS_BYTES = 100_000
PIECE = 64 << 10


@dataclass
class Repository:
    """Branches point to commits, commits hold files; `gated` to those without `token`."""

    files: dict[str, Mapping[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    gated: bool = False

    def commit(self, files: Mapping[str, bytes]) -> str:
        """A new commit, to which `main` points."""
        listed = "".join(f"{name} {blob(content)}\n" for name, content in sorted(files.items()))
        name = hashlib.sha1(f"{len(self.files)}\n{listed}".encode(), usedforsecurity=False).hexdigest()
        self.files[name] = dict(files)
        self.refs["main"] = name
        return name


@dataclass
class PullHub:
    """A hub and its bad days: `busy` requests are answered 429, an answer is cut after `cut` bytes, once a file.

    `begins` is where each answer with the content of a file began; `sent` also counts what the kernel still holds.

    `rate` is in bytes a second for each answer, 0 for as fast as it goes.
    """

    url: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    token: str = "hf_right"
    busy: int = 0
    cut: int = 0
    rate: float = 0.0
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    sent: int = 0
    begins: list[tuple[str, int]] = field(default_factory=list)
    done: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)


def blob(content: bytes) -> str:
    """The ETag of a file: its sha256 in LFS, else its git blob id."""
    if len(content) >= LFS_BYTES:
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    hub: PullHub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub, path = self.hub, unquote(self.path.partition("?")[0])
        with hub.lock:
            hub.asked.append((self.command, path, self.headers.get("Authorization", "")))
            hub.busy -= (refuse := hub.busy > 0)
        if refuse:
            self._answer(429, b"", {"Retry-After": "1"})
        elif found := re.fullmatch(r"/api/models/([^/]+(?:/[^/]+)?)(?:/revision/(.+))?", path):
            self._list(found[1], found[2] or "main")
        elif found := re.fullmatch(r"/(.+?)/resolve/([^/]+)/(.+)", path):
            self._resolve(found[1], found[2], found[3])
        elif found := re.fullmatch(r"/cdn/(.+?)/([0-9a-f]{40})/(.+)", path):
            self._give(hub.repositories[found[1]].files[found[2]][found[3]], found[3])
        else:
            self._answer(404, b"")

    def _repository(self, name: str, *, listing: bool) -> Repository | None:
        found = self.hub.repositories.get(name)
        if found is None:
            self._answer(401, b"{}", {"X-Error-Code": "RepoNotFound"})
            return None
        token = self.headers.get("Authorization", "")
        if found.gated and not listing and token != f"Bearer {self.hub.token}":
            self._answer(403 if token else 401, b"{}", {"X-Error-Code": "GatedRepo"})
            return None
        return found

    def _list(self, name: str, revision: str) -> None:
        repository = self._repository(name, listing=True)
        if repository is None:
            return
        commit = repository.refs.get(revision, revision)
        if commit not in repository.files:
            self._answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            return
        rows = [_row(path, content) for path, content in repository.files[commit].items()]
        body = json.dumps({"_id": "1", "id": name, "modelId": name, "sha": commit, "siblings": rows}).encode()
        self._answer(200, body, {"Content-Type": "application/json"})

    def _resolve(self, name: str, revision: str, path: str) -> None:
        repository = self._repository(name, listing=False)
        if repository is None:
            return
        commit = repository.refs.get(revision, revision)
        content = repository.files.get(commit, {}).get(path)
        if content is None:
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        headers = {"X-Repo-Commit": commit, "ETag": f'"{blob(content)}"'}
        if len(content) < LFS_BYTES:
            self._give(content, path, headers)
            return
        headers |= {"X-Linked-ETag": f'"{blob(content)}"', "X-Linked-Size": str(len(content))}
        self._answer(302, b"", {**headers, "Location": f"{self.hub.url}/cdn/{name}/{commit}/{path}"})

    def _give(self, content: bytes, name: str, headers: Mapping[str, str] | None = None) -> None:
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        begin, end = (int(found[1]), int(found[2] or len(content) - 1)) if found else (0, len(content) - 1)
        if found and begin >= len(content):
            self._answer(416, b"")
            return
        body = content[begin : end + 1]
        named = {**(headers or {}), "Accept-Ranges": "bytes"}
        if found:
            named["Content-Range"] = f"bytes {begin}-{end}/{len(content)}"
        self.send_response(206 if found else 200)
        for key, value in {**named, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            with self.hub.lock:
                self.hub.begins.append((name, begin))
            self._send(body, name)

    def _send(self, body: bytes, name: str) -> None:
        hub, began = self.hub, time.monotonic()
        with hub.lock:
            cut = hub.cut if hub.cut and len(body) > hub.cut and name not in hub.done else 0
            hub.done.add(name)
        for at in range(0, cut or len(body), PIECE):
            piece = body[at : min(at + PIECE, cut or len(body))]
            self.wfile.write(piece)
            with hub.lock:
                hub.sent += len(piece)
            if hub.rate:
                time.sleep(max(0.0, began + (at + len(piece)) / hub.rate - time.monotonic()))
        if cut:
            self.close_connection = True

    def _answer(self, code: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


def _row(path: str, content: bytes) -> dict[str, Any]:
    row: dict[str, Any] = {"rfilename": path, "size": len(content)}
    row["blobId"] = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
    if len(content) >= LFS_BYTES:
        row["lfs"] = {"sha256": blob(content), "size": len(content), "pointerSize": 134}
    return row


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """Whoever asked has hung up."""


@contextmanager
def pull_hub(address: str, **settings: Any) -> Iterator[PullHub]:
    """A hub at an address of this machine, for as long as it is needed."""
    made = PullHub(**settings)
    server = _Server((address, 0), type("Handler", (_Handler,), {"hub": made}))
    made.url = f"http://{address}:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
