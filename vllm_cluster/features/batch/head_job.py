"""A batch that runs on the head: its folder in the node's state, and the program that looks after it."""

from __future__ import annotations

import base64
import hashlib
import math
import secrets
import zlib
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace

from vllm_cluster.features.batch.replies import LINE, BegunAgain, JobLook, T, read_look, read_reply, read_size
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import HostError, NodeMissing
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.hosts.connection import Fleet
from vllm_cluster.kernel.hosts.program import InNode, Message, RunningProgram, python, start
from vllm_cluster.kernel.hosts.runtime import Runtime
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.node.handle import NodeHandle, open_node
from vllm_cluster.kernel.node.program import importable
from vllm_cluster.kernel.plan.desired import STATE_FOLDER

START_SECONDS, AGAIN_SECONDS = 30.0, 2.0
# A program that reads lines of gigabytes, or ends another that holds many connections.
REPLY_SECONDS = 300.0
# Where the head is not waited for, as when a person only looks.
SHORT_REPLY_SECONDS = 30.0
# The program that looks after the batch ends with this connection; the batch does not.
LIFE_SECONDS = 1e6
# A request that so often ends the program that it reached is at fault itself.
TRIES = 5
# A piece is sent within the deadline of one message also at 1 Mbit/s.
PIECE = 512 << 10


def begin(node: NodeHandle, folder: str, deadline: Deadline, seconds: float = LIFE_SECONDS) -> RunningProgram:
    """Start the program that looks after the batch in a folder; it answers until its input or its seconds end.

    Raises:
        HostError: it cannot be started by then.
    """
    program = python("features.batch.on_host", "batch_job", folder, seconds=seconds)
    program = replace(program, max_line=LINE, max_bytes=math.inf)
    return start(node.connection, program, InNode(node.name), deadline)


class HeadJob:
    """One batch on the head, over a connection that is opened again as often as it breaks."""

    def __init__(self, inventory: Inventory, key: str, emit: Emit, wait: float, runtime: Runtime) -> None:
        """`key` names the batch; the head may be away for `wait` seconds at a time."""
        self._inventory, self._emit, self._wait, self._runtime = inventory, emit, wait, runtime
        self._reply = min(REPLY_SECONDS, max(wait, SHORT_REPLY_SECONDS))
        self.host, self.folder = inventory.head_name, f"{STATE_FOLDER}/batch/{key}"
        self._stack = ExitStack()
        self._running: RunningProgram | None = None
        self._id: str | None = None

    def __enter__(self) -> HeadJob:
        try:
            self._open()
        except BaseException:
            self._drop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._drop()

    def ask(self, do: str, read: Callable[[Message], T], **more: object) -> T:
        """Return the reply to a request; each may be sent again without harm.

        Raises:
            BegunAgain: another call has begun the batch again since the first look.
            HostError: the head refuses it, replies something else, or does not answer for too long.
        """
        known = {} if self._id is None else {"id": self._id}
        return read_reply(self.host, self._answer({"do": do, **known, **more}), read)

    def act(self, do: str, **more: object) -> None:
        """Have something done; as `ask`."""
        self.ask(do, lambda _: None, **more)

    def look(self, at: int) -> JobLook:
        """Look how far it is, with rows from a place on; what follows is about what the first look finds. As `ask`."""
        found = self.ask("look", read_look, **{"from": at})
        self._id = found.state.id if self._id is None else self._id
        return found

    def forget(self) -> None:
        """Have the next look be the first one."""
        self._id = None

    def _answer(self, row: Message) -> Message:
        deadline, shown, sent = self._runtime.after(self._wait), "", 0
        while True:
            try:
                running = self._running or self._open()
                sent += 1
                running.send(row)
                return running.next(self._runtime.after(self._reply))
            except (HostError, NodeMissing) as error:  # the connection broke, or the container starts again
                self._drop()
                if not deadline.left() or sent >= TRIES:
                    raise
                if error.message != shown:
                    shown = error.message
                    text = f"waiting for {shown}; the batch runs on there"
                    self._emit(Event("note", text, data={"code": "waiting"}))
                self._runtime.clock.sleep(min(AGAIN_SECONDS, deadline.left()))

    def _open(self) -> RunningProgram:
        fleet = self._stack.enter_context(Fleet(self._inventory, self._runtime, [self.host]))
        node = open_node(self._inventory, fleet.connections[self.host])
        node.ensure_running()
        begun = begin(node, self.folder, self._runtime.after(START_SECONDS))
        running = self._stack.enter_context(begun)
        # Docker takes the input of a program also where its container does not run, as while it starts again.
        running.send({"do": "batches"})
        running.next(self._runtime.after(self._reply))
        self._running = running
        return running

    def _drop(self) -> None:
        self._running = None
        self._stack.close()

    def send(self, asked: Message, lines: Iterable[bytes], shown: Callable[[int], None]) -> None:
        """Make the batch again with these lines. `shown` gets how many bytes are there.

        Raises:
            HostError: its disk is full, or another call sends the same batch.
        """
        try:
            self._send(asked, lines, shown)
        except BegunAgain as error:
            raise HostError(self.host, f"{error.detail} while its lines were sent", again=()) from None

    def _send(self, asked: Message, lines: Iterable[bytes], shown: Callable[[int], None]) -> None:
        new = secrets.token_hex(16)
        self.act("begin", asked=asked, new=new)
        self._id = new
        checksum, at, piece = hashlib.sha256(), 0, bytearray()
        for line in lines:
            checksum.update(line)
            piece += line
            if len(piece) >= PIECE:
                at = self._put(at, bytes(piece))
                piece.clear()
                shown(at)
        self._put(at, bytes(piece))
        self.act("sent", sha256=checksum.hexdigest())

    def _put(self, at: int, piece: bytes) -> int:
        data = base64.b64encode(zlib.compress(piece, 1)).decode()
        size = self.ask("put", read_size, at=at, data=data)
        if size != at + len(piece):
            raise HostError(self.host, "batch: another call sends the same batch", again=())
        return size

    def start(self, options: Message) -> None:
        """Start its program, where it does not run.

        Raises:
            HostError: it does not start.
        """
        # Beside the border it needs the standard library and the image's aiohttp alone.
        files = importable("vllm_cluster.features.batch.on_head")
        program = {path: content.decode() for path, content in files.items()}
        self.act("start", program=program, options={**options, "state": STATE_FOLDER})
