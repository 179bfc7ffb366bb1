"""What the head knows of a model: by its cache, and by the image's vLLM."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.support import world
from tests.support.canned_docker import CannedHost, answer
from tests.support.models import configs
from vllm_cluster.actions.serve import refuse_split
from vllm_cluster.core.errors import CommandFailed, PreflightFailed
from vllm_cluster.core.facts import Container
from vllm_cluster.docker.engine import EngineClient
from vllm_cluster.docker.output import Ended
from vllm_cluster.engine.vllm import Layout
from vllm_cluster.run import models
from vllm_cluster.run.fleet import Link
from vllm_cluster.transport.base import Transport

NAME = "meta-llama/Llama-3.1-8B"
CACHE = "/models/hub/models--meta-llama--Llama-3.1-8B"
CONFIG = json.dumps(configs.LLAMA_8B).encode()
CACHED: dict[str, bytes | str] = {
    f"{CACHE}/refs/main": b"0e9e39f249a16976918f6564b8830bc894c89659\n",
    f"{CACHE}/snapshots/0e9e39f249a16976918f6564b8830bc894c89659/config.json": "../../blobs/0f1e",
    f"{CACHE}/blobs/0f1e": CONFIG,
    "/models/mine/config.json": json.dumps(configs.LLAMA_70B).encode(),
    "/models/loop/config.json": "config.json",
}


def head(files: dict[str, bytes | str]) -> Link:
    """A head whose Docker sends files as the real one does: in an archive, and a link (text) as a link."""

    def archive(line: str) -> Iterator[bytes]:
        query = parse_qs(urlsplit(line.split(" ")[1]).query)
        (path,) = query["path"]
        if path not in files:
            return iter([answer(b'{"message": "no such file"}', 404)])
        content, packed = files[path], io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            entry = tarfile.TarInfo(path.rpartition("/")[2])
            if isinstance(content, str):
                entry.type, entry.linkname = tarfile.SYMTYPE, content
                tar.addfile(entry)
            else:
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
        return iter([answer(packed.getvalue())])

    link = Link("gpu1", cast(Transport, CannedHost(archive)))
    link.open_engine("1.41")
    return link


@pytest.mark.parametrize(("model", "layers"), [(NAME, 32), ("/models/mine", 80)])
def test_the_config_lies_in_the_cache_behind_a_link_or_in_a_folder(model: str, layers: int) -> None:
    found = models.cached_shape(head(CACHED), world.inventory(), model, ())
    assert found
    assert len(found.layers) == layers


@pytest.mark.parametrize(
    ("model", "flags", "changes"),
    [
        ("meta-llama/other", (), {}),
        ("/models/nothing", (), {}),
        ("/models/loop", (), {}),
        (NAME, ("--revision=old",), {}),
        (NAME, ("--hf_overrides", "{}"), {}),
        (NAME, (), {f"{CACHE}/refs/main": b"../x", f"{CACHE}/snapshots/../x/config.json": CONFIG}),
        (NAME, (), {f"{CACHE}/refs/main": b""}),
        (NAME, (), {f"{CACHE}/blobs/0f1e": b'{"model_type": "ll'}),
        (NAME, (), {f"{CACHE}/blobs/0f1e": b"[]"}),
        (NAME, (), {f"{CACHE}/blobs/0f1e": b"[" * 100_000}),
        (NAME, (), {f"{CACHE}/blobs/0f1e": b'{"model_type": "zebra"}'}),
    ],
)
def test_what_cannot_be_read_is_no_reason(model: str, flags: tuple[str, ...], changes: dict[str, Any]) -> None:
    assert models.cached_shape(head({**CACHED, **changes}), world.inventory(), model, flags) is None
    refuse_split(head({**CACHED, **changes}), world.inventory(), model, Layout(3, 1, ()), flags)


def test_serve_refuses_a_split_that_cannot_be_with_one_that_can() -> None:
    with pytest.raises(PreflightFailed, match="TP=6 does not divide its 32 attention heads") as caught:
        refuse_split(head(CACHED), world.inventory(), NAME, Layout(6, 1, ()), ())
    assert caught.value.exit_code == 3
    assert "--tp 2 --pp 3" in str(caught.value.hint)
    refuse_split(head(CACHED), world.inventory(), NAME, Layout(2, 3, ()), ())


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ('INFO loading\n{"supports_pp": true}\n', True),
        ('{"supports_pp": false}', False),
        ('{"supports_pp": null}', None),
        ('{"supports_pp": tru', None),
        ("ImportError: libcuda.so.1", None),
        ("", None),
    ],
)
@pytest.mark.parametrize("up", [True, False])
def test_the_image_says_whether_a_class_has_stages(
    monkeypatch: pytest.MonkeyPatch, said: str, expected: bool | None, up: bool
) -> None:
    asked: list[str] = []

    def answer(where: str) -> Ended:
        asked.append(where)
        return Ended(0, said)

    monkeypatch.setattr(EngineClient, "exec", lambda *_, **__: answer("in the node"))
    monkeypatch.setattr(models, "run_once", lambda *_, **__: answer("beside it"))
    node = Container("id", "vcluster-lab", "running" if up else "exited", "image", {})
    facts = world.host(1, containers=(node,))
    found = models.supports_stages(head({}), facts, world.inventory(), "LlamaForCausalLM")
    assert (found, asked) == (expected, ["in the node" if up else "beside it"])


def test_nothing_is_run_for_a_name_that_is_none_or_without_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_once(*_: object, **__: object) -> Ended:
        raise AssertionError("ran")

    monkeypatch.setattr(models, "run_once", run_once)
    link, words = head({}), world.inventory()
    assert models.supports_stages(link, world.host(1), words, "x'); import os; ('") is None
    assert models.supports_stages(link, world.host(1, images=()), words, "LlamaForCausalLM") is None


def test_an_image_that_cannot_be_run_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_once(*_: object, **__: object) -> Ended:
        raise CommandFailed("gpu1", "no space left", exit_code=1, stderr="")

    monkeypatch.setattr(models, "run_once", run_once)
    assert models.supports_stages(head({}), world.host(1), world.inventory(), "LlamaForCausalLM") is None
