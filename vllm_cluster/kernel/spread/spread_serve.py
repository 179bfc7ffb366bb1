"""Gives the files of this host to the others while they arrive, and on the source decides who gets from whom."""

from __future__ import annotations

import ipaddress
import json
import socket
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from socketserver import BaseRequestHandler, ThreadingTCPServer

from vllm_cluster.kernel.spread.spread_order import Chain
from vllm_cluster.kernel.spread.spread_wire import (
    BUSY,
    FILE,
    HAVE,
    MAX_LINE,
    NONE,
    OK,
    QUIET_SECONDS,
    REFUSED,
    BadPeerError,
    Reader,
    proof_of,
)
from vllm_cluster.kernel.spread.store import Store
from vllm_cluster.wire.pull import HostPlan, ModelFile, SpreadAsk, SpreadHave, SpreadOrder
from vllm_cluster.wire.reading import RefusedDocument, read
from vllm_cluster.wire.signature import same, sign

# How often a file that grows is looked at: each host on the chain adds half of it.
LOOK_SECONDS = 0.01
# Until a whole request is there: also for one that sends a byte now and then.
IDLE_SECONDS = 10.0
# A connection whose other end takes nothing.
STUCK_SECONDS = 5.0
# Hosts that are served at a time: one by the chain, another after a fault.
MAX_SERVED = 2
# Each has a thread. A host has four for files, four more where one came wrong, two for reports, and as many that break.
MAX_OF_HOST = 16
MAX_NONCES = 1 << 16
# One call of sendfile; between two the file is looked at again.
PIECE = 8 << 20

Request = socket.socket | tuple[bytes, socket.socket]
Address = tuple[str, int] | tuple[str, int, int, int]


class SpreadServer(ThreadingTCPServer):
    """The server of one host of a pull, on its private address, for the addresses of the other hosts alone."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
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
        # How many connections each address may still open.
        self._room = Counter(_plain(host.address) for host in plan.hosts for _ in range(MAX_OF_HOST))
        self._looked = 0.0
        super().__init__((me.address, me.port), _Handler)

    def waiting_for(self) -> list[str]:
        """Return the hosts that are not complete yet; on the source alone."""
        assert self.chain is not None  # noqa: S101
        with self.lock:
            return self.chain.waiting_for()

    def close(self) -> None:
        """End the server; answers under way break off."""
        self.shutdown()
        self.server_close()

    def process_request(self, request: Request, client_address: Address) -> None:
        """Close a connection of any other address, or beyond the limit, before anything of it is read."""
        address = _plain(client_address[0])
        with self.lock:
            if free := self._room[address] > 0:
                self._room[address] -= 1
        if free:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Request, client_address: Address) -> None:
        """Answer the requests of one connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self.lock:
                self._room[_plain(client_address[0])] += 1

    def handle_error(self, request: object, client_address: object) -> None:
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

    def state(self) -> SpreadHave:
        """Return what this host has of each file, one byte more where it is verified."""
        store = self.store
        return SpreadHave(
            tuple(file.size + 1 if store.complete(file) else store.have(file) for file in self.plan.files)
        )

    def take_report(self, ask: SpreadAsk) -> SpreadOrder:
        """Note a host's progress and answer whom it gets from, and whether all are complete."""
        assert self.chain is not None  # noqa: S101
        now = time.monotonic()
        have = sum(map(self.store.have, self.plan.files)) if now - self._looked > 0.5 else None
        with self.lock:
            if have is not None:
                self._looked = now
                self.chain.source_has(have, now)
            return SpreadOrder(self.chain.report(ask.me, ask.bytes, now, ask.failed), tuple(self.chain.waiting_for()))


class _Handler(BaseRequestHandler):
    server: SpreadServer
    request: socket.socket

    def setup(self) -> None:
        """Begin to read."""
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = Reader(self.request)

    def handle(self) -> None:
        """Answer each request of a host of this pull; any other ends the connection."""
        with suppress(OSError, BadPeerError, RefusedDocument):
            while (line := self._reader.line(IDLE_SECONDS)) and self._answered(read(SpreadAsk, line, "", MAX_LINE)):
                pass

    def _answered(self, ask: SpreadAsk) -> bool:
        server, files = self.server, self.server.plan.files
        self.request.settimeout(STUCK_SECONDS)
        # All have the key: one host must not speak for another.
        there = _plain(self.client_address[0])
        names = {host.name for host in server.plan.hosts if _plain(host.address) == there}
        allowed = ask.me in names and same(ask.proof, proof_of(server.plan.key, ask)) and server.first_use(ask.nonce)
        if not allowed:
            self.request.sendall(f"{REFUSED} - 0\n".encode())
            return False
        if ask.what == HAVE:
            return self._answer(ask, OK, _json(server.state()))
        if ask.what != FILE:
            return bool(server.chain) and self._answer(ask, OK, _json(server.take_report(ask)))
        if ask.file >= len(files) or ask.start >= files[ask.file].size:
            return False
        with server.turn(ask.me) as free:
            return self._send_file(ask, files[ask.file]) if free else self._answer(ask, BUSY)

    def _answer(self, ask: SpreadAsk, status: str, body: bytes = b"") -> bool:
        proof = sign(self.server.plan.key, "answer", ask.nonce, status, body)
        self.request.sendall(f"{status} {proof} {len(body)}\n".encode() + body)
        return True

    def _send_file(self, ask: SpreadAsk, file: ModelFile) -> bool:
        """Send a file from a byte onwards while it grows; where nothing comes for a while, end early."""
        have = self._wait(file, ask.start)
        if have <= ask.start:
            return self._answer(ask, NONE)
        self._answer(ask, OK, b"%d-%d" % (ask.start, file.size))
        with self.server.store.open(file) as source:
            at = ask.start
            while at < file.size:
                if have <= at:
                    have = self._wait(file, at)
                    if have <= at:
                        return False
                sent = self.request.sendfile(source, at, min(have - at, PIECE))
                if not sent:
                    # The file that was opened has become shorter: it was found damaged, and is fetched again.
                    return False
                at += sent
        return True

    def _wait(self, file: ModelFile, at: int) -> int:
        """Return how much there is of a file once it is more than that, or after the quiet time."""
        until = time.monotonic() + QUIET_SECONDS
        while (have := self.server.store.have(file)) <= at and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)
        return have


def _json(document: SpreadHave | SpreadOrder) -> bytes:
    return json.dumps(asdict(document)).encode()


def _plain(address: str) -> str:
    """An address in its one form; that of an interface of its own kind has a zone."""
    found = ipaddress.ip_address(address.partition("%")[0])
    return str(getattr(found, "ipv4_mapped", None) or found)
