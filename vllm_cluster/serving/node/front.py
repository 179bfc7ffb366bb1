#!/usr/bin/env python3
"""The front: a reverse proxy that owns the API's port on the head, also while no replica is behind it.

`python -m vllm_cluster.serving.node.front --listen HOST:PORT --routes FILE --status FILE`, beside the node program, on
aiohttp and, where the image has it, uvloop: vLLM brings both. Nothing of a request is written anywhere: no prompt, no
key, no path.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import cast

from aiohttp import ClientError, ClientSession, web

from vllm_cluster.serving.node.files import write_whole
from vllm_cluster.serving.node.front_door import ClientConnection, ClientReader, Door
from vllm_cluster.serving.node.front_held import Exchange, HeldBodies
from vllm_cluster.serving.node.front_metrics import FrontMetrics
from vllm_cluster.serving.node.front_models import FrontModels
from vllm_cluster.serving.node.front_processes import (
    BACKLOG,
    POLL_SECONDS,
    FrontProcesses,
    listeners,
    listening_line,
    read_status,
)
from vllm_cluster.serving.node.front_proxy import BODY_SECONDS, Proxy, found_in
from vllm_cluster.serving.node.front_refusal import (
    FrontRefusal,
    answer,
    bare,
    judge,
    not_ready,
    too_large,
    unhealthy,
)
from vllm_cluster.serving.node.front_replica import session
from vllm_cluster.serving.node.front_routes import Table
from vllm_cluster.serving.node.front_settings import MAX_BODY, MAX_CONNECTIONS, MAX_UNPROVED, FrontSettings, limited
from vllm_cluster.serving.node.key_check import KEY_FILE, OPEN, KeyReader, Refusal, has_key, refusal
from vllm_cluster.serving.node.parse_argv import place
from vllm_cluster.serving.node.process import log_line
from vllm_cluster.wire.front import MAX_ROUTES, FrontCount, FrontReplica, FrontRoutes, FrontStatus
from vllm_cluster.wire.inside import beginning
from vllm_cluster.wire.reading import RefusedDocument, read

try:
    from uvloop import new_event_loop
except ImportError:
    from asyncio import new_event_loop  # type: ignore[assignment]

STATUS_SECONDS, SWEEP_SECONDS = 1.0, 0.5
# An unknown model has the replicas asked for theirs, no more often than this.
LEARN_SECONDS = 2.0


class Front(web.Server):
    """What all connections share: the routes, the connections to replicas, the counts and the limits."""

    def __init__(self, settings: FrontSettings, client: ClientSession, fresh: ClientSession) -> None:
        super().__init__(self._serve, handler_cancellation=True)
        self.stopping = False
        self._settings = settings
        self._reader = KeyReader(settings.key)
        self._replica_keys: dict[str, KeyReader] = {}
        self._table = Table(FrontRoutes(1))
        self._bodies = HeldBodies(settings.held)
        self._proxy = Proxy(self._table, client, fresh, self._replica_key, self._bodies)
        self._metrics, self._models = FrontMetrics(self._table, self._proxy), FrontModels(self._table, self._proxy)
        self._door = Door(settings.connections, settings.patience, self._count, settings.unproved)
        self._open: set[Exchange] = set()
        self._requests, self._learnt = 0, 0.0
        self._statuses: Counter[str] = Counter()
        self._seen: object = None
        self._error = ""
        self._shown: FrontStatus | None = None
        self._writing = asyncio.Lock()

    def _connect(self) -> ClientReader:
        """A new connection."""
        return ClientReader(ClientConnection(self, self._door))

    def _replica_key(self, replica: FrontReplica) -> str | None:
        if replica.key_file is None:
            return None
        reader = self._replica_keys.setdefault(replica.key_file, KeyReader(replica.key_file))
        (first, *_) = reader.keys() or [b""]
        return first.decode() or None

    def _count(self, status: int) -> None:
        """Count an answer."""
        self._requests += 1
        self._statuses[str(status)] += 1

    # ---- requests

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = cast("ClientConnection", request.protocol)
        try:
            given = await self._answer(request, connection)
        except FrontRefusal as refused:
            # What follows a body that was not asked for is not read.
            given = answer(refused.refusal, close=request.body_exists)
        self._count(given.status)
        # After such a request aiohttp keeps what follows without a limit: it takes it for another protocol's.
        if self.stopping or "Upgrade" in request.headers:
            given.force_close()
        self._door.rest(connection)
        connection.take()
        return given

    async def _answer(self, request: web.BaseRequest, connection: ClientConnection) -> web.StreamResponse:
        path = request.raw_path.partition("?")[0]
        if (request.method, path) in OPEN:
            return self._health()
        given = [one.encode("utf-8", "surrogateescape") for one in request.headers.getall("Authorization", [])]
        keys = self._reader.keys()
        if not has_key(given, keys):
            raise FrontRefusal(refusal(keys))
        self._door.prove(connection)
        judge(request)
        connection.expect(request.content)
        connection.take()
        if (request.method, path) == ("GET", "/metrics"):
            total = self._settings.total and read_status(self._settings.total)
            return await self._metrics.answer(total or self.status())
        if len(self._open) >= self._settings.streams:
            raise FrontRefusal(Refusal(503, "too_busy", "too many requests are open: try again", 1))
        exchange = Exchange(asyncio.current_task())
        self._open.add(exchange)
        try:
            if (request.method, path) == ("GET", "/v1/models"):
                return await self._list_models()
            return await self._send(request, exchange)
        except asyncio.CancelledError:
            if exchange.refused:
                raise FrontRefusal(exchange.refused) from None
            raise
        finally:
            self._open.discard(exchange)
            self._bodies.release(exchange)

    def _health(self) -> web.StreamResponse:
        """Show strangers that something lives here, and not what."""
        if not self._table.ready:
            found = self._table.routes.deployments
            raise FrontRefusal(unhealthy(found[0].retry_after if found else None))
        return bare(web.Response())

    async def _list_models(self) -> web.StreamResponse:
        if (listed := await self._models.listed()) is None:
            raise FrontRefusal(not_ready(next(iter(self._table.routes.deployments), None)))
        return bare(web.Response(body=listed, content_type="application/json"))

    async def _send(self, request: web.BaseRequest, exchange: Exchange) -> web.StreamResponse:
        exchange.body = await self._read(request, exchange)
        found = await found_in(exchange.body, request.headers.get("Content-Type", ""))
        deployment = self._proxy.wanted(found.model)
        if deployment is None and time.monotonic() - self._learnt >= LEARN_SECONDS:
            self._learnt = time.monotonic()
            await self._models.listed()  # an adapter may be new
            deployment = self._proxy.wanted(found.model)
        if deployment is None:
            raise self._proxy.unknown(found.model or "")
        # What has no prompt and only reads gets the same one each time.
        prefix = found.prefix or (request.raw_path.encode() if request.method == "GET" else b"")
        return await self._proxy.send(request, deployment, prefix, exchange)

    async def _read(self, request: web.BaseRequest, exchange: Exchange) -> bytes:
        """Read a body, within the limits of one and of all together."""
        body = bytearray()
        if not request.can_read_body:
            return b""
        if "Expect" in request.headers:
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0
        while True:
            try:
                piece = await asyncio.wait_for(request.content.readany(), BODY_SECONDS * self._settings.patience)
            except asyncio.TimeoutError:
                raise FrontRefusal(Refusal(408, "request_timeout", "the body has not come: send it again")) from None
            except (ClientError, web.PayloadAccessError, web.RequestPayloadError, OSError, ValueError):
                raise FrontRefusal(Refusal(400, "bad_request", "the body is not what its head has announced")) from None
            if not piece:
                return bytes(body)
            body += piece
            if len(body) > MAX_BODY:
                raise FrontRefusal(too_large())
            self._bodies.take(exchange, len(piece))

    # ---- files

    def read_routes(self) -> None:
        """Take the routes where they have changed; a file that cannot be read leaves the last good ones in force."""
        try:
            found = self._settings.routes.stat()
            seen = (found.st_ino, found.st_mtime_ns, found.st_size)
            if seen == self._seen:
                return
            self._seen = seen
            raw = beginning(self._settings.routes, MAX_ROUTES + 1)
            self._table.replace(read(FrontRoutes, raw, "the routes", MAX_ROUTES))
        except (OSError, RefusedDocument) as error:
            why = getattr(error, "strerror", None) or str(error)
            self._complain(f"{self._settings.routes.name}: {why}")
            return
        self._error = ""
        lost = {r.id for one in self._table.routes.deployments for r in one.replicas if r.state == "lost"}
        for exchange in [one for one in self._open if one.replica and one.replica.id in lost]:
            exchange.lose()

    def _complain(self, error: str) -> None:
        if error != self._error:
            log_line("front", error)
        self._error = error

    def status(self) -> FrontStatus:
        """What was done so far."""
        counts = {
            name: FrontCount(load.open, load.requests, load.failed) for name, load in sorted(self._table.loads.items())
        }
        by_status = {**self._statuses, **({"broken": self._proxy.broken} if self._proxy.broken else {})}
        return FrontStatus(
            1,
            os.getpid(),
            0.0,
            self._door.taken,
            len(self._open),
            self._requests,
            dict(sorted(by_status.items())),
            counts,
            self._error,
            self._table.routes.number,
        )

    async def write_status(self) -> None:
        """Write the status where it has changed; in a thread, since a disk may take its time."""
        # One after the other: of two at once the older could be written last, and stay.
        async with self._writing:
            status = self.status()
            if self._settings.status is None or status == self._shown:
                return
            content = {**asdict(status), "updated": round(time.time(), 3)}
            loop = asyncio.get_running_loop()
            if await loop.run_in_executor(None, write_whole, self._settings.status, content):
                self._shown = status

    # ---- the run

    async def run(self, listener: socket.socket, lives: int | None) -> int:
        """Serve until a signal; at once no more where `lives` ends, a pipe from the first process of several."""
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, over.set)
        if lives is not None:
            loop.add_reader(lives, os._exit, 1)
        self.read_routes()
        server = await loop.create_server(self._connect, sock=listener, backlog=BACKLOG)
        await self.write_status()
        if lives is None:
            log_line("front", listening_line(self._settings.listen))
        works = ((POLL_SECONDS, self._poll), (STATUS_SECONDS, self.write_status), (SWEEP_SECONDS, self._sweep))
        tasks = [loop.create_task(_each(seconds, work)) for seconds, work in works]
        await over.wait()
        self.stopping = True
        server.close()
        await self._drain()
        for task in tasks:
            task.cancel()
        await self.write_status()
        return 0

    async def _poll(self) -> None:
        before = self._seen
        self.read_routes()
        if self._seen != before:
            # Who has written them waits for that.
            await self.write_status()

    async def _sweep(self) -> None:
        self._door.sweep(time.monotonic())

    async def _drain(self) -> None:
        """Let open requests end, for the grace; their clients get `Connection: close`."""
        until = time.monotonic() + self._settings.grace
        self._door.shut()
        while time.monotonic() < until and self._open:
            await asyncio.sleep(POLL_SECONDS)
        await self.shutdown(1.0)


async def _each(seconds: float, work: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(seconds)
        try:
            await work()
        except Exception as fault:  # the next time may be better, and connections need none of it
            log_line("front", f"{work.__name__}: {type(fault).__name__}")


async def run_front(settings: FrontSettings, listener: socket.socket, lives: int | None) -> int:
    """Be the front until a signal."""
    async with session() as client, session(kept=False) as fresh:
        return await Front(settings, client, fresh).run(listener, lives)


def run_one(settings: FrontSettings, listener: socket.socket, lives: int | None = None) -> int:
    """Be the front, or one process of it, until a signal."""
    loop = new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(run_front(limited(settings), listener, lives))
    finally:
        loop.close()


def main(argv: Sequence[str]) -> int:
    """Be the front until a signal."""
    parser = argparse.ArgumentParser(prog="node.py front", description="Own the API's port of this cluster.")
    parser.add_argument("--listen", required=True, type=place, help="host:port")
    parser.add_argument("--routes", required=True, type=Path, help="the document with the replicas")
    parser.add_argument("--status", type=Path, help="where to write what is open")
    parser.add_argument("--grace", type=float, default=30.0, help="seconds for open requests at the end")
    parser.add_argument("--patience", type=float, default=1.0, help="a factor for the seconds that clients have")
    parser.add_argument("--connections", type=int, default=MAX_CONNECTIONS)
    parser.add_argument("--unproved", type=int, default=MAX_UNPROVED, help="bytes that may come before the key")
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args(argv)
    settings = FrontSettings(**vars(given), key=os.environ.get(KEY_FILE, ""))
    try:
        sockets = listeners(settings.listen, settings.processes)
    except OSError as error:
        log_line("front", f"cannot listen on {settings.listen}: {error.strerror or error}")
        return 1
    if settings.processes == 1:
        return run_one(settings, sockets[0])
    return FrontProcesses(settings, run_one).keep(sockets)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
