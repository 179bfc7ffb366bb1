"""Bring an image from a host, or from this machine, to hosts that lack it, without a registry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vllm_cluster.actions.assess import connect_all, facts_of, require_name
from vllm_cluster.core.identity import without_lease
from vllm_cluster.core.images import Content
from vllm_cluster.errors import HostError, PreflightFailed
from vllm_cluster.events import Emit, Event
from vllm_cluster.facts.host_facts import HostFacts
from vllm_cluster.inventory.model import Host, HostSsh, Inventory
from vllm_cluster.run.connection import Fleet, HostConnection
from vllm_cluster.run.image_push import LOOPBACK, ImageSource, Stored, held, name_there, shared_with
from vllm_cluster.run.runtime import SYSTEM, Runtime
from vllm_cluster.text import count

LOCAL = "local"
LOOK_SECONDS = 30.0
# Docker unpacks an archive before it makes layers of it.
COPIES = 2


def push(
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
        PreflightFailed: it is nowhere, it is for another processor, or a disk has no room; nothing was sent.
        HostError, FleetError: some hosts did not get it; the others did.
    """
    name = image or inventory.image
    require_name(inventory, [*hosts, *([source] if source not in ("", LOCAL) else [])])
    with connect_all(inventory, emit, runtime=runtime) as fleet:
        emit(Event("phase", f"looking for {name}"))
        facts = facts_of(inventory, fleet)
        fleet.without_lease()
        found = _find(inventory, fleet, name, source)
        # What is in the inventory under no name may be the same machine: it has the image then.
        wanted = [host for host in hosts or inventory.hosts if host != found.connection.name]
        lacking = _lacking(fleet, found, wanted, name, emit)
        there = {host: facts[host] for host in lacking}
        _ensure_processor(found.image, there, name)
        if lacking:
            with ImageSource(found, without_lease(inventory.cluster), emit) as opened:
                _send(opened, fleet, there, name)
        text = f"{name} is {found.image.id[:19]} on {count(len(wanted) + 1, 'host')}"
        sent = f"; sent to {', '.join(lacking)}" if lacking else " (no changes)"
        data = {"image": name, "id": found.image.id, "source": found.connection.name, "sent": list(lacking)}
        emit(Event("result", text + sent, data=data))
        return tuple(lacking)


def _find(inventory: Inventory, fleet: Fleet, name: str, source: str) -> Stored:
    """The source that was named; else the first host that has it, the head before the others, else this machine."""
    names = sorted(inventory.hosts, key=lambda host: host != inventory.head_name)
    for host in [source] if source else names:
        if host != LOCAL and (image := held(fleet.connections[host], name)):
            return Stored(fleet.connections[host], image, inventory.hosts[host].address)
    if source in ("", LOCAL) and (found := _local(inventory, fleet, name)):
        return found
    where = {"": "neither a host nor this machine has it", LOCAL: "this machine does not have it"}
    hint = f"on {source or names[0]}: docker pull {name}"
    raise PreflightFailed(f"{name}: {where.get(source, f'{source} does not have it')}", hint=hint)


def _local(inventory: Inventory, fleet: Fleet, name: str) -> Stored | None:
    """The image in this machine's own Docker, where there is one."""
    if LOCAL not in fleet.connections:
        # Its address is for nobody: what it sends goes over this machine's own connections.
        here = Host.model_construct(name=LOCAL, address=LOOPBACK, ssh=HostSsh(host=LOCAL))
        if fleet.join(inventory, [here]):
            return None
    connection = fleet.connections[LOCAL]
    argv = ["docker", "version", "--format", "{{.Server.APIVersion}}"]
    version = connection.transport.run(argv, fleet.runtime.after(LOOK_SECONDS))
    if version.returncode:
        return None
    connection.open_engine(version.text.strip())
    connection.may_change = True
    image = held(connection, name)
    return Stored(connection, image, LOOPBACK) if image else None


def _lacking(fleet: Fleet, found: Stored, wanted: Sequence[str], name: str, emit: Emit) -> list[str]:
    """The hosts that do not have the image; one that has it under no or another name gets the name alone."""

    def has(connection: HostConnection) -> bool:
        if held(connection, found.image.id) is None:
            return False
        there = held(connection, name)
        if there is None or there.id != found.image.id:
            name_there(connection, found.image.id, name)
            emit(Event("done", f"has the image; {name} now means it", connection.name))
        return True

    answers = fleet.all(has, wanted)
    return [host for host in wanted if not answers[host]]


def _ensure_processor(image: Content, facts: Mapping[str, HostFacts], name: str) -> None:
    """Refuse an image for another processor, before a byte is sent."""
    other = {
        host: seen.engine.architecture
        for host, seen in facts.items()
        if image.architecture and seen.engine.architecture not in ("", image.architecture)
    }
    if other:
        texts = [f"{host}: {name} is for {image.architecture}, the host is {kind}" for host, kind in other.items()]
        raise PreflightFailed("\n".join(texts), hint="name an image for this processor, or one that is for several")


def _send(source: ImageSource, fleet: Fleet, hosts: Mapping[str, HostFacts], name: str) -> None:
    """Send it to hosts, all at once."""
    emit, layers = source.emit, len(source.image.layers)
    have = fleet.all(lambda connection: shared_with(connection, source.image), hosts)
    _ensure_room(source, have, hosts)
    for host in hosts:
        lacking, size = layers - have[host], source.size(have[host])
        text = f"sending {lacking} of {count(layers, 'layer')} ({size / 1e6:.0f} MB) from {source.connection.name}"
        emit(Event("start", text, host, {"layers": lacking, "bytes": size}))

    def send(connection: HostConnection) -> None:
        try:
            source.send(connection, have[connection.name], name)
        except HostError as error:
            raise error.with_step("image push") from error.__cause__
        emit(Event("done", "the image is there, and the same", connection.name))

    fleet.all(send, hosts)


def _ensure_room(source: ImageSource, have: Mapping[str, int], hosts: Mapping[str, HostFacts]) -> None:
    """Refuse where a disk cannot hold what would be sent."""
    texts = []
    for host, layers in have.items():
        needed, root = COPIES * source.size(layers), hosts[host].engine.root
        free = hosts[host].free.get(root)
        if free is not None and free < needed:
            texts.append(f"{host}: {root} has {free / 1e9:.1f} GB free, and {needed / 1e9:.1f} GB are needed")
    if texts:
        raise PreflightFailed("\n".join(texts), hint="vcluster image prune")
