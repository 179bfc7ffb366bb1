"""What `vcluster image ls` prints, for people and for programs."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest

from tests.support.json_schemas import validate
from vllm_cluster.features.images.action import FoundImages
from vllm_cluster.features.images.render import images_document, show_images
from vllm_cluster.features.images.use import ClusterImage
from vllm_cluster.kernel.errors import Unreachable

NAME = "vllm/vllm-openai:v0.32.0"
BASE = ClusterImage(f"sha256:{'1' * 64}", (NAME,), "", 20 * 10**9, int(time.time()) - 7300, "in-use")
NODE_IMAGE = replace(
    BASE, id=f"sha256:{'2' * 64}", names=("vcluster-node:111111111111-ray2.56.1",), base=BASE.id, ray="2.56.1"
)
OLD = replace(BASE, id=f"sha256:{'3' * 64}", names=(), digest="vllm/vllm-openai@sha256:12", state="unused")
FOUND = FoundImages(
    # Each host has built its node image itself.
    {"gpu1": (BASE, NODE_IMAGE), "gpu2": (BASE, replace(NODE_IMAGE, id=f"sha256:{'4' * 64}"), OLD)},
    {"gpu3": Unreachable("gpu3", "no answer")},
)


def shown(capsys: pytest.CaptureFixture[str], found: FoundImages) -> list[str]:
    show_images(found)
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_hosts_that_have_the_same_share_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, FOUND) == [
        "IMAGE ID RAY SIZE CREATED HOSTS STATE",
        "vllm/vllm-openai:v0.32.0 111111111111 20.0 GB 2 h ago all 2 in-use",
        "vcluster-node:111111111111-ray2.56.1 2.56.1 20.0 GB 2 h ago all 2 in-use",
        "vllm/vllm-openai@sha256:12 333333333333 20.0 GB 2 h ago gpu2 unused",
    ]


def test_an_image_that_brings_ray_has_one_row_also_where_no_node_was_made(capsys: pytest.CaptureFixture[str]) -> None:
    said = shown(capsys, FoundImages({"gpu1": (BASE,), "gpu2": (replace(BASE, ray="2.56.1"),)}, {}))
    assert said[1:] == ["vllm/vllm-openai:v0.32.0 111111111111 2.56.1 20.0 GB 2 h ago all 2 in-use"]


def test_no_image_prints_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, FoundImages({"gpu1": (), "gpu2": ()}, {})) == ["No images of this cluster on gpu1, gpu2."]


def test_the_document_is_that_of_its_schema() -> None:
    document = json.dumps(images_document(FOUND))
    validate(["image", "ls"], document)
    assert json.loads(document)["unreachable"] == {"gpu3": "gpu3: no answer"}
