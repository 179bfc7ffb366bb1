"""Which images are a cluster's own, and which of them nothing needs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vllm_cluster.features.images.use import ClusterImage, cluster_images, freed
from vllm_cluster.kernel.facts.docker_objects import Container, Image
from vllm_cluster.kernel.plan.spec import BASE_IMAGE, BUILT_FOR, SPEC

REPOSITORY, OURS = "vllm/vllm-openai", "lab"


def sha(number: int) -> str:
    return f"sha256:{number:064x}"


def base(number: int, *names: str, digests: tuple[str, ...] = ()) -> Image:
    return Image(sha(number), names or (f"{REPOSITORY}:v{number}",), digests, {}, 20 * 10**9, number)


def built(number: int, made_from: int, owner: str = OURS, repository: str = "vcluster-node") -> Image:
    labels = {BASE_IMAGE: sha(made_from), **({BUILT_FOR: owner} if owner else {})}
    name = f"{repository}:{made_from:064x}"[: len(repository) + 13] + "-ray2.56.1"
    return Image(sha(number), (name,), (), labels, 21 * 10**9, number)


def short(number: int) -> int:
    """A number whose id begins with it: names of node images hold the beginning."""
    return number << 208


def container(image: int) -> Container:
    return Container("c", "another", "exited", sha(image), {})


B1, B2, B3, B4 = (short(number) for number in (1, 2, 3, 4))
ALL = (
    *(base(number, f"{REPOSITORY}:v{at}") for at, number in enumerate((B1, B2, B3, B4), 1)),
    *(built(100 + at, number) for at, number in enumerate((B1, B2, B3, B4), 1)),
)


def states(images: tuple[Image, ...], *used: int, wanted: str = f"{REPOSITORY}:v4") -> dict[str, str]:
    found = cluster_images(wanted, OURS, images, [container(one) for one in used])
    return {image.id: image.state for image in found}


def test_an_image_in_use_desired_or_previous_is_kept_with_its_base() -> None:
    found = states(ALL, 103)
    assert {found[sha(103)], found[sha(B3)]} == {"in-use"}
    assert {found[sha(104)], found[sha(B4)]} == {"desired"}
    assert {found[sha(102)], found[sha(B2)]} == {"previous"}
    assert {found[sha(101)], found[sha(B1)]} == {"unused"}


@pytest.mark.parametrize(
    "foreign",
    [
        base(short(9), "postgres:17"),
        base(short(9), f"{REPOSITORY}:a-colleague-runs-it-by-hand"),
        built(109, B1, owner="another-cluster"),
    ],
    ids=["another repository", "of the repository, and never ours", "built for another cluster"],
)
def test_an_image_of_others_is_not_listed(foreign: Image) -> None:
    assert foreign.id not in states((*ALL, foreign))


# fault: features/images/use.py: return image.id in nameless → return False
@pytest.mark.parametrize("listed", [(), ("<none>:<none>",)], ids=["Docker 25", "Docker 24"])
def test_an_image_whose_name_went_to_another_is_listed(listed: tuple[str, ...]) -> None:
    """A build under the same name left them: Docker lists them as <none>, and its own prune removes them."""
    digests = tuple(name.replace(":", "@") for name in listed)
    bare = replace(base(B1), tags=listed, digests=digests)
    rebuilt = replace(built(101, B1), tags=listed, digests=digests)
    found = states((bare, rebuilt, *ALL[1:4], *ALL[5:]))
    assert (found[bare.id], found[rebuilt.id]) == ("unused", "unused")
    found = states((bare, rebuilt, *ALL[1:4], *ALL[5:]), 101)
    assert (found[bare.id], found[rebuilt.id]) == ("in-use", "in-use")


def test_an_image_without_a_name_that_is_of_others_is_not_listed() -> None:
    """Also one that is a copy of a node, which a person made of its container: it has the labels of the image."""
    bare, theirs = replace(base(B1), tags=()), replace(built(109, B2, owner="another-cluster"), tags=())
    copy = replace(built(110, B4), tags=())
    copy = replace(copy, labels={**copy.labels, SPEC: "{}"})
    assert not {bare.id, theirs.id, copy.id} & set(states((bare, theirs, copy, *ALL[1:4], *ALL[5:])))


def test_a_base_is_left_where_others_need_it() -> None:
    """Another cluster's node image is made from it, or it has a name that a person gave it."""
    assert sha(B1) not in states((*ALL, built(109, B1, owner="another-cluster")))
    named = base(B1, f"{REPOSITORY}:v1", "colleague/vllm:mine")
    assert sha(B1) not in states((named, *ALL[1:]))


def test_a_container_of_anybody_keeps_an_image() -> None:
    found = states(ALL, 101)
    assert {found[sha(101)], found[sha(B1)]} == {"in-use"}
    assert states(ALL, B1)[sha(B1)] == "in-use"


def test_a_base_whose_tag_has_moved_is_known_by_its_digest() -> None:
    moved = Image(sha(B1), (), (f"{REPOSITORY}@sha256:12",), {}, 20 * 10**9, 1)
    assert states((moved, *ALL[1:]))[sha(B1)] == "unused"


def test_an_image_that_brings_its_own_ray_is_one_image_with_two_names() -> None:
    own = Image(sha(B1), (f"{REPOSITORY}:v1", f"vcluster-node:{sha(B1)[7:19]}-ray2.56.1"), (), {}, 1, 1)
    (found,) = cluster_images(f"{REPOSITORY}:v1", OURS, [own], [])
    assert (found.state, found.base, found.ray) == ("desired", "", "2.56.1")


def test_layers_that_two_images_share_are_counted_once() -> None:
    found: tuple[ClusterImage, ...] = cluster_images(f"{REPOSITORY}:v4", OURS, ALL, [container(103)])
    assert freed(found, {sha(101)}) == 10**9
    assert freed(found, {sha(101), sha(B1)}) == 21 * 10**9
