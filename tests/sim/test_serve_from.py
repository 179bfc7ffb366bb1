"""Serve what a command line of vLLM asks for, on hosts that have its GPUs and on hosts that have fewer."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.support.paths import FIXTURES
from tests.support.sim import lab, make
from tests.support.sim.world import World
from vllm_cluster.kernel.errors import Aborted, UsageError
from vllm_cluster.kernel.events import Emit
from vllm_cluster.kernel.hosts.runtime import Runtime
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.serving.serve.base import fit_by
from vllm_cluster.serving.serve.serve import serve_model
from vllm_cluster.serving.serve.translated import merge_deployments
from vllm_cluster.serving.translate.hosts import recipe_hosts
from vllm_cluster.serving.translate.recipe import translate_recipe
from vllm_cluster.serving.translate.recipe_hosts import RecipeHosts
from vllm_cluster.serving.translate.text import translate
from vllm_cluster.wire.order import Deployment, read_order

INVENTORY = make.inventory(2)
REST = "--nnodes 2 --node-rank 0 --master-addr 10.9.9.1 --port 9000 --max-model-len 4096"


@pytest.fixture
def world() -> Iterator[World]:
    """Two hosts of two GPUs."""
    with lab.cluster(2, lab.do_up) as made:
        yield made


def served(world: World) -> Any:
    """What the head is asked to serve."""
    file = world.machines["gpu1"].volumes["vcluster-lab-state"].files.get("wanted.json")
    return read_order(file).wanted if file else None


def from_line(text: str, person: lab.Person) -> lab.Verb:
    """`vcluster serve --from TEXT`, where a person sits."""
    asked = merge_deployments(translate(text, "--from"), Deployment("", ""), degrees=False)

    def verb(inventory: Inventory, emit: Emit, runtime: Runtime) -> Any:
        fit = fit_by(person, inventory.cluster)
        return serve_model(inventory, emit, asked, confirm=person, fit=fit, runtime=runtime)

    return verb


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ("-tp 2 -pp 2", (2, 2, 1, "ray")),
        ("-tp 4", (4, 1, 1, "ray")),
        ("-tp 2", (2, 1, 1, "ray")),
        ("", (1, 1, 1, "ray")),
        ("--data-parallel-size 4 --enable-expert-parallel", (1, 1, 4, "mp")),
    ],
)
def test_a_layout_that_the_hosts_have_is_served_as_it_is(world: World, layout: str, expected: Any) -> None:
    lab.succeed(world, INVENTORY, from_line(f"vllm serve org/model {layout} {REST}", lab.Person()))
    replica = served(world).replica
    assert (replica.tp, replica.pp, replica.dp, replica.backend) == expected
    words = replica.leader.argv
    assert "10.9.9.1" not in " ".join(words)
    assert words[words.index("--max-model-len") + 1] == "4096"
    assert "--port=8000" in words


@pytest.mark.parametrize(
    ("layout", "question", "expected"),
    [
        ("-tp 8", "wants TP=8 × PP=1: 8 GPUs; lab has 4. TP=2 × PP=2 would need 2.0 × the memory", (2, 2, 1)),
        ("-dp 8 -ep", "wants TP=1 × PP=1 × DP=8: 8 GPUs; lab has 4. TP=1 × PP=1 × DP=4 would need up to", (1, 1, 4)),
        ("-tp 2 -dp 6", "12 GPUs; lab has 4. TP=2 × PP=1 × DP=2 has 2 of its 6 engines", (2, 1, 2)),
        ("-tp 8 -dp 2", "16 GPUs; lab has 4. TP=2 × PP=2 is one engine in place of 2", (2, 2, 1)),
    ],
)
def test_a_layout_that_the_hosts_lack_is_another_one_by_consent(
    world: World, layout: str, question: str, expected: Any
) -> None:
    text = f"vllm serve org/model {layout} {REST}"
    nobody_there, no, yes = lab.Person(None), lab.Person(False), lab.Person(True)
    refused = lab.run(world, INVENTORY, from_line(text, nobody_there)).error
    assert isinstance(refused, UsageError)
    assert refused.again is not None
    tp, pp, dp = expected
    assert refused.again == ("--tp", str(tp), "--pp", str(pp), *(("--dp", str(dp)) if dp > 1 else ()))
    assert isinstance(lab.run(world, INVENTORY, from_line(text, no)).error, Aborted)
    assert served(world) is None
    lab.succeed(world, INVENTORY, from_line(text, yes))
    assert question in yes.asked[0]
    replica = served(world).replica
    assert (replica.tp, replica.pp, replica.dp) == expected


# fault: serving/translate/hosts.py: if not hosts or name in hosts → if True
@pytest.mark.parametrize(
    ("chosen", "hosts", "expected"),
    [
        ({}, (), (2, 2, 1, "ray")),
        ({"strategy": "multi_node_tp"}, (), (4, 1, 1, "ray")),
        ({"strategy": "multi_node_dep"}, (), (1, 1, 4, "mp")),
        ({"strategy": "multi_node_tp"}, ("gpu2",), (2, 1, 1, "ray")),
        ({"strategy": "single_node_tep"}, (), (2, 1, 1, "ray")),
    ],
)
def test_a_recipe_is_served_on_the_gpus_that_are_there(
    world: World, chosen: dict[str, str], hosts: tuple[str, ...], expected: Any
) -> None:
    def verb(inventory: Inventory, emit: Emit, runtime: Runtime) -> Any:
        pool, name = recipe_hosts(inventory, emit, hosts, runtime=runtime)
        there = RecipeHosts(pool.nodes, pool.memory_bytes, bool(pool.rdma), name)
        found = translate_recipe((FIXTURES / "recipe.yaml").read_text(), "recipe.yaml", there, **chosen)
        asked = merge_deployments(found, Deployment("", "", hosts=hosts), degrees=False)
        return serve_model(inventory, emit, asked, confirm=lab.Person(), runtime=runtime)

    lab.succeed(world, INVENTORY, verb)
    replica = served(world).replica
    assert (replica.tp, replica.pp, replica.dp, replica.backend) == expected
    assert "--enable-auto-tool-choice" in replica.leader.argv


@pytest.mark.parametrize(
    ("backend", "flags"),
    [
        ("", "--tensor-parallel-size 2 --pipeline-parallel-size=2 --port 8000 --distributed-executor-backend ray"),
        ("", "-tp 2 --served-model-name org/model --host 127.0.0.1 --data-parallel-size 1"),
        ("mp", "--nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --master-port 29501 -tp 2 -pp 2"),
    ],
)
def test_flags_with_the_values_that_vcluster_sets_change_nothing(world: World, backend: str, flags: str) -> None:
    words = (*flags.split(), "--seed", "1")
    lab.succeed(world, INVENTORY, partial(lab.do_serve, backend=backend, flags=words))
    found = served(world)
    assert found.deployment.flags == ("--seed", "1")
    assert lab.succeed(world, INVENTORY, partial(lab.do_serve, backend=backend, flags=("--seed", "1"))).value
    assert served(world).generation == found.generation


# fault: serving/serve/repeats.py: vllm.ensure_same(repeats, place_replica(plain → (lambda *_: None)(repeats, place_replica(plain
@pytest.mark.parametrize(
    ("backend", "flags", "why"),
    [
        ("", "--tensor-parallel-size 4", "--tensor-parallel-size is set by vcluster to 2, got 4"),
        ("", "--port 9000", "--port is set by vcluster to 8000, got 9000"),
        ("", "--nnodes 2", "--nnodes is set by vcluster to 1, got 2"),
        ("mp", "--distributed-executor-backend ray", "--distributed-executor-backend is set by vcluster, got ray"),
        ("mp", "--nnodes 4", "--nnodes is set by vcluster to 2, got 4"),
        ("", "--api-key x", "--api-key is set by vcluster"),
    ],
)
def test_flags_with_other_values_are_refused_with_the_one_reason(
    world: World, backend: str, flags: str, why: str
) -> None:
    error = lab.run(world, INVENTORY, partial(lab.do_serve, backend=backend, flags=tuple(flags.split()))).error
    assert isinstance(error, UsageError)
    assert error.message == why
    assert error.hint
    assert served(world) is None
