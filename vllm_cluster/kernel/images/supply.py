"""Brings the one image of a plan to its hosts: pulled by its digest, or sent by a host that has it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace

from vllm_cluster.kernel.errors import CommandFailed, HostError, VclusterError
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.hosts.connection import Fleet, HostConnection
from vllm_cluster.kernel.images.host_images import OneImage, find_held_image, name_there
from vllm_cluster.kernel.images.pull import pull
from vllm_cluster.kernel.images.push import ImageSource, Stored
from vllm_cluster.kernel.plan.identity import Owner
from vllm_cluster.kernel.plan.images import Content, digest_of, is_pinned
from vllm_cluster.kernel.plan.plan import Plan, PrepareImage, SameImage
from vllm_cluster.kernel.shell_line import Option, command_line
from vllm_cluster.kernel.text import end_of

# 20 GB at 25 Mbit/s.
PULL_SECONDS = 7200.0


@contextmanager
def may_change(connection: HostConnection) -> Iterator[None]:
    """Without the lease: an image more, or another name of one, touches no node."""
    before, connection.may_change = connection.may_change, True
    try:
        yield
    finally:
        connection.may_change = before


def renew(connection: HostConnection, image: str, emit: Emit, undo: ExitStack) -> None:
    """Pull a tag again; `undo`, when it is closed, gives it back to the image that it meant before.

    Raises:
        CommandFailed: it cannot be pulled.
    """
    before = find_held_image(connection, image)
    emit(Event("phase", f"asking for {image}"))
    if before:
        # Before the pull: one that is interrupted may have moved the tag.
        undo.callback(_give_back, connection, before, image)
    with may_change(connection):
        deadline = connection.runtime.after(PULL_SECONDS)
        pull(connection, image, deadline, lambda text: emit(Event("progress", text, connection.name)))
    after = find_held_image(connection, image)
    if after is None:
        raise CommandFailed(connection.name, f"{image} was pulled and is not there", exit_code=1, stderr="", again=())
    same = before is not None and before.fingerprint == after.fingerprint
    was = "unchanged" if same else f"{after.id[:19]} now" + (f", {before.id[:19]} before" if before else "")
    emit(Event("note", f"{image} is {was}"))


def _give_back(connection: HostConnection, before: Content, image: str) -> None:
    with suppress(VclusterError), may_change(connection):
        now = find_held_image(connection, image)
        if now is None or now.id != before.id:
            name_there(connection, before.id, image)


@dataclass
class ImageSupply:
    """The image of one run of one plan. Safe to use from several threads; what sends is open until `close`."""

    plan: Plan
    fleet: Fleet
    emit: Emit
    _opened: ExitStack = field(default_factory=ExitStack)
    _sources: dict[tuple[str, str], ImageSource] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    # The hosts that may be sent it.
    _receivers: set[str] = field(default_factory=set)
    _image: OneImage | None = None
    _ids: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        preparing = (one for one in self.plan.operations() if isinstance(one, PrepareImage))
        self._receivers = {one.host for one in preparing if one.source}

    def close(self) -> None:
        """End what sends."""
        self._sources.clear()
        self._opened.close()

    def image_for(self, image: str) -> OneImage:
        """What every node is made from: the plan's image, else what the head has now that the images are there.

        Raises:
            HostError: the head has it no more.
        """
        if self._image is None:
            barriers = (barrier for stage in self.plan.stages for barrier in stage.barriers)
            known = next((one.base for one in barriers if isinstance(one, SameImage)), "")
            if not known:
                there = find_held_image(self.fleet.connections[self.plan.head], image)
                if there is None:
                    raise self._gone(self.plan.head, image)
                known = there.id
            self._image = self._decided(known)
        return self._image

    def id_on(self, connection: HostConnection, image: str) -> str:
        """The id there of what every node is made from; the common one where only what was made from it is left."""
        if connection.name not in self._ids:
            one = self.image_for(image)
            self._ids[connection.name] = one.on(connection) or one.id
        return self._ids[connection.name]

    def bring(self, connection: HostConnection, operation: PrepareImage) -> str:
        """Have the image of an operation on a host, and return its id there.

        Raises:
            HostError: neither a registry nor another host gave it.
        """
        found = self._there(connection, operation)
        if not found:
            self._fetch(connection, operation)
            found = self._there(connection, operation)
        if not found:
            text = f"{operation.image} was pulled and is not there"
            raise CommandFailed(connection.name, text, exit_code=1, stderr="", again=())
        return found

    def _there(self, connection: HostConnection, operation: PrepareImage) -> str:
        if operation.base:
            return self._decided(operation.base).on(connection)
        found = find_held_image(connection, operation.image)
        return found.id if found else ""

    def _decided(self, image_id: str) -> OneImage:
        return OneImage(image_id, self.fleet.connections[self.plan.head], self.emit)

    def _fetch(self, connection: HostConnection, operation: PrepareImage) -> None:
        if operation.base and operation.source and not operation.digest:
            return self._send(connection, operation)
        wanted = operation.digest or operation.image
        deadline = connection.runtime.after(PULL_SECONDS)
        try:
            pull(connection, wanted, deadline, lambda text: self.emit(Event("progress", text, connection.name)))
        except CommandFailed as error:
            if is_pinned(operation.image):
                head, way = self.plan.head, "name the image by a tag"
                if operation.base:
                    way = f"take that of {head}: {command_line('vcluster', 'image', 'push', Option('--from'), head)}"
                error.hint = f"{error.hint}\nA registry alone proves a digest. Where none is in reach, {way}"
            if not operation.source:
                raise
            reason = end_of(error.stderr.strip().rpartition("\n")[2], 200)
            text = f"{connection.name} cannot pull {wanted}: it is sent from {operation.source} ({reason})"
            self.emit(Event("note", text))
            return self._send(connection, operation)
        if operation.digest and (found := find_held_image(connection, operation.digest)):
            self._name(connection, found.id, operation.image)
        return None

    def _send(self, connection: HostConnection, operation: PrepareImage) -> None:
        # A name that means another image there may be in use by others.
        name = operation.image if find_held_image(connection, operation.image) is None else ""
        source = self._source(operation)
        known = source.send(connection, name, source.image)
        if operation.offered not in ("", known):
            text = f"what {operation.source} names {operation.offered[:19]} is {known[:19]} here"
            self.emit(Event("note", text, connection.name))

    @staticmethod
    def _name(connection: HostConnection, image_id: str, image: str) -> None:
        if find_held_image(connection, image) is None:
            name_there(connection, image_id, image)

    def _source(self, operation: PrepareImage) -> ImageSource:
        """What sends the image; the first host that needs it opens it."""
        with self._lock:
            wanted = operation.base or operation.offered
            key = (operation.source, wanted)
            if key not in self._sources:
                connection = self.fleet.connections[operation.source]
                image = find_held_image(connection, wanted)
                if image is None:
                    raise self._gone(operation.source, operation.image)
                if operation.offered and image.fingerprint != operation.content:
                    text = f"{wanted[:19]} is another image now than the plan showed"
                    raise HostError(operation.source, text, hint="vcluster up")
                address = next(at for at, name in self.fleet.addresses.items() if name == operation.source)
                owner = Owner(self.plan.cluster, self.plan.id, self.plan.head_address)
                stored, hosts = Stored(connection, image, address, operation.image), sorted(self._receivers)
                source = ImageSource(stored, self.fleet, hosts, owner, self.emit)
                self._sources[key] = self._opened.enter_context(source)
            return self._sources[key]

    def _gone(self, host: str, image: str) -> HostError:
        """A host has not what nodes were made from: one that has it, and where nothing is to do, can give it back."""
        busy = {host, *(one.host for one in self.plan.operations())}
        others = (one for one in self.fleet.connections.values() if one.name not in busy)
        having = next((one.name for one in others if find_held_image(one, image)), "")
        push = command_line("vcluster", "image", "push", Option("--from"), having)
        return HostError(
            host, f"{image} is gone", hint=f"{push}\nvcluster up" if having else "vcluster up --pull-image"
        )

    def corrected(self, operations: list[PrepareImage]) -> list[PrepareImage]:
        """What is left to do where each host pulled a tag that moved meanwhile: the image of the head."""
        if not operations or any(one.base for one in operations):
            return []
        image, connections = operations[0].image, self.fleet.connections
        wanted = self.image_for(image)
        there = connections[self.plan.head].docker.image_info(wanted.id)
        digest = digest_of(image, there.digests if there else ())
        found = self.fleet.all(lambda connection: find_held_image(connection, image), {one.host for one in operations})
        others = [host for host, had in found.items() if had and not wanted.is_it(connections[host], had.id)]
        self._receivers |= set(others)
        source = "" if is_pinned(image) else self.plan.head
        return [
            replace(one, pull=True, base=wanted.id, digest=digest, source=source, offered="")
            for one in operations
            if one.host in others
        ]
