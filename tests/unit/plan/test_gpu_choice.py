"""Which GPUs of a host a node gets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support import world
from vllm_cluster.kernel.checks.registry import preflight
from vllm_cluster.kernel.facts.host_facts import Gpu, HostFacts
from vllm_cluster.kernel.plan.desired import desired, gpu_count
from vllm_cluster.kernel.plan.gpus import chosen


def host(*busy: int, sides: str = "00001111") -> HostFacts:
    """Eight GPUs on two sides of a machine, some of them in use."""
    gpus = tuple(
        Gpu(n, f"GPU-0000000{n}", "NVIDIA H200", 143_771, 90_000 if n in busy else 0, numa=int(side))
        for n, side in enumerate(sides)
    )
    return replace(world.host(1), gpus=gpus)


def indices(facts: HostFacts, gpus: Any) -> list[int]:
    """What an inventory with this gets."""
    return [gpu.index for gpu in chosen(world.inventory(1, entries={"gpu1": {"gpus": gpus}}).hosts["gpu1"], facts)]


# fault: kernel/plan/gpus.py: frozenset(gpu.index for gpu in facts.gpus if busy(gpu)) → frozenset()
@pytest.mark.parametrize(
    ("gpus", "busy", "expected"),
    [
        (None, (), [0, 1, 2, 3, 4, 5, 6, 7]),
        (4, (), [0, 1, 2, 3]),
        (4, (1,), [4, 5, 6, 7]),  # one side, though three are free on the other
        (2, (0, 1, 4), [2, 3]),  # the side that has just enough
        (4, (0, 1, 4, 5), [2, 3, 6, 7]),  # free ones of both sides rather than busy ones
        (6, (0, 1, 2, 3), [0, 1, 4, 5, 6, 7]),  # two busy ones must be taken
        ([0, 2, 5, 7], (0,), [0, 2, 5, 7]),
        (["GPU-00000003", 1], (), [1, 3]),
    ],
)
def test_free_gpus_of_one_side_come_first_and_names_decide(
    gpus: Any, busy: tuple[int, ...], expected: list[int]
) -> None:
    assert indices(host(*busy), gpus) == expected


def test_the_container_gets_the_named_ones_and_ray_their_number() -> None:
    words = world.inventory(1, backend="ray", entries={"gpu1": {"gpus": [0, 2, 5, 7]}})
    (head,) = desired(words, {"gpu1": host()}, world.INPUTS)
    assert head.gpus is not None
    assert head.gpus.ids == ("0", "2", "5", "7")
    assert "--num-gpus=4" in head.command
    assert gpu_count(words.hosts["gpu1"], host(), "nvidia") == 4


def test_busy_ones_are_taken_with_a_word_only() -> None:
    words = world.inventory(1, entries={"gpu1": {"gpus": 6}})
    (found,) = preflight(words, {"gpu1": host(0, 1, 2, 3)})
    assert (found.code, found.error) == ("gpu-busy", False)
    assert "GPU 0" in found.message
    assert preflight(world.inventory(1, entries={"gpu1": {"gpus": 4}}), {"gpu1": host(0, 1, 2, 3)}) == ()


@pytest.mark.parametrize("gpus", [[0, 9], ["GPU-99999999"], [3, "GPU-00000003"]])
def test_a_named_gpu_that_is_not_there_is_an_error(gpus: list[int | str]) -> None:
    (found,) = preflight(world.inventory(1, entries={"gpu1": {"gpus": gpus}}), {"gpu1": host()})
    assert (found.code, found.error) == ("gpu-not-found", True)
