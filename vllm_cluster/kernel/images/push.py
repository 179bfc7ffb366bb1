"""An image from one host to others, without a registry: as blobs, from host to host as the files of a model go."""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import ConnectionLost, HostError, PreflightFailed
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.hosts.connection import Fleet, HostConnection
from vllm_cluster.kernel.images.carrier import (
    PUSH_SECONDS,
    START_SECONDS,
    WITHOUT_SOURCE,
    CarrierRow,
    ImageBlobs,
    ImageCarrier,
    load_seconds,
    load_with_room,
)
from vllm_cluster.kernel.images.for_docker import Checks, Config, LayerTar
from vllm_cluster.kernel.images.host_images import discard, find_held_image, name_there, shared_with
from vllm_cluster.kernel.plan.identity import Owner
from vllm_cluster.kernel.plan.images import NODE_IMAGE_REPOSITORY, Content
from vllm_cluster.kernel.shell_line import Option, command_line
from vllm_cluster.kernel.text import end_of, size
from vllm_cluster.kernel.transport.base import Stream
from vllm_cluster.wire.pull import ChainHost, HostPlan, ModelFile

KEY_BYTES = 32
# One that sends or takes nothing for so long is gone: a disk that is busy with a layer takes its time.
STALL_SECONDS = 120.0
PIECE = 256 << 10
LOOPBACK = "127.0.0.1"
# As runc and crun report it.
_NO_PYTHON = re.compile(r"exec: \"python3\": executable file not found|executable file `python3` not found")
_LOADED = re.compile(r"Loaded image(?: ID)?: (\S+)")


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

    def __init__(self, stored: Stored, fleet: Fleet, hosts: Sequence[str], owner: Owner, emit: Emit) -> None:
        """`hosts` are all that may get it."""
        self.connection, self.image, self.emit = stored.connection, stored.image, emit
        self._stored, self._fleet, self._hosts, self._owner = stored, fleet, tuple(hosts), owner
        self._runtime = stored.connection.runtime
        self._key = self._runtime.token(KEY_BYTES)
        self._opened = ExitStack()
        self._blobs = ImageBlobs("", (), {})
        # Of the layers, how many from the lowest every host has.
        self._have = 0
        # Whether other hosts can ask the source for blobs.
        self._serves = False

    def __enter__(self) -> ImageSource:
        """Split the image into blobs, and serve them.

        Raises:
            PreflightFailed: the image has no Python, which also every node runs.
            HostError: the source cannot give it.
        """
        try:
            self._open()
        except BaseException:
            self._opened.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def _open(self) -> None:
        have = self._fleet.all(lambda connection: shared_with(connection, self.image, self.emit), self._hosts)
        self._have = min(have.values(), default=0)
        source = self._carrier(self.connection, self.image.id)
        self._source = source
        self.emit(Event("progress", "reads the image", self.connection.name))
        self._blobs = source.split(self.image, self._have, self._read)
        if self._stored.address == LOOPBACK:
            return
        answer = source.ask(self._plan(self.connection.name))
        self._serves = answer.serving
        if not self._serves:
            text = f"cannot serve the image to the others ({answer.error}): it goes through this machine"
            self.emit(Event("warning", text, self.connection.name, {"code": "image-relayed"}))

    def _carrier(self, connection: HostConnection, image_id: str) -> ImageCarrier:
        try:
            return self._opened.enter_context(ImageCarrier(connection, self._owner, image_id))
        except HostError as error:
            if _NO_PYTHON.search(error.detail):
                text = f"{self._stored.name} has no python3, and no node can be made from it: nothing was sent"
                raise PreflightFailed(text, hint="name an image of vLLM") from error
            raise

    def _read(self, count: int) -> None:
        self.emit(Event("progress", f"has read {size(count)} of the image", self.connection.name, {"bytes": count}))

    def _plan(self, me: str) -> HostPlan:
        """The plan of a pull whose files are the blobs, in the order in which all hosts get them."""
        at = {name: address for address, name in self._fleet.addresses.items()}
        source, port = self.connection.name, self._fleet.pull_port
        hosts = [(source, self._stored.address), *((name, at[name]) for name in self._hosts if name != source)]
        return HostPlan(
            id="image",
            key=self._key,
            model=self._stored.name,
            commit="",
            reference="",
            endpoint="",
            cache=".",
            folder="blobs",
            kind="folder",
            me=me,
            hosts=tuple(ChainHost(name, address, port) for name, address in hosts),
            files=tuple(ModelFile(blob, count, blob) for blob, count in self._blobs.sizes.items()),
        )

    @property
    def lacking(self) -> int:
        """How many layers are sent."""
        return len(self.image.layers) - self._have

    @property
    def size(self) -> int:
        """The bytes that each host gets."""
        return self._blobs.size

    def send(self, receiver: HostConnection, name: str, wanted: Content) -> str:
        """Bring the image to one of the hosts, give it a name there, and return its id there.

        `wanted` is what it is by the word of the machine that decides: this source may only pass it on.

        Raises:
            HostError: it is not there afterwards, as it is on that machine.
        """
        before = {one.id for one in receiver.docker.images()}
        printed = self._spread(receiver) if self._serves else None
        if printed is None:
            printed = self._pour(receiver)
        loaded = _LOADED.search(printed)
        there = find_held_image(receiver, loaded[1] if loaded else self.image.id)
        source, hint = self.connection.name, ""
        if there is None:
            why = f"the image is not whole there: {end_of(printed, 300)}"
        elif not there.is_what_is_named(wanted):
            # Docker's own store makes an id of what it means: the receiver's shows it, and not the source.
            why = f"what {source} sent as {wanted.id[:19]} is {there.id[:19]} there, and is not used"
            hint = command_line("vcluster", "image", "push", Option("--from"), source)
        else:
            name_there(receiver, there.id, name)
            return there.id
        # What was there is not of this push: a source could name any image by giving that in place of its own.
        if there and there.id not in before and not discard(receiver, there.id):
            why += f"; {there.id[:19]} is left there, since it has a name or a container by now"
        raise HostError(receiver.name, why, hint=hint, again=())

    def _spread(self, receiver: HostConnection) -> str | None:
        """Let the host get it from the others; what docker printed, or None where it cannot."""
        try:
            carrier = self._carrier(receiver, _with_python(receiver))
            answer = carrier.ask(self._plan(receiver.name))
        except ConnectionLost:
            raise
        except HostError as error:
            answer = CarrierRow(error=error.detail)
        if answer.serving:
            answer = carrier.follow(lambda count: self.emit(_received(receiver.name, count)))
        if answer.whole:
            self.emit(_received(receiver.name, self.size, done=True))
            try:
                return carrier.load(self._blobs, self.connection.name)
            except ValueError as error:
                raise self._refused(str(error)) from None
        if answer.bytes:
            raise HostError(receiver.name, f"the image did not arrive: {answer.error}", again=())
        text = f"{receiver.name} cannot get the image from the hosts: it goes through this machine"
        self.emit(Event("note", f"{text} ({answer.error})"))
        return None

    def _pour(self, receiver: HostConnection) -> str:
        """Send the blobs through this machine to a host's `docker load`; what that printed."""
        runtime, sent, shown = receiver.runtime, 0, receiver.runtime.after(1)
        stream = receiver.open_changing(load_with_room(self.size), runtime.after(START_SECONDS))
        with closing(stream):
            try:
                stream.settimeout(STALL_SECONDS)
                for piece in self._archive():
                    stream.sendall(piece)
                    sent += len(piece)
                    if not shown.left():
                        self.emit(_received(receiver.name, sent))
                        shown = runtime.after(1)
                stream.shutdown_write()
                self.emit(_received(receiver.name, sent, done=True))
                printed, due = b"", runtime.after(load_seconds(self.size))
                while piece := _next(stream, due):
                    printed = (printed + piece)[-PIECE:]
            except (OSError, EOFError) as error:
                why = end_of(stream.stderr_tail(), 300) or str(error) or type(error).__name__
                raise HostError(receiver.name, f"the image did not arrive: {why}", again=()) from error
            if stream.exit_code():
                text = f"docker load failed: {end_of(stream.stderr_tail(), 300)} (sent by {self.connection.name})"
                raise HostError(receiver.name, text, again=())
        return printed.decode("utf-8", "replace")

    def _archive(self) -> Iterator[bytes]:
        """An archive for `docker load`, made here: the source gives bytes alone, and a blob that is wrong ends it.

        Docker takes nothing of an archive before its end.
        """
        deadline, due = self._runtime.after(START_SECONDS), self._runtime.after(PUSH_SECONDS)
        checks = Checks(self._blobs.config, [*self._blobs.layers])
        with closing(self.connection.open_stream(self._source.reading(self._blobs), deadline)) as stream:
            for blob, count in self._blobs.sizes.items():
                yield _header(blob, count)
                try:
                    yield from self._blob(stream, blob, count, due, checks.of(blob))
                except ValueError as error:
                    raise self._refused(f"{blob}: {error}") from None
                yield bytes(-count % tarfile.BLOCKSIZE)
        content = json.dumps([{"RepoTags": None, **self._blobs.manifest("Config", "Layers")}]).encode()
        yield _header("manifest.json", len(content)) + content + bytes(-len(content) % tarfile.BLOCKSIZE)
        yield bytes(2 * tarfile.BLOCKSIZE)

    def _blob(self, stream: Stream, blob: str, count: int, due: Deadline, check: LayerTar | Config) -> Iterator[bytes]:
        """What the source gives as a blob, each piece once it is known to be for Docker.

        Raises:
            ValueError: it is another one, or not for Docker.
        """
        digest, left = hashlib.sha256(), count
        while left and (piece := self._given(stream, due.sooner(STALL_SECONDS), left)):
            digest.update(piece)
            check.feed(piece)
            left -= len(piece)
            yield piece
        if left or digest.hexdigest() != blob:
            raise ValueError("its bytes are others")
        check.end()

    def _refused(self, why: str) -> HostError:
        """That the source gave what Docker is not to see, which may be no fault of who made the image."""
        name, save = self.connection.name, command_line("docker", "save", self._stored.name)
        # One word: what is behind a pipe runs where the line is pasted.
        by_hand = command_line("sh", Option("-c"), f"{save} | ssh HOST docker load", on=name)
        hint = f"{WITHOUT_SOURCE}\nif you trust {name}:\n{by_hand}"
        return HostError(self.connection.name, f"has an image that is not passed on: {why}", hint=hint)

    def _given(self, stream: Stream, due: Deadline, most: int) -> bytes:
        """What the source gives next, for a receiver that waits for it.

        Raises:
            HostError: it gives no more.
        """
        try:
            return _next(stream, due, most)
        except (OSError, EOFError) as error:
            text = f"gives no more of the image: {str(error) or type(error).__name__}"
            raise HostError(self.connection.name, text, again=()) from error


def _next(stream: Stream, due: Deadline, most: int = PIECE) -> bytes:
    """What comes next; empty at the end.

    Raises:
        TimeoutError: nothing does, or it takes too long in all: each byte alone would put off a time-out.
    """
    if not (left := due.left()):
        raise TimeoutError("it takes too long")
    stream.settimeout(left)
    return stream.recv(min(most, PIECE))


def _header(name: str, count: int) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size = count
    # A layer may have more than the 8 GB that the old form can hold.
    return entry.tobuf(tarfile.GNU_FORMAT)


def _with_python(connection: HostConnection) -> str:
    """The id of a node image on a host, which has Python; empty where there is none."""
    beginning = f"{NODE_IMAGE_REPOSITORY}:"
    images = connection.docker.images()
    return next((one.id for one in images if any(tag.startswith(beginning) for tag in one.tags)), "")


def _received(host: str, count: int, *, done: bool = False) -> Event:
    # Of 9.8 GB Docker took 44 s for what had been sent in 12.
    text = f"has all {size(count)}: its Docker unpacks it" if done else f"received {size(count)} of the image"
    return Event("progress", text, host, {"bytes": count})
