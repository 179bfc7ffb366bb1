"""A request by HTTP of which every byte comes by one deadline, the heads and the trailers too.

The time-outs of requests are for each receive: a server that drips, or floods with interim answers or trailers, which
the standard library reads to their end, would be waited for without end.
"""

from __future__ import annotations

import http.client
import io
import socket
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from vllm_cluster.kernel.clock import Deadline


class _TimedSocket(io.RawIOBase):
    """What is read of a socket, by a deadline."""

    def __init__(self, raw: socket.SocketIO, deadline: Deadline) -> None:
        self._raw, self._deadline = raw, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if not self._deadline.left():
            raise TimeoutError("timed out")
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def timed_get(url: str, deadline: Deadline, **given: Any) -> requests.Response:
    """As `requests.get`; what comes after the deadline is a time-out.

    Raises:
        RequestException: as `requests.get`.
    """

    class Response(http.client.HTTPResponse):
        def __init__(self, sock: socket.socket, *words: Any, **more: Any) -> None:
            super().__init__(sock, *words, **more)
            self.fp = io.BufferedReader(_TimedSocket(self.fp.detach(), deadline))  # type: ignore[arg-type]

    def timed(pool: type[HTTPConnectionPool]) -> type[HTTPConnectionPool]:
        connection = type("Timed", (pool.ConnectionCls,), {"response_class": Response})
        return type("TimedPool", (pool,), {"ConnectionCls": connection})

    pools = {"http": timed(HTTPConnectionPool), "https": timed(HTTPSConnectionPool)}

    class Adapter(HTTPAdapter):
        def init_poolmanager(self, *words: Any, **more: Any) -> None:
            super().init_poolmanager(*words, **more)
            self.poolmanager.pool_classes_by_scheme = pools

        def proxy_manager_for(self, *words: Any, **more: Any) -> Any:
            manager = super().proxy_manager_for(*words, **more)
            manager.pool_classes_by_scheme = pools
            return manager

    with requests.Session() as session:
        session.mount("http://", Adapter())
        session.mount("https://", Adapter())
        return session.get(url, **given)
