"""The plan is empty when nothing differs, and else touches what differs alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.core import world
from vllm_cluster.core.desired import desired
from vllm_cluster.core.diff import diff
from vllm_cluster.core.plan import CreateNode, PrepareImage, RemoveContainer, RestartNode, StartNode
from vllm_cluster.core.spec import docker_run_line


def kinds(plan: object) -> list[tuple[str, str]]:
    """Verb and host of every operation, in order."""
    return [(operation.verb, operation.host) for operation in plan.operations()]  # type: ignore[attr-defined]


def test_a_new_cluster_gets_its_head_before_its_workers() -> None:
    facts = world.hosts(3)
    plan = diff(desired(world.inventory(3), facts, world.INPUTS), facts)
    assert [stage.title for stage in plan.stages] == ["head", "workers"]
    assert kinds(plan) == [("create", "gpu1"), ("create", "gpu2"), ("create", "gpu3")]
    assert plan.gpus == {"10.0.0.1": 2, "10.0.0.2": 2, "10.0.0.3": 2}


def test_nothing_to_do_on_hosts_that_are_as_they_should_be() -> None:
    specs, facts = world.converged(world.inventory())
    assert diff(specs, facts).empty


def test_one_changed_host_is_the_only_one_touched() -> None:
    before, facts = world.converged(world.inventory())
    after = desired(world.inventory(entries={"gpu2": {"gpus": 1}}), facts, world.INPUTS)
    plan = diff(after, facts)
    assert before[0] == after[0]
    assert kinds(plan) == [("remove", "gpu2"), ("create", "gpu2")]


def test_a_new_head_restarts_the_workers_that_had_joined_the_old_one() -> None:
    specs, facts = world.converged(world.inventory())
    facts["gpu1"] = replace(facts["gpu1"], containers=())
    plan = diff(specs, facts)
    assert [type(operation) for operation in plan.operations()] == [CreateNode, RestartNode]


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("exited", [StartNode]),
        ("paused", [RestartNode]),
        ("restarting", []),
        ("created", [RemoveContainer, CreateNode]),
        ("dead", [RemoveContainer, CreateNode]),
    ],
)
def test_a_workers_state_decides_what_is_done(state: str, expected: list[type]) -> None:
    specs, facts = world.converged(world.inventory())
    facts["gpu2"] = replace(facts["gpu2"], containers=(world.running(specs[1], state=state),))
    assert [type(operation) for operation in diff(specs, facts).operations()] == expected


def test_images_come_before_anything_is_removed() -> None:
    _, facts = world.converged(world.inventory())
    specs = desired(world.inventory(image="vllm/vllm-openai:v0.34.0"), facts, world.INPUTS)
    plan = diff(specs, facts)
    assert [stage.title for stage in plan.stages] == ["images", "make room", "head", "workers"]
    assert all(isinstance(op, PrepareImage) and op.pull for op in plan.stages[0].operations)


def test_an_image_without_its_engine_image_is_prepared_and_not_pulled() -> None:
    facts = world.hosts(gpu2={"images": (world.BASE,)})
    plan = diff(desired(world.inventory(), facts, world.INPUTS), facts)
    images = [operation for operation in plan.operations() if isinstance(operation, PrepareImage)]
    assert [(operation.host, operation.pull) for operation in images] == [("gpu2", False)]


def test_a_tag_that_moved_means_another_container() -> None:
    specs, facts = world.converged(world.inventory())
    moved = replace(world.BASE, id="sha256:" + "ef" * 32)
    facts["gpu2"] = replace(facts["gpu2"], images=(moved,))
    assert kinds(diff(specs, facts)) == [("prepare image", "gpu2"), ("remove", "gpu2"), ("create", "gpu2")]


def test_what_an_interrupted_run_left_is_removed() -> None:
    specs, facts = world.converged(world.inventory())
    left = world.running(specs[1], name="vcluster-lab-door", id="left", state="created")
    facts["gpu2"] = replace(facts["gpu2"], containers=(*facts["gpu2"].containers, left))
    assert kinds(diff(specs, facts)) == [("remove", "gpu2")]


def test_a_changed_secret_is_the_reason_shown() -> None:
    _, facts = world.converged(world.inventory())
    inputs = replace(world.INPUTS, secrets={"ray-token": "11", "api-key": "33"})
    plan = diff(desired(world.inventory(), facts, inputs), facts)
    reasons = {op.host: op.why for op in plan.operations() if isinstance(op, CreateNode)}
    assert reasons == {"gpu1": "the api key changed"}


def test_the_line_for_people_quotes_what_a_shell_would_read() -> None:
    words = world.inventory(environment={"NOTE": "a b; rm -rf $HOME"})
    line = docker_run_line(desired(words, world.hosts(), world.INPUTS)[0])
    assert "'NOTE=a b; rm -rf $HOME'" in line
    assert line.startswith("docker run --detach --name vcluster-lab --network host")
