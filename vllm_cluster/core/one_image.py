"""Which image a cluster is made from: a tag is resolved once, and not by each host.

Where Docker keeps images in another way, one image has another id: its content decides then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from vllm_cluster.core.identity import node_of
from vllm_cluster.core.images import canonical, find_image, repository_and_tag
from vllm_cluster.core.spec import BASE_IMAGE
from vllm_cluster.facts.host_facts import HostFacts, Image


@dataclass(frozen=True)
class ResolvedImage:
    """The id that a name means, its digest in a registry, and the host that has it; empty where none is known."""

    id: str = ""
    digest: str = ""
    source: str = ""
    content: str = ""

    def on(self, images: Iterable[Image]) -> Image | None:
        """The image on a host, among all that it has."""
        there = tuple(images)
        by_id = next((one for one in there if one.id == self.id), None)
        return by_id or next((one for one in there if self.content and one.content == self.content), None)

    def means(self, image_id: str, images: Iterable[Image]) -> bool:
        """Whether an id means this image on a host that has these."""
        same = (one.id for one in images if self.content and one.content == self.content)
        return image_id == self.id or image_id in same


def resolve(reference: str, hosts: Sequence[str], cluster: str, facts: Mapping[str, HostFacts]) -> ResolvedImage:
    """What the first of the hosts that knows it understands by a name; the head is to be the first.

    A host whose name for it was removed knows it by the node that runs there.
    """
    for host in hosts:
        if image := find_image(reference, facts[host].images):
            return ResolvedImage(image.id, digest_of(reference, image.digests), host, image.content)
        node = node_of(cluster, facts[host])
        contents = {image.id: image.content for image in facts[host].images}
        if node and (made_from := node.labels.get(BASE_IMAGE)) and node.image_id in contents:
            return ResolvedImage(made_from, "", host, contents.get(made_from, ""))
    return ResolvedImage()


def digest_of(reference: str, digests: Sequence[str]) -> str:
    """Of an image's digests, the one by which the registry of a name knows it."""
    repository = repository_and_tag(canonical(reference))[0]
    return next((digest for digest in digests if repository_and_tag(digest)[0] == repository), "")


def in_question(reference: str, cluster: str, host: HostFacts) -> Collection[str]:
    """The ids on a host of what the name means, and of what its node is made from."""
    image, node = find_image(reference, host.images), node_of(cluster, host)
    wanted = {image.id if image else "", node.labels.get(BASE_IMAGE, "") if node else ""}
    return {image.id for image in host.images if image.id in wanted}
