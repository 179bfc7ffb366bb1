"""The images of the hosts that this cluster uses or used: listed, and removed where nothing needs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from vllm_cluster.features.images.use import ClusterImage, cluster_images, freed
from vllm_cluster.kernel.assess import each_usable, facts_of
from vllm_cluster.kernel.docker.client import REMOVE_SECONDS
from vllm_cluster.kernel.docker.one_by_one import OneByOne, Times
from vllm_cluster.kernel.errors import VclusterError
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.hosts.connection import Fleet, HostConnection
from vllm_cluster.kernel.hosts.reach import connect_all, reached
from vllm_cluster.kernel.hosts.runtime import SYSTEM, Runtime
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.lease.lease import Lease, in_order
from vllm_cluster.kernel.text import count
from vllm_cluster.serving.consent import Confirm, ask_removal

HostImages = Mapping[str, tuple[ClusterImage, ...]]


@dataclass(frozen=True)
class FoundImages:
    """The images of each host that answered, and why the others did not."""

    hosts: HostImages
    failures: Mapping[str, VclusterError]


def images(inventory: Inventory, emit: Emit, *, runtime: Runtime = SYSTEM) -> FoundImages:
    """List the images of the cluster on every host. Changes nothing.

    Raises:
        Unreachable, FleetError: no host can be reached.
    """
    with reached(inventory, emit, runtime=runtime) as (fleet, failures):
        there = [name for name in fleet.names if name not in failures]
        emit(Event("phase", f"reading the images of {count(len(there), 'host')}"))
        facts, unusable = each_usable(inventory, fleet, there)
        found, lost = fleet.each(_look(inventory, facts), facts)
        return FoundImages(found, {**failures, **unusable, **lost})


def _look(inventory: Inventory, facts: Mapping[str, HostFacts]) -> Callable[[HostConnection], tuple[ClusterImage, ...]]:
    def look(connection: HostConnection) -> tuple[ClusterImage, ...]:
        # Of all owners: an image that anybody's container was made from is in use.
        containers = connection.docker.containers(None)
        return cluster_images(inventory.image, inventory.cluster, facts[connection.name].images, containers)

    return look


def _found(inventory: Inventory, fleet: Fleet, facts: Mapping[str, HostFacts]) -> HostImages:
    return fleet.all(_look(inventory, facts), facts)


def prune_images(inventory: Inventory, emit: Emit, *, confirm: Confirm, runtime: Runtime = SYSTEM) -> int:
    """Remove the cluster's images that are neither in use, nor desired, nor the previous ones; returns how many.

    Raises:
        Aborted, UsageError: it was not confirmed.
        Locked: another run holds the lease.
    """
    with connect_all(inventory, emit, runtime=runtime) as fleet:
        emit(Event("phase", f"reading the images of {count(len(fleet.names), 'host')}"))
        facts = facts_of(inventory, fleet)
        found = _unused(_found(inventory, fleet, facts))
        if found:
            _ask(found, confirm)
            with Lease(
                in_order(fleet, {name: facts[name] for name in found}), inventory.cluster, "image prune"
            ) as lease:
                lease.acquire()
                # Others may have begun to use one of them.
                now = _unused(_found(inventory, fleet, facts_of(inventory, fleet)))
                found = {host: _both(found[host], now[host]) for host in found if host in now}
                emit(Event("phase", "removing"))
                fleet.all(lambda connection: _remove(connection, found[connection.name], emit), found)
        number = sum(len(unused.images) for unused in found.values())
        size = sum(unused.size for unused in found.values())
        text = f"Removed {count(number, 'image')} ({size / 1e9:.1f} GB)." if number else "There is no image to remove."
        emit(Event("result", text, data={"removed": number}))
        return number


# Each may have some ten thousand files. What a host has no time for is left to the next run: its list, and how long
# each takes, are its own word, and meanwhile nothing else may change the others.
REMOVAL = Times(REMOVE_SECONDS, 30.0, 600.0)


@dataclass(frozen=True)
class _Unused:
    """What nothing needs on a host, and its bytes."""

    images: tuple[ClusterImage, ...]
    size: int


def _unused(hosts: HostImages) -> dict[str, _Unused]:
    found = {}
    for host, there in hosts.items():
        # A name of a base is taken away while a node image holds its layers, which go with that; but an image
        # without a name cannot be removed before those that are made from it.
        unused = sorted((image for image in there if image.state == "unused"), key=_turn)
        if unused:
            found[host] = _Unused(tuple(unused), freed(there, {image.id for image in unused}))
    return found


def _turn(image: ClusterImage) -> int:
    return 1 if image.base else 0 if image.names else 2


def _both(confirmed: _Unused, now: _Unused) -> _Unused:
    known = {image.id for image in confirmed.images}
    return _Unused(tuple(image for image in now.images if image.id in known), now.size)


def _ask(found: Mapping[str, _Unused], confirm: Confirm) -> None:
    number, size = sum(len(one.images) for one in found.values()), sum(one.size for one in found.values())
    names = sorted({name for one in found.values() for image in one.images for name in image.names or (image.id[:19],)})
    what = f"{count(number, 'image')} ({size / 1e9:.1f} GB) from {', '.join(found)}: {', '.join(names)}"
    ask_removal(what, confirm)


def _remove(connection: HostConnection, unused: _Unused, emit: Emit) -> None:
    names = [name for image in unused.images for name in image.names or (image.id,)]
    time = OneByOne(connection.name, "remove images", len(names), connection.runtime.after, REMOVAL)
    for name in names:
        emit(Event("start", f"removing {name}", connection.name))
        with time.one() as deadline:
            connection.docker.remove_image(name, deadline)
    emit(Event("done", f"removed {count(len(unused.images), 'image')}", connection.name))
