"""The images of a host: looked up, named, and compared with those of other hosts by what they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property

from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.hosts.connection import Fleet, HostConnection
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.plan.images import Content, content, in_question, repository_and_tag, shared_layers


def find_held_image(connection: HostConnection, reference: str) -> Content | None:
    """The image that a host has by that name or id."""
    config = connection.docker.image_info(reference)
    return content(config) if config else None


def shared_with(connection: HostConnection, image: Content) -> int:
    """How many of the image's layers a host has, from the lowest."""
    # By id: names may come and go meanwhile.
    others = (find_held_image(connection, one.id) for one in connection.docker.images())
    return shared_layers(image, (other for other in others if other))


def name_there(connection: HostConnection, image_id: str, name: str) -> None:
    """Let a name mean this image on a host; one that is an id or a digest is none to give."""
    if name and "@" not in name and not name.startswith("sha256:"):
        connection.docker.tag(image_id, *repository_and_tag(name))


def discard(connection: HostConnection, image_id: str) -> bool:
    """Remove an image that has no name now, and of which no container is made; whether it is gone.

    Docker removes one that has a single name by its id, too.
    """
    # Up to version 24 Docker lists <none> for one without.
    rows = ((one.id, (*one.tags, *one.digests)) for one in connection.docker.images())
    named = {known for known, names in rows if not all(name.startswith("<none>") for name in names)}
    if image_id in named | {one.image_id for one in connection.docker.containers(None)}:
        return False
    connection.docker.remove_image(image_id)
    return True


class OneImage:
    """An image by the id that it has on one of the hosts; another host may know it by another."""

    def __init__(self, image_id: str, hosts: Iterable[HostConnection]) -> None:
        self.id, self._hosts = image_id, tuple(hosts)

    @cached_property
    def content(self) -> Content | None:
        """What it is; None where no host has it any more, but what was made from it."""
        return next((found for one in self._hosts if (found := find_held_image(one, self.id))), None)

    def is_it(self, connection: HostConnection, image_id: str) -> bool:
        """Whether an id means this image on a host."""
        if image_id == self.id:
            return True
        there = find_held_image(connection, image_id)
        return bool(there and self.content and there.fingerprint == self.content.fingerprint)

    def on(self, connection: HostConnection) -> str:
        """Its id on a host, under any name; empty where it is not there."""
        if find_held_image(connection, self.id):
            return self.id
        every = connection.docker.images() if self.content else ()
        return next((one.id for one in every if self.is_it(connection, one.id)), "")


def decided_by(head: str, image_id: str, fleet: Fleet) -> OneImage:
    """An image that the head decides: what another host has under that id counts where the head has it no more."""
    return OneImage(image_id, sorted(fleet.connections.values(), key=lambda one: one.name != head))


def with_contents(inventory: Inventory, fleet: Fleet, facts: Mapping[str, HostFacts]) -> dict[str, HostFacts]:
    """The facts, with what the images in question are where hosts know them by several ids, or the head has none."""
    ids = {name: in_question(inventory.image, inventory.cluster, host) for name, host in facts.items()}
    if len(set().union(*ids.values())) < 2 and ids.get(inventory.head_name):
        return dict(facts)

    def look(connection: HostConnection) -> dict[str, str]:
        found = {one: find_held_image(connection, one) for one in ids[connection.name]}
        return {one: image.fingerprint for one, image in found.items() if image}

    contents = fleet.all(look, facts)
    return {name: _with(host, contents[name]) for name, host in facts.items()}


def _with(host: HostFacts, contents: Mapping[str, str]) -> HostFacts:
    return replace(host, images=tuple(replace(one, content=contents.get(one.id, "")) for one in host.images))
