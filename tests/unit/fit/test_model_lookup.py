"""What the image's vLLM knows of a model's class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from tests.support import world
from tests.support.canned_docker import CannedHost, answer
from vllm_cluster.kernel.docker.temporary import TemporaryContainer
from vllm_cluster.kernel.errors import CommandFailed
from vllm_cluster.kernel.facts.docker_objects import Container
from vllm_cluster.kernel.hosts.connection import HostConnection
from vllm_cluster.kernel.hosts.program import Finished, InNode, Place, RemoteProgram
from vllm_cluster.kernel.plan.identity import without_lease
from vllm_cluster.kernel.transport.base import Transport
from vllm_cluster.serving.fit import lookup as model_lookup


def head() -> HostConnection:
    """A head whose Docker has nothing."""
    link = HostConnection("gpu1", cast(Transport, CannedHost(lambda _: iter([answer(b"", 404)]))))
    link.open_docker("1.41")
    return link


Rows = tuple[dict[str, Any], ...]


def answers(monkeypatch: pytest.MonkeyPatch, answer: Callable[[Place], Rows]) -> None:
    """What the program prints, wherever it runs."""

    def run(_connection: object, program: RemoteProgram, place: Place, _deadline: object) -> Finished:
        assert program.argv[-1] == "LlamaForCausalLM"
        return Finished(0, answer(place), "", "")

    monkeypatch.setattr(model_lookup, "run_program", run)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (({"level": "INFO"}, {"supports_pp": True}), True),
        (({"supports_pp": False},), False),
        (({"supports_pp": None},), None),
        (({"supports_pp": "yes"},), None),
        ((), None),
    ],
)
@pytest.mark.parametrize("up", [True, False])
def test_the_image_shows_whether_a_class_has_stages(
    monkeypatch: pytest.MonkeyPatch, rows: Rows, expected: bool | None, up: bool
) -> None:
    asked: list[Place] = []

    def answer(place: Place) -> Rows:
        asked.append(place)
        return rows

    answers(monkeypatch, answer)
    node = Container("id", "vcluster-lab", "running" if up else "exited", "image", {})
    facts = world.host(1, containers=(node,))
    found = model_lookup.supports_pp(head(), facts, world.inventory(), "LlamaForCausalLM")
    beside = TemporaryContainer(without_lease("lab"), "fit", world.BASE.id)
    assert (found, asked) == (expected, [InNode("vcluster-lab") if up else beside])


def test_nothing_is_run_for_a_name_that_is_none_or_without_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_place: Place) -> Rows:
        raise AssertionError("ran")

    answers(monkeypatch, fail)
    link, words = head(), world.inventory()
    assert model_lookup.supports_pp(link, world.host(1), words, "x'); import os; ('") is None
    assert model_lookup.supports_pp(link, world.host(1, images=()), words, "LlamaForCausalLM") is None


def test_an_image_that_cannot_be_run_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_place: Place) -> Rows:
        raise CommandFailed("gpu1", "no space left", exit_code=1, stderr="")

    answers(monkeypatch, fail)
    assert model_lookup.supports_pp(head(), world.host(1), world.inventory(), "LlamaForCausalLM") is None
