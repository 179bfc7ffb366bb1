"""What GET /v1/models gives: what a replica of each deployment lists, asked once for all who ask meanwhile."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from aiohttp import ClientError

from vllm_cluster.serving.node.front_proxy import Proxy
from vllm_cluster.serving.node.front_routes import Table, merge_model_lists, model_rows
from vllm_cluster.wire.front import FrontDeployment

# Of one list and of all: what is parsed of empty lists takes 20 times as much.
MAX_BYTES, MAX_ALL = 1 << 20, 4 << 20
# A client waits for as long as one replica of any deployment does not answer, twice.
ASK_SECONDS = 3.0


class FrontModels:
    """Asks a replica of each deployment, and keeps the names that are listed in the table."""

    def __init__(self, table: Table, proxy: Proxy) -> None:
        self._table, self._proxy = table, proxy
        self._asking: asyncio.Task[bytes | None] | None = None

    async def listed(self) -> bytes | None:
        """All of them as one document; None where no replica has answered."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        # A client that goes ends its own wait alone.
        return await asyncio.shield(self._asking)

    async def _ask(self) -> bytes | None:
        routes = self._table.routes
        most = min(MAX_BYTES, MAX_ALL // max(len(routes.deployments), 1))
        lists = await asyncio.gather(*(self._list(one, most) for one in routes.deployments))
        found = {one.name: rows for one, rows in zip(routes.deployments, lists, strict=True)}
        for name, rows in found.items():
            if rows is not None:
                self._table.learn(name, (str(row["id"]) for row in rows))
        return merge_model_lists(routes, found.get) if any(found.values()) else None

    async def _list(self, deployment: FrontDeployment, most: int) -> list[dict[str, object]] | None:
        avoid: list[str] = []
        while len(avoid) < 2:
            replica = self._table.choose(deployment, b"", time.monotonic(), avoid)
            if replica is None or replica.id in avoid:
                return None
            avoid.append(replica.id)
            with suppress(ClientError, OSError, asyncio.TimeoutError):
                asked = self._proxy.fetch("/v1/models", replica, most)
                if (rows := model_rows(await asyncio.wait_for(asked, ASK_SECONDS))) is not None:
                    return rows
        return None
