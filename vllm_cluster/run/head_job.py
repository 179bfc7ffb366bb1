"""A batch that runs on the head: its folder in the node's state, and the program that looks after it."""

from __future__ import annotations

import base64
import hashlib
import math
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from vllm_cluster.clock import Deadline
from vllm_cluster.core.desired import STATE_FOLDER
from vllm_cluster.errors import HostError, NodeMissing
from vllm_cluster.events import Emit, Event
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.run.connection import Fleet
from vllm_cluster.run.node_handle import NodeHandle
from vllm_cluster.run.node_program import importable
from vllm_cluster.run.open_node import open_node
from vllm_cluster.run.program import InNode, RunningProgram, python, start
from vllm_cluster.run.runtime import Runtime

START_SECONDS, AGAIN_SECONDS = 30.0, 2.0
# A program that reads an output of gigabytes, or ends another that holds many connections.
REPLY_SECONDS = 300.0
# The program that looks after the batch ends with this connection; the batch does not.
LIFE_SECONDS = 1e6
# A request that so often ends the program that it reached is at fault itself.
TRIES = 5
# A piece is sent within the deadline of one message also at 1 Mbit/s.
PIECE, LINE = 512 << 10, 4 << 20


def begin(node: NodeHandle, folder: str, deadline: Deadline, seconds: float = LIFE_SECONDS) -> RunningProgram:
    """Start the program that looks after the batch in a folder; it answers until its input or its seconds end.

    Raises:
        HostError: it cannot be started by then.
    """
    program = python("image", "batch_job", folder, seconds=seconds)
    program = replace(program, max_line=LINE, max_bytes=math.inf)
    return start(node.connection, program, InNode(node.name), deadline)


class HeadJob:
    """One batch on the head, over a connection that is opened again as often as it breaks."""

    def __init__(self, inventory: Inventory, key: str, emit: Emit, wait: float, runtime: Runtime) -> None:
        """`key` names the batch; the head may be away for `wait` seconds at a time."""
        self._inventory, self._emit, self._wait, self._runtime = inventory, emit, wait, runtime
        self.host, self.folder = inventory.head_name, f"{STATE_FOLDER}/batch/{key}"
        self._stack = ExitStack()
        self._running: RunningProgram | None = None

    def __enter__(self) -> HeadJob:
        try:
            self._open()
        except BaseException:
            self._drop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._drop()

    def ask(self, do: str, **more: Any) -> dict[str, Any]:
        """The reply to a request; each may be sent again without harm.

        Raises:
            HostError: the head refuses it, or does not answer for too long.
        """
        reply = self._answer({"do": do, **more})
        if "error" in reply:
            raise HostError(self.host, f"batch: {reply['error']}")
        return reply

    def _answer(self, row: dict[str, Any]) -> dict[str, Any]:
        deadline, shown, sent = self._runtime.after(self._wait), "", 0
        while True:
            try:
                running = self._running or self._open()
                sent += 1
                running.send(row)
                return running.next(self._runtime.after(REPLY_SECONDS))
            except (HostError, NodeMissing) as error:  # the connection broke, or the container starts again
                self._drop()
                if not deadline.left() or sent >= TRIES:
                    raise
                if error.message != shown:
                    shown = error.message
                    text = f"waiting for {shown}; the batch runs on there"
                    self._emit(Event("note", text, data={"code": "waiting"}))
                self._pause(deadline)

    def _pause(self, deadline: Deadline) -> None:
        self._runtime.clock.sleep(min(AGAIN_SECONDS, deadline.left()))

    def _open(self) -> RunningProgram:
        fleet = self._stack.enter_context(Fleet(self._inventory, self._runtime))
        node = open_node(self._inventory, fleet.connections[self.host])
        begun = begin(node, self.folder, self._runtime.after(START_SECONDS))
        self._running = self._stack.enter_context(begun)
        return self._running

    def _drop(self) -> None:
        self._running = None
        self._stack.close()

    def send(self, name: str, path: Path, *, resume: bool, shown: Callable[[int], None]) -> None:
        """Send a file; `resume` where one that broke off has the same content. `shown` gets how much is there.

        Raises:
            HostError: its disk is full, or the file changed meanwhile.
        """
        at = int(self.ask("put", file=name)["size"]) if resume else 0
        checksum = hashlib.sha256()
        with path.open("rb") as file:
            for piece in _pieces(file.read, at):
                checksum.update(piece)
            if not at:
                self.ask("put", file=name, at=0)
            while piece := file.read(PIECE):
                checksum.update(piece)
                at = int(self.ask("put", file=name, at=at, data=_packed(piece))["size"])
                shown(at)
        self.ask("put", file=name, sha256=checksum.hexdigest())

    def start(self, options: dict[str, Any]) -> None:
        """Start its program, where it does not run.

        Raises:
            HostError: it does not start.
        """
        self.ask("start", program=program(), options={**options, "state": STATE_FOLDER})


def _pieces(read: Callable[[int], bytes], size: int) -> Iterator[bytes]:
    while size and (piece := read(min(size, PIECE))):
        yield piece
        size -= len(piece)


def _packed(piece: bytes) -> str:
    return base64.b64encode(zlib.compress(piece, 1)).decode()


def unpacked(reply: dict[str, Any]) -> bytes:
    """The piece of a file in a reply."""
    return zlib.decompress(base64.b64decode(reply["data"]))


def program() -> dict[str, str]:
    """The files of the program that answers a batch: the package `batch`, which needs the standard library alone."""
    return {path: content.decode() for path, content in importable("vllm_cluster.batch").items()}
