"""Gives the files of this host to the others while they arrive, and on the source decides who gets from whom."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

from vllm_cluster.remote.pull.spread_order import Chain
from vllm_cluster.remote.pull.spread_wire import PROOF, QUIET_SECONDS, same, sign
from vllm_cluster.remote.pull.store import Store
from vllm_cluster.wire.pull import HostPlan, ModelFile

# How often a file that grows is looked at: each host on the chain adds half of it.
LOOK_SECONDS = 0.01
# A connection without a request, or whose other end takes nothing.
IDLE_SECONDS = 10.0
STUCK_SECONDS = 5.0
# Hosts that are served at a time: one by the chain, another after a fault.
MAX_SERVED = 2
MAX_CONNECTIONS = 512
MAX_REPORT = 64 << 10
MAX_NONCES = 1 << 16
# One call of sendfile; between two the file is looked at again.
PIECE = 8 << 20


class SpreadServer(ThreadingHTTPServer):
    """The HTTP server of one host of a pull, on its private address."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, plan: HostPlan, store: Store) -> None:
        me = plan.host(plan.me)
        self.address_family = socket.AF_INET6 if ":" in me.address else socket.AF_INET
        self.plan, self.store = plan, store
        total = sum(file.size for file in plan.files)
        self.chain = Chain([host.name for host in plan.hosts], total) if plan.me == plan.hosts[0].name else None
        self.lock = threading.Lock()
        self._served: Counter[str] = Counter()
        self._nonces: OrderedDict[str, None] = OrderedDict()
        self._room = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._looked = 0.0
        super().__init__((me.address, me.port), _Handler)

    def server_bind(self) -> None:
        # HTTPServer's own asks DNS for the name of the address, which can take half a minute.
        TCPServer.server_bind(self)

    def waiting_for(self) -> list[str]:
        """Return the hosts that are not complete yet; on the source alone."""
        assert self.chain is not None  # noqa: S101
        with self.lock:
            return self.chain.waiting_for()

    def close(self) -> None:
        """End the server; answers under way break off."""
        self.shutdown()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Refuse a connection beyond the limit: each has a thread."""
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer the requests of one connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: a connection that broke is the other host's to report."""

    def first_use(self, nonce: str) -> bool:
        """Return whether the nonce is new: a request that was overheard is not answered again."""
        with self.lock:
            if nonce in self._nonces:
                return False
            self._nonces[nonce] = None
            if len(self._nonces) > MAX_NONCES:
                self._nonces.popitem(last=False)
            return True

    @contextmanager
    def turn(self, name: str) -> Iterator[bool]:
        """Whether a host may be served now; it counts while its answer runs."""
        with self.lock:
            free = name in self._served or len(self._served) < MAX_SERVED
            self._served[name] += free
            if not free:
                del self._served[name]
        try:
            yield free
        finally:
            with self.lock:
                if free:
                    self._served[name] -= 1
                    if not self._served[name]:
                        del self._served[name]

    def state(self) -> dict[str, Any]:
        """Return what this host has of each file, one byte more where it is verified."""
        store = self.store
        return {"files": [file.size + 1 if store.complete(file) else store.have(file) for file in self.plan.files]}

    def take_report(self, name: str, row: dict[str, Any]) -> dict[str, Any]:
        """Note a host's progress and answer whom it gets from, and whether all are complete."""
        assert self.chain is not None  # noqa: S101
        now = time.monotonic()
        count, failed = row.get("bytes"), row.get("failed", "")
        if not isinstance(count, int) or not isinstance(failed, str):
            raise ValueError("not a report")
        have = sum(map(self.store.have, self.plan.files)) if now - self._looked > 0.5 else None
        with self.lock:
            if have is not None:
                self._looked = now
                self.chain.source_has(have, now)
            return {
                "upstream": self.chain.report(name, count, now, failed),
                "waiting_for": self.chain.waiting_for(),
            }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = IDLE_SECONDS
    disable_nagle_algorithm = True
    server: SpreadServer

    def version_string(self) -> str:
        """Return a name without Python's version: whoever connects reads it."""
        return "vcluster"

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet: the log of the container is for what a person can act on."""

    def do_GET(self) -> None:
        if not self._allowed(b""):
            return
        found = re.fullmatch(r"/f/(\d{1,6})", self.path)
        start = re.fullmatch(r"bytes=(\d{1,18})-", self.headers.get("Range", ""))
        files = self.server.plan.files
        if self.path == "/have":
            self._answer(200, json.dumps(self.server.state()).encode())
        elif found and start and int(found[1]) < len(files) and int(start[1]) < files[int(found[1])].size:
            with self.server.turn(self.name) as free:
                if free:
                    self._send_file(files[int(found[1])], int(start[1]))
                else:
                    self._answer(503)
        else:
            self._answer(404)

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not (length.isdecimal() and int(length) <= MAX_REPORT):
            self.close_connection = True
            return
        body = self.rfile.read(int(length))
        if not self._allowed(body):
            return
        if self.path != "/report" or self.server.chain is None:
            self._answer(404)
            return
        try:
            answer = self.server.take_report(self.name, json.loads(body))
        except (ValueError, KeyError, AttributeError):
            self._answer(400)
        else:
            self._answer(200, json.dumps(answer).encode())

    def _allowed(self, body: bytes) -> bool:
        """Check that a host of this pull asks, and asks for the first time."""
        key, span = self.server.plan.key, self.headers.get("Range", "")
        scheme, self.name, self.nonce, proof = [*self.headers.get("Authorization", "").split(" "), "", "", "", ""][:4]
        expected = sign(key, "ask", self.command, self.path, span, self.name, self.nonce, body)
        names = {host.name for host in self.server.plan.hosts}
        if scheme == "vcluster" and same(proof, expected) and self.name in names and self.server.first_use(self.nonce):
            return True
        self.close_connection = True
        self.send_response_only(403)
        self.send_header("Content-Length", "0")
        self.send_header("Connection", "close")
        self.end_headers()
        return False

    def _answer(self, status: int, body: bytes = b"") -> None:
        self._head(status, body, len(body))
        self.wfile.write(body)

    def _head(self, status: int, proven: bytes, length: int, place: str = "") -> None:
        self.send_response_only(status)
        self.send_header(PROOF, sign(self.server.plan.key, "answer", self.nonce, str(status), proven))
        if status != 204:
            self.send_header("Content-Length", str(length))
        if place:
            self.send_header("Content-Range", place)
        self.end_headers()

    def _send_file(self, file: ModelFile, start: int) -> None:
        """Send a file from a byte onwards while it grows; where nothing comes for a while, end early."""
        have = self._wait(file, start)
        if have <= start:
            self._answer(204)
            return
        place = f"bytes {start}-{file.size - 1}/{file.size}"
        self._head(206, place.encode(), file.size - start, place)
        self.connection.settimeout(STUCK_SECONDS)
        self.close_connection = True
        with self.server.store.open(file) as source:
            at = start
            while at < file.size:
                if have <= at:
                    have = self._wait(file, at)
                    if have <= at:
                        return
                sent = self.connection.sendfile(source, at, min(have - at, PIECE))
                if not sent:
                    # The file that was opened has become shorter: it was found damaged, and is fetched again.
                    return
                at += sent
        self.close_connection = False
        self.connection.settimeout(IDLE_SECONDS)

    def _wait(self, file: ModelFile, at: int) -> int:
        """Return how much there is of a file once it is more than that, or after the quiet time."""
        until = time.monotonic() + QUIET_SECONDS
        while (have := self.server.store.have(file)) <= at and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)
        return have
