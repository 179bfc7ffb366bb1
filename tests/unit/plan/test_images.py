"""Names of images, as people write them and as Docker lists them."""

from __future__ import annotations

import pytest

from vllm_cluster.kernel.facts.docker_objects import Image, ImageInfo
from vllm_cluster.kernel.plan.images import (
    Content,
    ResolvedImage,
    canonical,
    content,
    digest_of,
    find_image,
    node_image_name,
    shared_layers,
)

DIGEST = "sha256:" + "12" * 32


@pytest.mark.parametrize(
    ("written", "listed"),
    [
        ("vllm/vllm-openai", "vllm/vllm-openai:latest"),
        ("docker.io/vllm/vllm-openai:v1", "vllm/vllm-openai:v1"),
        ("docker.io/library/python:3", "python:3"),
        ("registry.lan:5000/vllm", "registry.lan:5000/vllm:latest"),
        (f"vllm/vllm-openai:v1@{DIGEST}", f"vllm/vllm-openai@{DIGEST}"),
        (f"registry.lan:5000/vllm@{DIGEST}", f"registry.lan:5000/vllm@{DIGEST}"),
    ],
)
def test_canonical(written: str, listed: str) -> None:
    assert canonical(written) == listed


def test_an_image_is_found_by_tag_digest_or_id() -> None:
    image = Image("sha256:ab", ("vllm/vllm-openai:v1",), (f"vllm/vllm-openai@{DIGEST}",), {})
    for reference in ("docker.io/vllm/vllm-openai:v1", f"vllm/vllm-openai:v1@{DIGEST}", "sha256:ab"):
        assert find_image(reference, [image]) is image
    assert find_image("vllm/vllm-openai:v2", [image]) is None


# fault: kernel/plan/images.py: if is_pinned(name): → if not name:
def test_a_digest_that_was_written_is_what_is_pulled() -> None:
    """Also where the host lists others of that repository before it."""
    others = ["vllm/vllm-openai@sha256:" + "66" * 32, f"vllm/vllm-openai@{DIGEST}"]
    assert digest_of(f"docker.io/vllm/vllm-openai:v1@{DIGEST}", others) == others[1]
    assert digest_of("vllm/vllm-openai:v1", ["lab/vllm@sha256:" + "77" * 32, *others]) == others[0]
    assert digest_of("vllm/vllm-openai:v1", []) == ""


def test_the_node_image_is_named_by_base_and_ray() -> None:
    assert node_image_name("sha256:" + "ab" * 32, ("ray==2.56.1",)) == "vcluster-node:abababababab-ray2.56.1"


def stored(*layers: str, driver: str = "overlay2") -> Content:
    return content(ImageInfo("sha256:1", architecture="arm64", size_bytes=5, layers=layers, driver=driver))


@pytest.mark.parametrize(
    ("there", "shared"),
    [
        ([], 0),
        ([stored("a", "b", "other")], 2),
        ([stored("a"), stored("a", "b", "c", "d"), stored("x")], 3),
        # Docker knows a layer with all that is below it: the same one upon another is another.
        ([stored("x", "b", "c")], 0),
        ([stored("a", "b", "c", driver="overlayfs")], 0),
    ],
)
def test_layers_are_shared_from_the_lowest(there: list[Content], shared: int) -> None:
    image = stored("a", "b", "c")
    assert (image.architecture, image.size) == ("arm64", 5)
    assert shared_layers(image, there) == shared


# fault: kernel/plan/images.py: == self.content), None) → == 0), None)
def test_an_image_is_found_by_what_it_holds_where_it_has_another_id() -> None:
    """Where containerd keeps it, its id is that of its manifest."""
    there = Image("sha256:cd", (), (), {}, content=DIGEST)
    assert ResolvedImage("sha256:ab", content=DIGEST).on([there]) is there
    assert ResolvedImage("sha256:ab").on([there]) is None
    assert ResolvedImage("sha256:cd").on([there]) is there
