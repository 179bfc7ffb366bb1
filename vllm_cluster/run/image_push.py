"""An image from one host to others, without a registry: the layers that they lack, host to host where that is open."""

from __future__ import annotations

import json
import math
import re
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import Any

from vllm_cluster.core.identity import Owner
from vllm_cluster.core.images import Content
from vllm_cluster.core.spec import Mount
from vllm_cluster.docker.temporary import TemporaryContainer
from vllm_cluster.errors import ConnectionLost, HostError, PreflightFailed
from vllm_cluster.events import Emit, Event
from vllm_cluster.run.connection import HostConnection
from vllm_cluster.run.host_images import held, name_there
from vllm_cluster.run.program import OnHost, RemoteProgram, RunningProgram, python, start
from vllm_cluster.text import size

# 20 GB at 25 Mbit/s.
PUSH_SECONDS = 7200.0
START_SECONDS = 120.0
TOKEN_BYTES = 16
# One that sends or takes nothing for so long is gone: a disk that is busy with a layer takes its time.
STALL_SECONDS = 120.0
DIAL_SECONDS = 10.0
PIECE = 256 << 10
# Where the sending container sees Docker's folder.
ROOT = "/docker"
LOOPBACK = "127.0.0.1"
# How the script below ends where the sender cannot be reached from this host; without bash it is 127.
CLOSED = 97
# As runc and crun report it.
_NO_PYTHON = re.compile(r"exec: \"python3\": executable file not found|executable file `python3` not found")
_LOADED = re.compile(r"Loaded image(?: ID)?: (\S+)")
# bash reaches a port by itself: a host need have neither curl nor Python. The line is the token's, and no argument.
RECEIVE = """set -o pipefail
timeout 5 bash -c 'exec 3<>"/dev/tcp/$0/$1"' "$1" "$2" 2>/dev/null || exit 97
IFS= read -r line
exec 3<>"/dev/tcp/$1/$2" || exit 97
printf '%s\\n' "$line" >&3
cat <&3 | docker load"""


@dataclass(frozen=True)
class Stored:
    """Where an image is: the way there, and the address at which other hosts reach it: the loopback where none does.

    `name` is the one that it was asked for by.
    """

    connection: HostConnection
    image: Content
    address: str
    name: str


class ImageSource:
    """An image on a host, to be sent to others while this is open. Safe to use from several threads."""

    def __init__(self, stored: Stored, owner: Owner, emit: Emit) -> None:
        self.connection, self.image, self.emit = stored.connection, stored.image, emit
        self._address, self._owner, self._name = stored.address, owner, stored.name
        self._token = stored.connection.runtime.token(TOKEN_BYTES)
        self._program: RunningProgram | None = None
        self._port = 0
        self._layers: tuple[int, ...] = ()
        self._lock = threading.Lock()
        self._receiving: dict[str, RunningProgram] = {}
        self._failed: dict[str, str] = {}

    def __enter__(self) -> ImageSource:
        """Start the program that reads its layers.

        Raises:
            PreflightFailed: the image has no Python, which also every node runs.
        """
        try:
            self._start()
        except (HostError, ValueError, LookupError, TypeError) as error:
            if isinstance(error, ConnectionLost):
                raise
            self._end()
            why = error.detail if isinstance(error, HostError) else str(error)
            if _NO_PYTHON.search(why):
                text = f"{self._name} has no python3, and no node can be made from it: nothing was sent"
                raise PreflightFailed(text, hint="name an image of vLLM") from error
            text = f"cannot read single layers ({why}): the whole image is sent, through this machine"
            self.emit(Event("warning", text, self.connection.name, {"code": "image-whole"}))
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _start(self) -> None:
        runtime = self.connection.runtime
        folder = Mount(self.connection.engine.root(), ROOT, read_only=True)
        place = TemporaryContainer(self._owner, "image", self.image.id, network="host", user="0:0", folders=(folder,))
        # A line a second for each receiver, for two hours.
        program = replace(python("image", "send_image", seconds=PUSH_SECONDS), max_bytes=math.inf)
        self._program = start(self.connection, program, place, runtime.after(START_SECONDS))
        asked = {"address": self._address, "root": ROOT, "image": self.image.id, "token": self._token}
        self._program.send(asked)
        first = self._program.next(runtime.after(START_SECONDS))
        if "error" in first:
            raise ValueError(str(first["error"])[:200])
        self._port, self._layers = int(first["port"]), tuple(map(int, first["layers"]))
        runtime.background(self._listen, "image sender")

    def _end(self) -> None:
        program, self._program = self._program, None
        if program:
            program.end(self.connection.runtime.after(DIAL_SECONDS))

    def _listen(self) -> None:
        """Show what is sent, and end a receiver whose way broke: it would wait for bytes that never come."""
        program = self._program
        with suppress(HostError):
            for row in program.messages(self.connection.runtime.after(PUSH_SECONDS)) if program else ():
                name = str(row.get("to"))
                if "error" in row:
                    self._failed[name] = str(row["error"])[:200]
                    with self._lock:
                        receiving = self._receiving.get(name)
                    if receiving:
                        receiving.close()
                elif isinstance(row.get("sent"), int):
                    self.emit(_received(name, row["sent"], done=bool(row.get("done"))))

    def size(self, have: int) -> int:
        """The bytes that are sent to one that has the first layers."""
        return sum(self._layers[have:]) if self._layers else self.image.size

    def send(self, receiver: HostConnection, have: int, name: str) -> None:
        """Bring the image to a host that has the first layers of it, and give it a name there.

        Raises:
            HostError: it is not there afterwards, as it is here.
        """
        line: dict[str, Any] = {"token": self._token, "to": receiver.name, "have": have}
        if self._program is None:
            printed = self._pour(self._saved(), receiver)
        elif self._address == LOOPBACK:
            printed = self._pour(self._relayed(line), receiver)
        elif (received := self._receive(receiver, line)) is not None:
            printed = received
        else:
            text = f"{receiver.name} cannot reach {self._address}:{self._port}: the image goes through this machine"
            self.emit(Event("note", text))
            printed = self._pour(self._relayed(line), receiver)
        loaded = _LOADED.search(printed)
        there = held(receiver, loaded[1] if loaded else self.image.id)
        if there is None or there.layers != self.image.layers:
            raise HostError(receiver.name, f"the image is not whole there: {printed.strip()[-300:]}")
        name_there(receiver, there.id, name)

    def _receive(self, receiver: HostConnection, line: dict[str, Any]) -> str | None:
        """Let the host get it by itself; what docker printed, or None where there is no way from it to here."""
        argv = ("bash", "-c", RECEIVE, "bash", self._address, str(self._port))
        runtime = receiver.runtime
        program = RemoteProgram("docker load", argv, changes=True)
        with start(receiver, program, OnHost(), runtime.after(START_SECONDS)) as running:
            with self._lock:
                self._receiving[receiver.name] = running
            try:
                with suppress(HostError):  # where it has ended already, its end has the reason
                    running.send(line)
                finished = running.finish(runtime.after(PUSH_SECONDS))
            except HostError:
                self._raise_why(receiver.name)
                raise
        if finished.code in (CLOSED, 127):
            return None
        if finished.code:
            self._raise_why(receiver.name)
            raise HostError(receiver.name, f"docker load failed: {finished.text[-300:]}")
        return finished.printed

    def _raise_why(self, receiver: str) -> None:
        """Raise what the sender reported: a receiver knows only that its archive ends too early."""
        if why := self._failed.get(receiver):
            raise HostError(receiver, f"{self.connection.name} did not send the image to its end: {why}")

    def _relayed(self, line: dict[str, Any]) -> Iterator[bytes]:
        """The archive for a host, over the connection that this machine has to the source."""
        with (
            closing(self.connection.transport.forward(self._port, remote_host=self._address)) as way,
            socket.create_connection((LOOPBACK, way.local_port), DIAL_SECONDS) as peer,
        ):
            peer.settimeout(STALL_SECONDS)
            peer.sendall(json.dumps(line).encode() + b"\n")
            while piece := peer.recv(PIECE):
                yield piece

    def _saved(self) -> Iterator[bytes]:
        """The whole image, as `docker save` writes it."""
        deadline = self.connection.runtime.after(START_SECONDS)
        with closing(self.connection.transport.open_stream(("docker", "save", self.image.id), deadline)) as stream:
            # Docker reads the image into files before it sends the first byte.
            stream.settimeout(PUSH_SECONDS)
            while piece := stream.recv(PIECE):
                yield piece
            if stream.exit_code():
                raise HostError(self.connection.name, f"docker save failed: {stream.stderr_tail()[-300:]}")

    def _pour(self, pieces: Iterable[bytes], receiver: HostConnection) -> str:
        """Send an archive to a host's `docker load`; what that printed."""
        runtime, sent, due = receiver.runtime, 0, receiver.runtime.after(1)
        stream = receiver.open_changing(("docker", "load"), runtime.after(START_SECONDS))
        with closing(stream):
            try:
                stream.settimeout(STALL_SECONDS)
                for piece in pieces:
                    stream.sendall(piece)
                    sent += len(piece)
                    if not due.left():
                        self.emit(_received(receiver.name, sent))
                        due = runtime.after(1)
                stream.shutdown_write()
                self.emit(_received(receiver.name, sent, done=True))
                stream.settimeout(PUSH_SECONDS)
                printed = b""
                while piece := stream.recv(PIECE):
                    printed = (printed + piece)[-PIECE:]
            except (OSError, EOFError) as error:
                why = stream.stderr_tail().strip()[-300:] or str(error) or type(error).__name__
                raise HostError(receiver.name, f"the image did not arrive: {why}") from error
            if stream.exit_code():
                raise HostError(receiver.name, f"docker load failed: {stream.stderr_tail()[-300:]}")
        return printed.decode("utf-8", "replace")


def _received(host: str, count: int, *, done: bool = False) -> Event:
    # Of 9.8 GB Docker took 44 s for what had been sent in 12.
    text = f"has all {size(count)}: its Docker unpacks it" if done else f"received {size(count)} of the image"
    return Event("progress", text, host, {"bytes": count})
