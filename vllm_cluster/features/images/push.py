"""Bring an image from a host, or from this machine, to hosts that lack it, without a registry."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from vllm_cluster.kernel.assess import LOCAL, each_usable, is_other_local, require_name, require_one_local
from vllm_cluster.kernel.errors import HostError, PreflightFailed, UsageError, VclusterError, combine
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.hosts.connection import Fleet, HostConnection
from vllm_cluster.kernel.hosts.reach import reached
from vllm_cluster.kernel.hosts.runtime import SYSTEM, Runtime
from vllm_cluster.kernel.images.carrier import COPIES
from vllm_cluster.kernel.images.host_images import OneImage, find_held_image, name_there
from vllm_cluster.kernel.images.push import LOOPBACK, ImageSource, Stored
from vllm_cluster.kernel.inventory import grammar
from vllm_cluster.kernel.inventory.model import Host, HostSsh, Inventory
from vllm_cluster.kernel.plan.identity import without_lease
from vllm_cluster.kernel.plan.images import Content, is_pinned
from vllm_cluster.kernel.shell_line import Option, command_line
from vllm_cluster.kernel.text import count

LOOK_SECONDS = 30.0
# What a person means as an id: a repository of such a name is written with its tag.
_ID = re.compile(r"(sha256:)?[0-9a-f]{12,64}")


def push_image(
    inventory: Inventory,
    emit: Emit,
    *,
    image: str = "",
    source: str = "",
    hosts: Sequence[str] = (),
    runtime: Runtime = SYSTEM,
) -> tuple[str, ...]:
    """Bring the image to these hosts, or to all, and return those that did not have it. No node is touched.

    Raises:
        UsageError: the image reference is invalid, or the inventory has no such host.
        PreflightFailed: it is nowhere, has no Python, is for another processor, or finds no room; nothing was sent.
        HostError, FleetError: some hosts did not get it; the others did.
    """
    name = _reference(image) if image else inventory.image
    targets = tuple(dict.fromkeys(hosts or inventory.hosts))
    needed = list(dict.fromkeys([*targets, *([source] if source not in ("", LOCAL) else [])]))
    if source == LOCAL:
        require_one_local(inventory, "--from")
    require_name(inventory, needed)
    with reached(inventory, emit, needed if source else None, runtime=runtime) as (fleet, unreachable):
        emit(Event("phase", f"looking for {name}"))
        asked = needed if source else fleet.names
        facts = _facts(inventory, fleet, unreachable, needed, asked=asked, emit=emit)
        fleet.without_lease()
        found = _find(inventory, fleet, name, source, facts)
        # What is in the inventory under no name may be the same machine: it has the image then.
        wanted = [host for host in targets if host != found.connection.name]
        naming = _naming(found, name, emit)
        lacking = _lacking(fleet, found, wanted, naming)
        there = {host: facts[host] for host in lacking}
        _ensure_processor(found.image, there, name)
        if lacking:
            _send(found, fleet, there, naming, inventory)
        having = [*wanted, *({found.connection.name} & set(inventory.hosts))]
        # A digest is proved by a registry, and none was asked; an id by a Docker that has it, too.
        word = f", as {found.connection.name} names it," if is_pinned(name) or naming.unproved else ""
        text = f"{name}{word} is {found.image.id[:19]} on {count(len(having), 'host')}"
        named = [host for host in wanted if host in naming.given]
        done = [f"; {what} {', '.join(there)}" for what, there in (("sent to", lacking), ("named on", named)) if there]
        data = {"image": name, "id": found.image.id, "source": found.connection.name, "sent": list(lacking)}
        emit(Event("result", text + ("".join(done) or " (no changes)"), data=data))
        return tuple(lacking)


def _reference(image: str) -> str:
    try:
        return grammar.image_reference(image)
    except ValueError as error:
        raise UsageError(str(error), hint="vcluster image ls") from None


def _facts(
    inventory: Inventory,
    fleet: Fleet,
    unreachable: Mapping[str, VclusterError],
    needed: Collection[str],
    *,
    asked: Sequence[str],
    emit: Emit,
) -> dict[str, HostFacts]:
    """The facts of the hosts; those that neither get the image nor are named as its source are not needed."""
    if lost := {host: error for host, error in unreachable.items() if host in needed}:
        raise combine(lost)
    facts, unusable = each_usable(inventory, fleet, [host for host in asked if host not in unreachable])
    if lost := {host: error for host, error in unusable.items() if host in needed}:
        error = combine(lost)
        raise PreflightFailed(error.message, hint=error.hint)
    for host, error in {**unreachable, **unusable}.items():
        text = f"is not asked for the image: {error.message.removeprefix(f'{host}: ')}"
        emit(Event("warning", text, host, {"code": "host-left-out"}))
    return facts


@dataclass(frozen=True)
class _Naming:
    """The name that the image gets on each host, empty where it was named by its id, which cannot be a name.

    `image` is what it is by the word of the machine where it was found, which decides for each host, whoever sends it.
    """

    name: str
    image: Content
    emit: Emit
    # The hosts that had the image and got the name alone.
    given: set[str] = field(default_factory=set)
    # The hosts that have the content of what was named by its id, by another id of their own.
    unproved: set[str] = field(default_factory=set)

    def known_as(self, host: str, image_id: str) -> None:
        """Note the id that a host has for what was named by its id."""
        if not self.name and image_id != self.image.id:
            self.unproved.add(host)

    def announce(self, connection: HostConnection) -> None:
        """Warn where the name means another image, which loses it."""
        before = find_held_image(connection, self.name) if self.name else None
        if before is None or before.fingerprint == self.image.fingerprint:
            return
        text = f"{self.name} is taken from the image {before.id.removeprefix('sha256:')[:12]}"
        self.emit(Event("warning", text, connection.name, {"code": "tag-moved", "id": before.id}))


def _naming(found: Stored, name: str, emit: Emit) -> _Naming:
    """Whether the image was asked for by its id.

    Raises:
        HostError: by that id the source gives an image of another.
    """
    if not _ID.fullmatch(name):
        return _Naming(name, found.image, emit)
    if found.image.id.startswith((name, f"sha256:{name}")):
        return _Naming("", found.image, emit)
    raise HostError(found.connection.name, f"gives {found.image.id[:19]} for the id {name[:19]}", again=())


def _find(inventory: Inventory, fleet: Fleet, name: str, source: str, facts: Mapping[str, HostFacts]) -> Stored:
    """The source that was named; else the first host that has it, the head before the others, else this machine."""
    names = sorted(facts, key=lambda host: host != inventory.head_name)
    if source != LOCAL:
        for host in [source] if source else names:
            if image := find_held_image(fleet.connections[host], name):
                return Stored(fleet.connections[host], image, inventory.hosts[host].address, name)
    asks_here = source in ("", LOCAL) and not is_other_local(inventory)
    if asks_here and (found := _local(inventory, fleet, name)):
        return found
    nowhere = "neither a host nor this machine has it" if asks_here else "no host has it"
    where = {"": nowhere, LOCAL: "this machine does not have it"}
    hint = command_line("docker", "pull", name, on="" if source == LOCAL else source or names[0])
    raise PreflightFailed(f"{name}: {where.get(source, f'{source} does not have it')}", hint=hint)


def _local(inventory: Inventory, fleet: Fleet, name: str) -> Stored | None:
    """The image in this machine's own Docker, where there is one."""
    if LOCAL not in fleet.connections:
        # No host connects to it: what it sends goes over this machine's own connections.
        here = Host.model_construct(name=LOCAL, address=LOOPBACK, ssh=HostSsh(host=LOCAL))
        if fleet.join(inventory, [here]):
            return None
    connection = fleet.connections[LOCAL]
    argv = ["docker", "version", "--format", "{{.Server.APIVersion}}"]
    version = connection.transport.run(argv, fleet.runtime.after(LOOK_SECONDS))
    if version.returncode:
        return None
    connection.open_docker(version.text.strip())
    connection.may_change = True
    image = find_held_image(connection, name)
    return Stored(connection, image, LOOPBACK, name) if image else None


def _lacking(fleet: Fleet, found: Stored, wanted: Sequence[str], naming: _Naming) -> list[str]:
    """The hosts that do not have the image; one that has it under no or another name gets the name alone."""

    image = OneImage(naming.image.id, found.connection, naming.emit)

    def has(connection: HostConnection) -> bool:
        if not naming.name:
            own = find_held_image(connection, image.on(connection) or naming.image.id)
            if own is None or not own.is_what_is_named(naming.image):
                return False
            naming.known_as(connection.name, own.id)
            return True
        there = find_held_image(connection, naming.name)
        if there and there.fingerprint == naming.image.fingerprint:
            return True
        if not (known := image.on(connection)):
            return False
        naming.announce(connection)
        name_there(connection, known, naming.name)
        naming.given.add(connection.name)
        naming.emit(Event("done", f"has the image; {naming.name} now means it", connection.name))
        return True

    answers = fleet.all(has, wanted)
    return [host for host in wanted if not answers[host]]


def _ensure_processor(image: Content, facts: Mapping[str, HostFacts], name: str) -> None:
    """Refuse an image for another processor, before a byte is sent."""
    other = {
        host: seen.docker.architecture
        for host, seen in facts.items()
        if image.architecture and seen.docker.architecture not in ("", image.architecture)
    }
    if other:
        texts = [f"{host}: {name} is for {image.architecture}, the host is {kind}" for host, kind in other.items()]
        there = next(iter(other.values()))
        hint = (
            command_line("docker", "pull", Option("--platform"), f"linux/{there}", name)
            + "\nvcluster image push --from local"
        )
        raise PreflightFailed(*texts, hint=hint)


def _send(found: Stored, fleet: Fleet, hosts: Mapping[str, HostFacts], naming: _Naming, inventory: Inventory) -> None:
    """Send it to hosts, all at once; of this machine to one of them, from which the others get it."""
    first, *others = hosts
    if found.address == LOOPBACK and others:
        _send(found, fleet, {first: hosts[first]}, naming, inventory)
        connection = fleet.connections[first]
        image = find_held_image(connection, OneImage(naming.image.id, found.connection, naming.emit).on(connection))
        # The first of them sends on what came from here, and nothing else under its id.
        if image is None or not image.is_what_is_named(naming.image):
            raise HostError(first, f"{found.name} is not there as it was sent", hint="vcluster image push")
        there = Stored(connection, image, inventory.hosts[first].address, found.name)
        _send(there, fleet, {host: hosts[host] for host in others}, naming, inventory)
        return
    emit = naming.emit
    with ImageSource(found, fleet, tuple(hosts), without_lease(inventory.cluster), emit) as source:
        _ensure_room(source, hosts)
        layers = count(len(source.image.layers), "layer")
        for host in hosts:
            text = f"sending {source.lacking} of {layers} ({source.size / 1e6:.0f} MB) from {source.connection.name}"
            emit(Event("start", text, host, {"layers": source.lacking, "bytes": source.size}))

        def send(connection: HostConnection) -> None:
            try:
                naming.announce(connection)
                naming.known_as(connection.name, source.send(connection, naming.name, naming.image))
            except HostError as error:
                if source.image is not naming.image:
                    # The one that passed it on is not asked again.
                    words = ("image", "push", found.name, connection.name, Option("--from"), LOCAL)
                    error.hint = command_line("vcluster", *words)
                raise error.with_step("image push") from error.__cause__
            emit(Event("done", "the image is there, and the same", connection.name))

        fleet.all(send, hosts)


def _ensure_room(source: ImageSource, hosts: Mapping[str, HostFacts]) -> None:
    """Refuse where a disk cannot hold what would be sent."""
    texts = []
    for host, facts in hosts.items():
        needed, root = COPIES * source.size, facts.docker.data_root
        free = facts.free_bytes.get(root)
        if free is not None and free < needed:
            texts.append(f"{host}: {root} has {free / 1e9:.1f} GB free, and {needed / 1e9:.1f} GB are needed")
    if texts:
        raise PreflightFailed(*texts, hint="vcluster image prune")
