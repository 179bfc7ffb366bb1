"""Which image a cluster is made from: a tag is resolved once, and not by each host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def resolve(reference: str, hosts: Sequence[str], cluster: str, facts: Mapping[str, HostFacts]) -> ResolvedImage:
    """What the first of the hosts that knows it understands by a name; the head is to be the first.

    A host whose name for it was removed knows it by the node that runs there.
    """
    for host in hosts:
        if image := find_image(reference, facts[host].images):
            return ResolvedImage(image.id, digest_of(reference, image.digests), host)
        node = node_of(cluster, facts[host])
        if node and (made_from := node.labels.get(BASE_IMAGE)) and node.image_id in _ids(facts[host].images):
            return ResolvedImage(made_from, "", host)
    return ResolvedImage()


def digest_of(reference: str, digests: Sequence[str]) -> str:
    """Of an image's digests, the one by which the registry of a name knows it."""
    repository = repository_and_tag(canonical(reference))[0]
    return next((digest for digest in digests if repository_and_tag(digest)[0] == repository), "")


def _ids(images: Sequence[Image]) -> set[str]:
    return {image.id for image in images}
