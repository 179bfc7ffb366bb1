"""A node that runs stays where less is found; the inventory, and what is found beside it, make another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support import world
from vllm_cluster.kernel.checks.registry import preflight
from vllm_cluster.kernel.facts.host_facts import Hca, HostFacts
from vllm_cluster.kernel.plan.desired import desired, settled
from vllm_cluster.kernel.plan.diff import diff
from vllm_cluster.kernel.plan.gpus import KIND
from vllm_cluster.kernel.plan.plan import Plan

UP = tuple(
    Hca(f"mlx5_{n}", 1, "4: ACTIVE", "InfiniBand", "400 Gb/sec (4X NDR)", (f"/dev/infiniband/uverbs{n}",))
    for n in (0, 1)
)
DOWN = replace(UP[1], state="1: DOWN")
FILES = ("/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0", "/dev/infiniband/uverbs1")
ENGINE = replace(
    world.host(1).docker, version="28.2.2", cdi_enabled=True, cdi_specs=(KIND,), container_runtimes=("nvidia", "runc")
)


def after(
    then: dict[str, Any], now: dict[str, Any], *, was: dict[str, Any], says: dict[str, Any]
) -> tuple[Plan, list[str]]:
    """The plan for a host that runs a node made of what was `then`, and what is shown of it."""
    before, words = (world.inventory(1, entries={"gpu1": entry}) for entry in (was, says))
    facts = world.hosts(1, gpu1={"rdma_devices": FILES, **then})
    (spec,) = desired(before, facts, world.INPUTS)
    seen: dict[str, HostFacts] = {"gpu1": replace(facts["gpu1"], containers=(world.running(spec),), **now)}
    assert [found for found in preflight(words, seen) if found.error] == []
    specs, less = settled(desired(words, seen, world.INPUTS), seen)
    return diff(specs, seen), [lost.text for lost in less]


GPUS = world.host(1).gpus


# fault: kernel/plan/desired.py: _settle(current, wanted) if current and same else (wanted, [] → wanted, list[str](
@pytest.mark.promise("P43")
@pytest.mark.parametrize(
    ("then", "now", "entry", "told"),
    [
        ({"hcas": UP}, {"hcas": (UP[0], DOWN)}, {}, ["mlx5_1:1 was ACTIVE"]),
        ({"hcas": UP}, {"hcas": ()}, {}, ["mlx5_0:1, mlx5_1:1 was ACTIVE"]),
        ({"hcas": UP}, {"hcas": (UP[0], DOWN)}, {"hcas": ["mlx5_0", "mlx5_1"]}, ["mlx5_1:1 was ACTIVE"]),
        ({}, {"gpus": GPUS[:1]}, {}, ["2 GPUs were found"]),
        ({"docker": ENGINE}, {"docker": replace(ENGINE, cdi_enabled=False)}, {}, []),
        ({"docker": replace(ENGINE, cdi_specs=())}, {"docker": ENGINE}, {}, []),
        ({"gpus": GPUS}, {"gpus": (replace(GPUS[0], used_mib=100_000), GPUS[1])}, {"gpus": 1}, []),
    ],
)  # fmt: skip
def test_missing_hardware_changes_nothing_and_is_reported(
    then: dict[str, Any], now: dict[str, Any], entry: dict[str, Any], told: list[str]
) -> None:
    plan, texts = after(then, now, was=entry, says=entry)
    assert plan.empty
    assert plan.gpus == {"10.0.0.1": entry.get("gpus", 2)}
    assert [text.startswith(start) for text, start in zip(texts, told, strict=True)] == [True] * len(told)


@pytest.mark.promise("P43")
@pytest.mark.parametrize(
    ("then", "now", "was", "says", "field"),
    [
        ({"hcas": (UP[0], DOWN)}, {"hcas": UP}, {}, {}, "environment.NCCL_IB_HCA"),
        ({"hcas": UP}, {}, {}, {"hcas": ["mlx5_0"]}, "environment.NCCL_IB_HCA"),
        ({"hcas": UP}, {"hcas": (UP[0], DOWN)}, {}, {"hcas": []}, "environment.NCCL_IB_HCA"),
        ({"gpus": GPUS[:1]}, {"gpus": GPUS}, {}, {}, "gpu_count"),
        ({}, {}, {}, {"gpus": [1]}, "gpus"),
        ({}, {}, {"gpus": [0]}, {"gpus": [1]}, "gpus"),
    ],
)  # fmt: skip
def test_more_than_there_was_and_other_words_make_another_node(
    then: dict[str, Any], now: dict[str, Any], was: dict[str, Any], says: dict[str, Any], field: str
) -> None:
    plan, texts = after(then, now, was=was, says=says)
    (create,) = [operation for operation in plan.operations() if operation.verb == "create"]
    assert field in [change.field for change in create.changes]  # type: ignore[union-attr]
    assert texts == []


def test_a_node_that_has_stopped_is_made_of_what_is_there() -> None:
    """It could not start with a device that is gone."""
    words, facts = world.inventory(1), world.hosts(1, gpu1={"hcas": UP, "rdma_devices": FILES})
    (spec,) = desired(words, facts, world.INPUTS)
    seen = {"gpu1": replace(facts["gpu1"], hcas=(), containers=(world.running(spec, state="exited"),))}
    specs, less = settled(desired(words, seen, world.INPUTS), seen)
    assert not diff(specs, seen).empty
    assert less == ()
