"""Which images of a host are this cluster's, and which of them nothing needs any more."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from vllm_cluster.kernel.facts.docker_objects import Container, Image
from vllm_cluster.kernel.plan.images import NODE_IMAGE_REPOSITORY, canonical, find_image, repository_and_tag
from vllm_cluster.kernel.plan.spec import BASE_IMAGE, BUILT_FOR, SPEC, VLLM_VERSION

State = Literal["in-use", "desired", "previous", "unused"]
_NODE_IMAGE = re.compile(rf"{NODE_IMAGE_REPOSITORY}:([0-9a-f]{{12}})-ray(.+)")
# As Docker lists an image without a name, up to version 24.
_NONE = "<none>"


@dataclass(frozen=True)
class ClusterImage:
    """An image that a cluster uses or used: its names, its size, when it was made, and what for.

    `base` is the id of the image that a node image is built on, empty for a base image. The state is "in-use" where
    a container was made from it, "desired" where the inventory names it, "previous" for the last one that was used
    before, and "unused".
    """

    id: str
    names: tuple[str, ...]
    digest: str
    size_bytes: int
    created: int
    state: State
    base: str = ""
    ray: str = ""
    vllm: str = ""


def cluster_images(
    reference: str, cluster: str, images: Sequence[Image], containers: Collection[Container]
) -> tuple[ClusterImage, ...]:
    """The images of a cluster on a host, from all its images and containers; those of other clusters are left out.

    A node image carries the name of the cluster that it was built for: a host has one of a name, and the id goes
    with `down`. One that an earlier version built, or that is another name of its base, is known by its base. A base
    has names of the inventory's repository alone, or none any more, and a node image was made from it: any other image
    of that repository belongs to others.
    """
    repository = repository_and_tag(canonical(reference))[0]
    wanted = find_image(reference, images)
    every = list(_node_images(images))
    nameless = {base for image, base, _ in every if image.labels.get(BUILT_FOR) == cluster}
    known = {one.id: one for one in images if one == wanted or _is_of(repository, one, nameless)}
    built = [row for row in every if _of_cluster(row[0], row[1], known, cluster)]
    # What another cluster's node image is made from is left to that cluster.
    theirs = {base for image, base, _ in every if not _of_cluster(image, base, known, cluster)}
    made_from = {base for _, base, _ in built} - theirs
    bases = {image_id: image for image_id, image in known.items() if image_id in made_from or image == wanted}
    used = {container.image_id for container in containers}
    # What runs is made from a node image, and that one from its base.
    used |= {base for image, base, _ in built if image.id in used}
    keep = {wanted.id} if wanted else set()
    keep |= {image.id for image, base, _ in built if base in keep}
    idle = [row for row in built if not {row[0].id} & (used | keep)]
    before = max(idle, key=lambda row: row[0].created, default=None)
    last = {before[0].id, before[1]} if before else set()

    def state(image: Image) -> State:
        states: tuple[tuple[State, Collection[str]], ...] = (("in-use", used), ("desired", keep), ("previous", last))
        return next((name for name, ids in states if image.id in ids), "unused")

    made = {image.id: (base, ray) for image, base, ray in built if image.id != base}
    rays = {base: ray for image, base, ray in built if image.id == base}
    found_images = {**bases, **{image.id: image for image, _, _ in built}}
    return tuple(
        ClusterImage(
            image.id,
            _names(image),
            next(iter(_digests(image)), ""),
            image.size_bytes,
            image.created,
            state(image),
            *made.get(image.id, ("", rays.get(image.id, ""))),
            image.labels.get(VLLM_VERSION, ""),
        )
        for image in found_images.values()
    )


def _names(image: Image) -> tuple[str, ...]:
    return tuple(tag for tag in image.tags if not tag.startswith(_NONE))


def _digests(image: Image) -> tuple[str, ...]:
    return tuple(digest for digest in image.digests if not digest.startswith(_NONE))


def _given(image: Image) -> tuple[str, ...]:
    """By what a person can name it; nothing where another image took its name."""
    return _names(image) or _digests(image)


def _is_of(repository: str, image: Image, nameless: Collection[str]) -> bool:
    """Whether an image has names of that repository, and no others but those of node images.

    One without any name is of the cluster where it is among the `nameless`.
    """
    if not _given(image):
        return image.id in nameless
    given = [name for name in _names(image) if not _NODE_IMAGE.fullmatch(name)]
    # One that brings its own Ray has a node image's name, too: it does not show whose it is.
    names = given or _digests(image)
    return bool(names) and all(repository_and_tag(canonical(name))[0] == repository for name in names)


def _node_images(images: Sequence[Image]) -> Iterator[tuple[Image, str, str]]:
    """Each node image, the id of its base, empty where that is not there, and its Ray."""
    short = {image.id.removeprefix("sha256:")[:12]: image.id for image in images}
    for image in images:
        for tag in image.tags:
            if found := _NODE_IMAGE.fullmatch(tag):
                yield image, image.labels.get(BASE_IMAGE) or short.get(found[1], ""), found[2]
        # Its name went to one that was built later; a copy of a node that a person made has the labels of the node too.
        if not _given(image) and BUILT_FOR in image.labels and SPEC not in image.labels:
            yield image, image.labels.get(BASE_IMAGE, ""), ""


def _of_cluster(image: Image, base: str, known: Collection[str], cluster: str) -> bool:
    return image.labels[BUILT_FOR] == cluster if BUILT_FOR in image.labels else base in known


def freed(images: Sequence[ClusterImage], removed: Collection[str]) -> int:
    """The bytes that go with some of a host's images: a node image has its base's layers, too."""
    sizes = {image.id: image.size_bytes for image in images}
    return sum(image.size_bytes - sizes.get(image.base, 0) for image in images if image.id in removed)
