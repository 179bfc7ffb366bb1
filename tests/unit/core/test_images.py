"""Names of images, as people write them and as Docker lists them."""

from __future__ import annotations

import pytest

from vllm_cluster.core.images import canonical, find_image, node_image_name
from vllm_cluster.facts.host_facts import Image

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


def test_the_engine_image_is_named_by_base_and_ray() -> None:
    assert node_image_name("sha256:" + "ab" * 32, "2.56.1") == "vcluster-engine:abababababab-ray2.56.1"
