"""Whether an image needs Ray, and what is sent for it."""

from __future__ import annotations

import io
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from vllm_cluster.errors import VclusterError
from vllm_cluster.images import wheels
from vllm_cluster.images.contents import ImageContents, parse


def inside(**have: str) -> ImageContents:
    """An image with these distributions."""
    said = {"python": "3.12.3", "machine": "x86_64", "glibc": "2.39", "have": have}
    return parse([said])[0]


# fault: images/contents.py: MIN_RAY = (2, 55) → MIN_RAY = (2, 5)
@pytest.mark.parametrize(("ray", "will_do"), [("2.56.1", True), ("2.55.0", True), ("2.54.9", False), ("2.9", False)])
def test_ray_must_be_able_to_ask_for_a_token(ray: str, will_do: bool) -> None:
    assert inside(vllm="0.33.0", ray=ray).is_complete is will_do


# fault: images/contents.py: return self.ray_is_new and not self.lacking → return self.ray_is_new
def test_a_ray_without_what_its_dashboard_needs_gets_that_beside_it() -> None:
    plain = replace(inside(vllm="0.33.0", ray="2.56.1"), lacking=("aiohttp",))
    assert (plain.ray_is_new, plain.is_complete, plain.to_add(["ray==2.60.0"])) == (True, False, "ray==2.56.1")


def test_an_image_without_ray() -> None:
    found = inside(vllm="0.33.0")
    assert (found.is_complete, found.version("ray"), found.version("vllm")) == (False, None, "0.33.0")


def test_an_image_that_prints_something_else() -> None:
    with pytest.raises(ValueError, match="printed nothing"):
        parse([])


def test_pip_is_asked_once_with_the_images_versions_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def download(_inside: ImageContents, _ray: str, folder: Path, extra: list[str], _run: object) -> str:
        asked.append([Path(extra[1]).read_text()] if extra else [])
        (folder / "ray-2.56.1-cp312-cp312-manylinux2014_x86_64.whl").write_bytes(b"ray")
        (folder / "click-8.1-py3-none-any.whl").write_bytes(b"click")
        return ""

    monkeypatch.setattr(wheels, "_download", download)
    image = inside(vllm="0.33.0", click="8.1")
    for _ in range(2):
        folder = wheels.wheels(image, "ray==2.56.1", tmp_path)
    assert asked == [["click==8.1\nvllm==0.33.0\n"]]
    with tarfile.open(fileobj=io.BytesIO(wheels.context(folder))) as tar:
        names = tar.getnames()
    # What the image has already does not travel.
    assert names == ["Dockerfile", "wheels", "wheels/ray-2.56.1-cp312-cp312-manylinux2014_x86_64.whl"]


def test_pip_that_fails_both_ways_is_an_error_with_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "_download", lambda *_: "no matching distribution")
    with pytest.raises(VclusterError, match=r"ray\[default\]==2.56.1 for Python 3.12.3 on x86_64: no matching"):
        wheels.wheels(inside(vllm="1"), "ray==2.56.1", tmp_path)


# fault: images/contents.py: _WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*") → _WORD = re.compile(r"[^/]*")
def test_output_of_an_image_gives_pip_no_option() -> None:
    have = {"--index-url": "http://x", "a\n--index-url http://x": "1", "-r": "1", "good": "1.0+cpu", "odd": "1 --pre"}
    said = {"python": "3.12.1", "machine": "x86_64", "glibc": "2.35", "have": have}
    assert parse([said])[0].have == (("good", "1.0+cpu"),)
    assert parse([{**said, "glibc": ""}])[0].glibc == ""


@pytest.mark.parametrize("wrong", [{"python": "-x"}, {"machine": "../x"}, {"glibc": "2.x"}, {"python": "3 --pre"}])
def test_an_answer_without_a_version_is_refused(wrong: dict[str, str]) -> None:
    said = {"python": "3.12.1", "machine": "x86_64", "glibc": "2.35", "have": {}}
    with pytest.raises(ValueError, match="printed nothing"):
        parse([{**said, **wrong}])
