"""A node that has the cluster's token, keeps its beats, and reports of its parts what it likes."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from hashlib import sha256
from typing import Any

from tests.support.node.world import HEAD, TOKEN, World
from vllm_cluster.wire.roll import Signed, hello_line, new_nonce

BEAT = 0.1
Answer = Callable[[list[dict[str, Any]]], Iterable[dict[str, Any]]]


class Liar:
    """A worker on which no vLLM runs; `answer` are the reports for its orders."""

    def __init__(self, world: World, answer: Answer, name: str, address: str, source: str = "") -> None:
        key, nonce, self._answer = sha256(b"roll " + TOKEN.encode()).hexdigest(), new_nonce(), answer
        self._connection = socket.create_connection((HEAD, world.roll), 10, (source or address, 0))
        self._file = self._connection.makefile("rb")
        offer = json.loads(self._file.readline())["nonce"]
        self._signed = Signed(key, "worker", "head", (offer, nonce))
        self._orders: list[dict[str, Any]] = []
        hello = {"host": name, "address": address, "gpus": 2, "nonce": nonce}
        self._connection.sendall(hello_line(key, offer, hello))
        for work in (self._read, self._beat):
            threading.Thread(target=work, daemon=True).start()

    def close(self) -> None:
        """Go, as a host that lost its power."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _read(self) -> None:
        with suppress(OSError, ValueError):
            for line in self._file:
                self._orders = json.loads(self._signed.body(line.rstrip(b"\n"))).get("parts", [])

    def _beat(self) -> None:
        with suppress(OSError):
            while True:
                self._connection.sendall(self._signed.line({"parts": [*self._answer(self._orders)]}))
                time.sleep(BEAT)


def never_over() -> Answer:
    """Report every part that was ever ordered as one that runs."""
    seen = dict[str, dict[str, Any]]()

    def answer(orders: list[dict[str, Any]]) -> Iterable[dict[str, Any]]:
        seen.update({one["id"]: {"id": one["id"], "phase": "loading"} for one in orders})
        return seen.values()

    return answer
