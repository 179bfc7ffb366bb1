"""What the image's vLLM knows of a model's class."""

from __future__ import annotations

from typing import cast

import pytest

from tests.support import world
from tests.support.canned_docker import CannedHost, answer
from vllm_cluster.docker.client import DockerApi
from vllm_cluster.docker.output import ExecResult
from vllm_cluster.errors import CommandFailed
from vllm_cluster.facts.host_facts import Container
from vllm_cluster.run import model_lookup
from vllm_cluster.run.connection import HostConnection
from vllm_cluster.transport.base import Transport


def head() -> HostConnection:
    """A head whose Docker has nothing to say."""
    link = HostConnection("gpu1", cast(Transport, CannedHost(lambda _: iter([answer(b"", 404)]))))
    link.open_engine("1.41")
    return link


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

    def answer(where: str) -> ExecResult:
        asked.append(where)
        return ExecResult(0, said)

    monkeypatch.setattr(DockerApi, "exec", lambda *_, **__: answer("in the node"))
    monkeypatch.setattr(model_lookup, "run_once", lambda *_, **__: answer("beside it"))
    node = Container("id", "vcluster-lab", "running" if up else "exited", "image", {})
    facts = world.host(1, containers=(node,))
    found = model_lookup.supports_pp(head(), facts, world.inventory(), "LlamaForCausalLM")
    assert (found, asked) == (expected, ["in the node" if up else "beside it"])


def test_nothing_is_run_for_a_name_that_is_none_or_without_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_once(*_: object, **__: object) -> ExecResult:
        raise AssertionError("ran")

    monkeypatch.setattr(model_lookup, "run_once", run_once)
    link, words = head(), world.inventory()
    assert model_lookup.supports_pp(link, world.host(1), words, "x'); import os; ('") is None
    assert model_lookup.supports_pp(link, world.host(1, images=()), words, "LlamaForCausalLM") is None


def test_an_image_that_cannot_be_run_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_once(*_: object, **__: object) -> ExecResult:
        raise CommandFailed("gpu1", "no space left", exit_code=1, stderr="")

    monkeypatch.setattr(model_lookup, "run_once", run_once)
    assert model_lookup.supports_pp(head(), world.host(1), world.inventory(), "LlamaForCausalLM") is None
