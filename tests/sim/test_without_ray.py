"""A cluster whose hosts only the roll joins, and what is served without Ray on one that has it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.support.sim import lab, make
from tests.support.sim.oracle import converged
from tests.support.sim.world import World
from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.plan.plan import CreateNode, PrepareImage
from vllm_cluster.wire.order import read_order

ALONE = make.inventory(2, backend="mp")
BOTH = make.inventory(2)


def wanted(world: World) -> Any:
    """What the head is asked to serve."""
    return read_order(world.machines["gpu1"].volumes["vcluster-lab-state"].files["wanted.json"]).wanted


@pytest.fixture
def joined() -> Iterator[World]:
    """Two hosts that Ray joins."""
    with lab.cluster(2, lab.do_up) as made:
        yield made


def test_a_stock_image_is_used_as_it_is() -> None:
    world = make.world((2, 2))
    with lab.inside(world):
        before = {name: {*machine.images} for name, machine in world.machines.items()}
        plan = lab.succeed(world, ALONE, lab.do_plan).value
        assert {type(one) for one in plan.operations()} & {PrepareImage} == set()
        lab.succeed(world, ALONE, lab.do_up)
        converged(world, ALONE)
        assert {name: {*machine.images} for name, machine in world.machines.items()} == before
        for _, box in world.nodes():
            assert not any("ray" in word.lower() for word in (*box.argv, *box.environment))
        assert not [*lab.succeed(world, ALONE, lab.do_plan).value.operations()]
        found = lab.succeed(world, ALONE, lab.do_status).value
        assert (found.up, [host.joined_gpus for host in found.hosts]) == (True, [2, 2])


def test_every_host_is_ordered_its_part() -> None:
    world = make.world((2, 2))
    with lab.inside(world):
        lab.succeed(world, ALONE, lab.do_up)
        lab.succeed(world, ALONE, lab.do_serve)
        first, second = wanted(world).replica.parts
        shared = ["--nnodes=2", "--master-addr=10.0.0.1", "--master-port=29501"]
        assert [*first.argv[-4:]] == [*shared, "--node-rank=0"]
        assert [*second.argv[-5:]] == [*shared, "--node-rank=1", "--headless"]
        assert "--distributed-executor-backend=ray" not in first.argv
        assert lab.succeed(world, ALONE, lab.do_status).value.head.serve.backend == "mp"


def test_ray_is_refused_where_it_is_not() -> None:
    world = make.world((2, 2))
    with lab.inside(world):
        lab.succeed(world, ALONE, lab.do_up)
        error = lab.run(world, ALONE, partial(lab.do_serve, backend="ray")).error
        assert isinstance(error, UsageError)
        assert "this cluster has no Ray" in str(error)


def test_another_backend_recreates_no_node(joined: World) -> None:
    nodes = {box.id for _, box in joined.nodes()}
    lab.succeed(joined, BOTH, lab.do_serve)
    lab.succeed(joined, BOTH, partial(lab.do_serve, backend="mp"))
    assert (wanted(joined).replica.backend, {box.id for _, box in joined.nodes()}) == ("mp", nodes)
    plan = lab.succeed(joined, BOTH, lab.do_plan).value
    assert not [one for one in plan.operations() if isinstance(one, CreateNode)]


def test_several_engines_are_served_without_ray(joined: World) -> None:
    lab.succeed(joined, BOTH, partial(lab.do_serve, dp=4, expert_parallel=True))
    replica = wanted(joined).replica
    assert (replica.tp, replica.pp, replica.dp, replica.backend) == (1, 1, 4, "mp")
    assert replica.ranks == {"10.0.0.1": 2, "10.0.0.2": 2}
    words = replica.parts[0].argv
    assert {"--data-parallel-size=4", "--enable-expert-parallel", "--data-parallel-rpc-port=29550"} <= {*words}
    assert words[-2:] == ("--node-rank=0", "--api-server-count=1")


@pytest.mark.parametrize(
    ("gpus", "asked", "why", "remedy"),
    [
        ((4, 2), {}, "6 of 4 on gpu1, 2 on gpu2 cannot be", "use --tp 2 --pp 2"),
        ((2, 2), {"dp": 3}, "3 of 2 on gpu1, 2 on gpu2 cannot be", "use --dp 2 --tp 2"),
        ((2, 2), {"dp": 8}, "--dp 8 needs 8 GPUs", "give at most --dp 4"),
    ],
)
def test_what_cannot_be_laid_out_is_refused_before_anything_is_asked(
    gpus: tuple[int, int], asked: dict[str, Any], why: str, remedy: str
) -> None:
    world = make.world(gpus)
    with lab.inside(world):
        lab.succeed(world, ALONE, lab.do_up)
        error = lab.run(world, ALONE, partial(lab.do_serve, **asked)).error
        assert isinstance(error, UsageError)
        assert why in str(error)
        assert remedy in str(error.hint)
        assert "wanted.json" not in world.machines["gpu1"].volumes["vcluster-lab-state"].files


# fault: kernel/inventory/model.py: len(hosts) == 1: → not hosts:
# fault: serving/cluster/up.py: _note_backend(inventory, seen.plan, emit) → pass
def test_one_host_gets_no_ray_unless_the_inventory_has_it() -> None:
    cases: list[tuple[dict[str, Any], int]] = [({}, 0), ({"backend": "ray"}, 1)]
    for backend, layers in cases:
        world, inventory = make.world((2,)), make.inventory(1, **backend)
        with lab.inside(world):
            planned = lab.succeed(world, inventory, lab.do_plan)
            done = lab.succeed(world, inventory, lab.do_up)
            assert len([one for one in done.value.operations() if isinstance(one, PrepareImage)]) == layers
            for run in (planned, done):
                assert any("one host needs no Ray" in event.text for event in run.events) == (not layers)
            converged(world, inventory)
            lab.succeed(world, inventory, lab.do_serve)
            (part,) = wanted(world).replica.parts
            assert ("--distributed-executor-backend=ray" in part.argv) == bool(layers)
            assert "--nnodes=1" not in part.argv
