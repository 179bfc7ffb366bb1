"""What the front takes of a connection before a request of it is answered, with any version of aiohttp."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from unittest.mock import MagicMock

from aiohttp import web

from vllm_cluster.serving.node.front_door import ClientConnection, Door

REQUEST = b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n"


def connected(act: Callable[[ClientConnection, MagicMock], None], unproved: int = 1 << 20) -> None:
    """Have a connection of a stranger, of which no request is answered meanwhile."""

    async def main() -> None:
        async def never(_: web.BaseRequest) -> web.StreamResponse:
            raise AssertionError

        connection = ClientConnection(web.Server(never), Door(8, 1.0, lambda status: None, unproved))
        transport = MagicMock(spec=asyncio.Transport)
        connection.connection_made(transport)
        act(connection, transport)
        connection.connection_lost(None)

    asyncio.run(main())


# fault: serving/node/front_door.py: while self._ahead and not self._messages: → while self._ahead:
# fault: serving/node/front_door.py: self._held = self._held, bool(self._ahead) → self._held = self._held, False
def test_requests_that_follow_one_another_wait_unparsed() -> None:
    """aiohttp 3.13 parses all that has come: 86 MB of them took 485 MB, and others waited 15 s for an answer."""

    def act(connection: ClientConnection, transport: MagicMock) -> None:
        connection.data_received(REQUEST * 8000)
        assert 1 <= len(connection._messages) <= 512 / len(REQUEST) + 1
        transport.pause_reading.assert_called()
        for _ in range(4000):
            connection._messages.clear()
            connection.take()
        assert not connection._messages
        transport.resume_reading.assert_called()

    connected(act)


# fault: serving/node/front_door.py: len(piece) + LINE_BYTES * piece.count(b"\n") → len(piece)
# fault: serving/node/front_door.py: if self._messages: → if False:
def test_a_head_counts_by_its_lines() -> None:
    """20 MB of short ones took 600 MB with aiohttp 3.13, which has no limit for their number."""

    def act(connection: ClientConnection, transport: MagicMock) -> None:
        connection.data_received(REQUEST + REQUEST[:-2] + b"a:b\r\n" * 50)
        connection._messages.clear()
        connection.data_received(b"a:b\r\n" * 10)
        transport.close.assert_not_called()
        connection.data_received(b"a:b\r\n" * 60)
        transport.close.assert_called()

    connected(act, unproved=10_000)
