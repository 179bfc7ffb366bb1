"""The images of a host: looked up, named, and compared with those of other hosts by what they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property

from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import TimedOut
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.hosts.connection import Fleet, HostConnection
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.plan.images import Content, content, in_question, repository_and_tag, shared_layers

# Of one comparison on one host, whose Docker may list any number and take its time for each.
LOOK_SECONDS, MAX_IMAGES = 60.0, 200


def find_held_image(connection: HostConnection, reference: str, deadline: Deadline | None = None) -> Content | None:
    """The image that a host has by that name or id."""
    config = connection.docker.image_info(reference, deadline)
    return content(config) if config else None


def shared_with(connection: HostConnection, image: Content, emit: Emit) -> int:
    """How many of the image's layers a host has, from the lowest."""
    return shared_layers(image, _like(connection, image, emit))


def _like(connection: HostConnection, image: Content, emit: Emit) -> Iterator[Content]:
    """The images of a host, first those that were made when this one was: the same one has the same date everywhere.

    Those that are not looked at in time count as others, and as none that shares anything.
    """
    deadline = connection.runtime.after(LOOK_SECONDS)
    # By id: names may come and go meanwhile.
    listed = sorted(connection.docker.images(), key=lambda one: one.created != image.created)
    for number, row in enumerate(listed[:MAX_IMAGES]):
        try:
            found = find_held_image(connection, row.id, deadline)
        except TimedOut:
            text = f"its Docker described {number} of {len(listed)} images in {LOOK_SECONDS:.0f} s"
            return emit(Event("note", f"{text}: the others are not compared", connection.name))
        if found:
            yield found
    return None


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
    """An image by the id that it has on the host that decides; another host may know it by another.

    What it is by that host's word alone: where it has no more than what was made from it, the id alone counts.
    """

    def __init__(self, image_id: str, decides: HostConnection, emit: Emit) -> None:
        self.id, self._decides, self._emit = image_id, decides, emit

    @cached_property
    def content(self) -> Content | None:
        """What it is; None where it is not known any more."""
        return find_held_image(self._decides, self.id)

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
        if not (image := self.content):
            return ""
        every = _like(connection, image, self._emit)
        return next((one.id for one in every if one.fingerprint == image.fingerprint), "")


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
