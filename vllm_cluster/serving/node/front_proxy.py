"""One request at the front: which replica has it, and its answer, piece by piece."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus

import aiohttp
from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from vllm_cluster.serving.node.front_body import Found, read_body
from vllm_cluster.serving.node.front_held import Exchange, HeldBodies
from vllm_cluster.serving.node.front_refusal import FrontRefusal, not_found, not_ready
from vllm_cluster.serving.node.front_routes import Table
from vllm_cluster.serving.node.key_check import Refusal
from vllm_cluster.wire.front import FrontDeployment, FrontReplica

# A silence within a body.
BODY_SECONDS = 30.0
# For whether an engine lives that has failed a request.
HEALTH_SECONDS = 3.0
# A scan of a body of this size takes 3 ms at most; one of a larger body is left to a thread. One alone: each has the
# loop wait for 5 ms at each call of the system.
QUICK_BYTES = 4 << 10
_SCANS = ThreadPoolExecutor(1, "scan")
# A request is sent once more to another replica, and before that once more where a kept connection had ended.
MAX_TRIES = 3
REPEATABLE = frozenset({"GET", "HEAD", "POST", "OPTIONS"})
# Between two ends of one connection alone (RFC 9110, 7.6.1).
_HOP = frozenset({"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"})
# Written again: the replica's own key and address, and one length. The rest would let a client choose who it is.
_REWRITTEN = frozenset({"authorization", "host", "content-length", "expect", "forwarded", "proxy-authorization"})
MAX_STATUS = 600


async def found_in(body: bytes, content_type: str) -> Found:
    """The model and the beginning of the prompt; a long body is looked through in a thread."""
    kind = content_type.encode("utf-8", "surrogateescape")
    if len(body) <= QUICK_BYTES:
        return read_body(body, kind)
    return await asyncio.get_running_loop().run_in_executor(_SCANS, read_body, body, kind)


class Proxy:
    """Sends requests on, by the table of routes."""

    def __init__(
        self,
        table: Table,
        client: aiohttp.ClientSession,
        fresh: aiohttp.ClientSession,
        key: Callable[[FrontReplica], str | None],
        bodies: HeldBodies,
    ) -> None:
        self._table, self._client, self._fresh, self._key, self._bodies = table, client, fresh, key, bodies
        self.broken = 0

    def choose(self, name: str, prefix: bytes, exchange: Exchange) -> FrontReplica:
        """The replica that gets it, as the routes are now: one may have come while another was tried.

        Raises:
            FrontRefusal: none is ready.
        """
        deployment = self._table.deployment(name)
        chosen = self._table.choose(deployment, prefix, time.monotonic(), exchange.tried) if deployment else None
        if chosen is None:
            raise FrontRefusal(not_ready(deployment))
        return chosen

    def wanted(self, model: str | None) -> FrontDeployment | None:
        """The deployment that a model's name is for; None where it is unknown.

        Raises:
            FrontRefusal: nothing is served.
        """
        found = self._table.deployment(model)
        if found is None and (model is None or not self._table.routes.deployments):
            raise FrontRefusal(not_ready(None))
        return found

    def unknown(self, model: str) -> FrontRefusal:
        """The model is none of those that are served."""
        return FrontRefusal(not_found(model, self._table.names()))

    async def send(
        self, request: web.BaseRequest, deployment: FrontDeployment, prefix: bytes, exchange: Exchange
    ) -> web.StreamResponse:
        """Have a replica answer; another one, where the first ends before a byte of its answer.

        Raises:
            FrontRefusal: no replica answers.
        """
        for _ in range(MAX_TRIES):
            replica = self.choose(deployment.name, prefix, exchange)
            load = self._table.load(replica)
            exchange.replica, exchange.lost = replica, False
            load.open += 1
            load.requests += 1
            failed = True
            try:
                async with await self._ask(request, exchange.body, replica, again=bool(exchange.tried)) as reply:
                    if reply.status == HTTPStatus.INTERNAL_SERVER_ERROR and not await self._lives(replica):
                        raise ConnectionResetError("the engine behind the API has ended")
                    # vLLM sends the head of a stream before its first token, which may never come.
                    begun = await reply.content.readany()
                    load.succeed()
                    if reply.status == HTTPStatus.UNAUTHORIZED:
                        # The client's own key was right.
                        words = "the replica refuses the key of the front: run vcluster up"
                        raise FrontRefusal(Refusal(502, "replica_key", words))
                    if not HTTPStatus.OK <= reply.status < MAX_STATUS:
                        words = f"the replica answers with the unknown HTTP status {reply.status}"
                        raise FrontRefusal(Refusal(502, "replica_status", words))
                    failed = False
                    self._bodies.release(exchange)
                    return await self._hand_on(request, reply, begun, exchange, replica)
            except (aiohttp.ClientError, OSError, asyncio.TimeoutError, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError) and not exchange.lost:
                    failed = False  # its client has gone
                    raise
                if not self._again(request, exchange, replica, error):
                    break
            finally:
                load.open -= 1
                load.failed += failed
                exchange.replica = None
        raise FrontRefusal(Refusal(503, "replica_lost", "the replica has ended before it answered: try again", 1))

    def _again(self, request: web.BaseRequest, exchange: Exchange, replica: FrontReplica, error: BaseException) -> bool:
        """Whether it may be sent again: to another replica, or where a kept connection has ended, to the same."""
        self._table.load(replica).fail(time.monotonic())
        first, exchange.tried = not exchange.tried, [*exchange.tried, replica.id]
        others = self._table.others(replica, exchange.tried)
        # Its end is read before the request is sent, or after it: then the other side resets the connection.
        ended = isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError)
        ended = first and ended and not isinstance(error, aiohttp.ClientConnectorError)
        return request.method in REPEATABLE and (others or ended)

    async def _ask(
        self, request: web.BaseRequest, body: bytes, replica: FrontReplica, *, again: bool
    ) -> aiohttp.ClientResponse:
        # Where one kept connection had ended the others may have too: all have waited as long.
        client = self._fresh if again else self._client
        dropped = _HOP | _REWRITTEN | _named(request.headers)
        headers: CIMultiDict[str] = CIMultiDict(
            (name, value)
            for name, value in request.headers.items()
            if name.lower() not in dropped and not name.lower().startswith("x-forwarded-")
        )
        url = self._at(replica, request.raw_path, headers)
        data = body if body or request.method in ("POST", "PUT", "PATCH") else None
        return await client.request(
            request.method, url, data=data, headers=headers, allow_redirects=False, trace_request_ctx=replica
        )

    def _at(self, replica: FrontReplica, target: str, headers: CIMultiDict[str]) -> URL:
        if key := self._key(replica):
            headers["Authorization"] = f"Bearer {key}"
        place = f"[{replica.host}]" if ":" in replica.host else replica.host
        return URL(f"http://{place}:{replica.port}{target}", encoded=True)

    async def fetch(self, target: str, replica: FrontReplica, most: int) -> bytes:
        """Ask a replica for a document; empty where it is larger than `most` bytes, or refused.

        Raises:
            ClientError, OSError: no answer.
        """
        headers: CIMultiDict[str] = CIMultiDict()
        url = self._at(replica, target, headers)
        async with self._client.get(url, headers=headers, allow_redirects=False, trace_request_ctx=replica) as reply:
            found = bytearray()
            async for piece in reply.content.iter_any():
                found += piece
                if len(found) > most:
                    return b""
            return bytes(found) if reply.status == HTTPStatus.OK else b""

    async def _lives(self, replica: FrontReplica) -> bool:
        """Whether a replica's engine does: vLLM answers 500 for what was open when a rank has ended, then is unhealthy.

        Only vLLM's own word for that, 503, shows that it has ended, or that nothing listens there: one that comes late
        shows nothing.
        """
        headers: CIMultiDict[str] = CIMultiDict()
        url = self._at(replica, "/health", headers)
        try:
            asked = self._client.get(url, headers=headers, allow_redirects=False, trace_request_ctx=replica)
            async with await asyncio.wait_for(asked, HEALTH_SECONDS) as reply:
                return reply.status != HTTPStatus.SERVICE_UNAVAILABLE
        except asyncio.TimeoutError:
            return True
        except (aiohttp.ClientError, OSError):
            return False

    async def _hand_on(
        self,
        request: web.BaseRequest,
        reply: aiohttp.ClientResponse,
        begun: bytes,
        exchange: Exchange,
        replica: FrontReplica,
    ) -> web.StreamResponse:
        """Hand on an answer as it comes; one that breaks off gets no made-up end."""
        dropped = _HOP | _named(reply.headers)
        headers = CIMultiDict((name, value) for name, value in reply.headers.items() if name.lower() not in dropped)
        try:
            given = web.StreamResponse(status=reply.status, reason=reply.reason, headers=headers)
            await given.prepare(request)
        except ValueError:
            self._table.load(replica).failed += 1
            words = "the replica answers with a header that is not HTTP"
            raise FrontRefusal(Refusal(502, "replica_header", words)) from None
        try:
            await given.write(begun)
            async for piece in reply.content.iter_any():
                await given.write(piece)
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError, asyncio.CancelledError) as error:
            gone = request.transport is None or request.transport.is_closing()
            if gone or (isinstance(error, asyncio.CancelledError) and not exchange.lost):
                raise asyncio.CancelledError from error
            self._table.load(replica).failed += 1
            self.broken += 1
            if request.transport:
                request.transport.close()
        return given


def _named(headers: CIMultiDictProxy[str]) -> set[str]:
    """The headers that `Connection` names: they are not for the other side either."""
    listed = ",".join(headers.getall("Connection", []))
    # Framing and credentials are never chosen by it; what it may not name is dropped or written again in any case.
    return {name.strip().lower() for name in listed.split(",")} - {"", "content-length", "content-type"}
