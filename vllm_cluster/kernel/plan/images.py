"""Which image of a host a reference means, which one a cluster is made from, and what its node image is called.

A tag is resolved once, and not by each host: by the head, or by the registry where the head lacks it. A worker's word
decides about that worker alone, and a digest that was written decides for all. Where Docker keeps images in another
way, one image has another id: its content decides then.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from vllm_cluster.kernel.facts.docker_objects import Image, ImageInfo
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.plan.identity import node_of
from vllm_cluster.kernel.plan.spec import BASE_IMAGE, stored_spec

NODE_IMAGE_REPOSITORY = "vcluster-node"

# Docker's own stores, which know a layer by the digest of its archive. containerd's knows it by that of its compressed
# form, which another host may have compressed otherwise.
_CLASSIC = frozenset({"overlay2", "fuse-overlayfs", "vfs", "btrfs", "zfs", "overlay", "aufs", "devicemapper"})


@dataclass(frozen=True)
class Content:
    """What an image is: its id on its host, its layers by digest, its processor, its size, and when it was made (Unix).

    `fingerprint` is the same wherever it is: the id is the digest of its config in Docker's own store, and that of a
    manifest in containerd's.
    """

    id: str
    layers: tuple[str, ...]
    architecture: str
    size: int
    classic: bool
    fingerprint: str
    created: int = 0

    def is_what_is_named(self, named: Content) -> bool:
        """Whether this is what another host has: by the id alone where both keep it in Docker's own store.

        Where containerd keeps it, its id is another on each host, and only the content is the same.
        """
        if self.classic and named.classic:
            return self.id == named.id
        return self.id == named.id or self.fingerprint == named.fingerprint


def content(image: ImageInfo) -> Content:
    """The content of an image."""
    classic = image.driver in _CLASSIC
    size, fingerprint = image.size_bytes, _fingerprint(image)
    return Content(image.id, image.layers, image.architecture, size, classic, fingerprint, image.created)


def _fingerprint(image: ImageInfo) -> str:
    """The digest of all that an image is: its layers, its processor, and what it gives to its containers."""
    return hashlib.sha256(json.dumps([image.layers, image.architecture, image.configuration]).encode()).hexdigest()


def shared_layers(image: Content, others: Iterable[Content]) -> int:
    """How many of an image's layers, from the lowest, a host has that has the others."""
    return max((_beginning(image.layers, other.layers) for other in others if other.classic), default=0)


def _beginning(one: Sequence[str], other: Sequence[str]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def canonical(reference: str) -> str:
    """A reference as Docker lists it: without the default registry, with a tag.

    >>> canonical("docker.io/library/python")
    'python:latest'
    """
    name = reference.removeprefix("docker.io/").removeprefix("index.docker.io/").removeprefix("library/")
    if "@" in name:
        # A digest decides alone; Docker lists `name@sha256:…` without the tag.
        path, _, digest = name.partition("@")
        return f"{_untagged(path)}@{digest}"
    return name if _untagged(name) != name else f"{name}:latest"


def _untagged(name: str) -> str:
    head, separator, last = name.rpartition("/")
    return head + separator + last.partition(":")[0]


def repository_and_tag(reference: str) -> tuple[str, str]:
    """An image's repository, and its tag or digest: without one Docker would pull every tag there is.

    >>> repository_and_tag("localhost:5000/team/vllm")
    ('localhost:5000/team/vllm', 'latest')
    """
    repository, _, digest = reference.partition("@")
    if digest:
        return repository, digest
    before, slash, last = reference.rpartition("/")
    name, _, tag = last.partition(":")
    return before + slash + name, tag or "latest"


def registry(reference: str) -> str:
    """The registry that a reference names, empty for the default one.

    >>> registry("localhost:5000/team/vllm:1"), registry("vllm/vllm-openai")
    ('localhost:5000', '')
    """
    first, slash, _ = reference.partition("/")
    named = slash and ("." in first or ":" in first or first == "localhost")
    return first if named and first not in ("docker.io", "index.docker.io") else ""


def find_image(reference: str, images: Iterable[Image]) -> Image | None:
    """The host's image of that name, id or digest."""
    wanted = canonical(reference)
    for image in images:
        if wanted in image.tags or wanted in image.digests or reference == image.id:
            return image
    return None


def node_image_tag(base_id: str, requirements: tuple[str, ...]) -> str:
    """The tag of the node image: the base's id, so that another base is another image, and what it was made to have.

    An image that brings its own gets this name too, without a layer: the name records that it was looked at.
    """
    parts = (requirement.replace("==", "") for requirement in requirements)
    return "-".join((base_id.removeprefix("sha256:")[:12], *parts))


def node_image_name(base_id: str, requirements: tuple[str, ...]) -> str:
    """The full name of the node image; where nothing is to be added, that is the image itself, by its id."""
    return base_id if not requirements else f"{NODE_IMAGE_REPOSITORY}:{node_image_tag(base_id, requirements)}"


def is_pinned(reference: str) -> bool:
    """Whether a reference has a digest, which a registry alone proves: no host's word for it is taken by another."""
    return "@" in reference


@dataclass(frozen=True)
class ResolvedImage:
    """The id that a name means, its digest in a registry, and the host that may send it; empty where none is known.

    Where the head lacks it, the registry decides: `offered` is then the id of what the source has by that name, and
    `content` what that is.
    """

    id: str = ""
    digest: str = ""
    source: str = ""
    content: str = ""
    offered: str = ""

    def on(self, images: Iterable[Image]) -> Image | None:
        """The image on a host, among all that it has."""
        there = tuple(images)
        by_id = next((one for one in there if one.id == self.id), None)
        return by_id or next((one for one in there if self.content and one.content == self.content), None)

    def means(self, image_id: str, images: Iterable[Image]) -> bool:
        """Whether an id means this image on a host that has these."""
        same = (one.id for one in images if self.content and one.content == self.content)
        return image_id == self.id or image_id in same


def resolve_image(reference: str, hosts: Sequence[str], cluster: str, facts: Mapping[str, HostFacts]) -> ResolvedImage:
    """What the head understands by a name, which is to be the first; else what the first other host offers.

    A host whose name for it was removed knows it by the node that runs there, if that was made for this name.
    """
    head, *others = hosts
    if image := _known(reference, head, cluster, facts[head]):
        return image
    found = (_known(reference, host, cluster, facts[host]) for host in others)
    offer = next((one for one in found if one and one.source), None)
    return ResolvedImage("", "", offer.source, offer.content, offer.id) if offer else ResolvedImage()


def _known(reference: str, host: str, cluster: str, facts: HostFacts) -> ResolvedImage | None:
    """What a host understands by a name, with itself as the source where it may send it to others."""
    source = "" if is_pinned(reference) else host
    if image := find_image(reference, facts.images):
        return ResolvedImage(image.id, digest_of(reference, image.digests), source, image.content)
    node = node_of(cluster, facts)
    spec, contents = stored_spec(node.labels) if node else None, {image.id: image.content for image in facts.images}
    if not node or not spec or canonical(spec.image) != canonical(reference) or node.image_id not in contents:
        return None
    made_from = node.labels.get(BASE_IMAGE, "")
    return (
        ResolvedImage(made_from, digest_of(reference, ()), source, contents.get(made_from, "")) if made_from else None
    )


def digest_of(reference: str, digests: Sequence[str]) -> str:
    """By what the registry knows an image: the digest that was written, else the image's own of that repository."""
    name = canonical(reference)
    if is_pinned(name):
        return name
    repository = repository_and_tag(name)[0]
    return next((digest for digest in digests if repository_and_tag(digest)[0] == repository), "")


def in_question(reference: str, cluster: str, host: HostFacts) -> Collection[str]:
    """The ids on a host of what the name means, and of what its node is made from."""
    image, node = find_image(reference, host.images), node_of(cluster, host)
    wanted = {image.id if image else "", node.labels.get(BASE_IMAGE, "") if node else ""}
    return {image.id for image in host.images if image.id in wanted}
