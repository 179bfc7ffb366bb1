"""The image: one everywhere, for the host's processor, and with a Ray."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from vllm_cluster.kernel.backends import joining
from vllm_cluster.kernel.checks.finding import Finding, each_host
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.inventory.model import Host, Inventory
from vllm_cluster.kernel.plan.images import find_image, node_image_name, resolve_image
from vllm_cluster.kernel.shell_line import command_line


def one(inventory: Inventory, facts: Mapping[str, HostFacts]) -> Iterator[Finding]:
    """A name that means one image on all hosts that have it; the cluster takes the head's."""
    if not (hosts := sorted(facts, key=lambda name: name != inventory.head_name)):
        return
    image, first = resolve_image(inventory.image, hosts, inventory.cluster, facts), hosts[0]
    for name, host in facts.items():
        there = find_image(inventory.image, host.images)
        if image.id and there and not image.means(there.id, host.images):
            text = f"{inventory.image} is {there.id[:19]} here and {image.id[:19]} on {first}"
            fix = f"vcluster image push\nor, to take that of {first} and leave the name here: vcluster up"
            yield Finding("image-differs", name, text, fix, severity="warning")


@each_host
def processor(inventory: Inventory, host: Host, facts: HostFacts) -> Iterator[Finding]:
    """An image for another processor."""
    image = facts.details.image if facts.details else None
    if image and image.architecture and facts.docker.architecture not in ("", image.architecture):
        text = f"{inventory.image} is for {image.architecture}, the host is {facts.docker.architecture}"
        yield Finding(
            "image-architecture", host.name, text, "name an image for this processor, or one that is for several"
        )


@each_host
def prepared(inventory: Inventory, host: Host, facts: HostFacts) -> Iterator[Finding]:
    """What `up` will first do to have an image with Ray."""
    if facts.details is None or facts.docker.problem:
        return
    base = find_image(inventory.image, facts.images)
    if base is None:
        text = f"image {inventory.image} is not on the host"
        fix = command_line("docker", "pull", inventory.image, on=host.name)
        yield Finding("image-absent", host.name, text, fix, severity="warning")
    elif find_image(node_image_name(base.id, more := joining(inventory).requirements(inventory)), facts.images) is None:
        text = (
            f"{inventory.image} has not been inspected by vcluster up yet; "
            f"it adds {' '.join(more)} unless the image has one that fits"
        )
        fix = "vcluster up, on a machine whose pip reaches a package index: it downloads the wheels"
        yield Finding("ray-layer", host.name, text, fix, severity="warning")
