"""The plan is empty when nothing differs, and else touches what differs alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support import world
from vllm_cluster.kernel.plan.desired import desired
from vllm_cluster.kernel.plan.diff import diff
from vllm_cluster.kernel.plan.plan import CreateNode, PrepareImage, RemoveContainer, RestartNode, StartNode


def kinds(plan: object) -> list[tuple[str, str]]:
    """Verb and host of every operation, in order."""
    return [(operation.verb, operation.host) for operation in plan.operations()]  # type: ignore[attr-defined]


def test_a_new_cluster_gets_its_head_before_its_workers() -> None:
    facts = world.hosts(3)
    plan = diff(desired(world.inventory(3), facts, world.INPUTS), facts)
    assert [stage.title for stage in plan.stages] == ["images", "head", "workers"]
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


# fault: kernel/plan/diff.py: new_head) → False)
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
    assert [stage.title for stage in plan.stages] == ["images", "remove old containers", "head", "workers"]
    assert all(isinstance(op, PrepareImage) and op.pull for op in plan.stages[0].operations)


def test_an_image_without_its_node_image_is_prepared_and_not_pulled() -> None:
    facts = world.hosts(gpu2={"images": (world.BASE,)})
    plan = diff(desired(world.inventory(), facts, world.INPUTS), facts)
    images = [operation for operation in plan.operations() if isinstance(operation, PrepareImage)]
    assert [(operation.host, operation.pull) for operation in images] == [("gpu2", False)]


def test_a_tag_that_moved_means_another_container() -> None:
    specs, facts = world.converged(world.inventory())
    moved = replace(world.BASE, id="sha256:" + "ef" * 32)
    other = {**facts, "gpu2": replace(facts["gpu2"], images=(moved, world.ENGINE))}
    assert diff(specs, other).empty, "the cluster has what the head has"
    facts["gpu1"] = replace(facts["gpu1"], images=(moved,))
    plan = diff(specs, facts)
    hosts = ("gpu1", "gpu2")
    assert kinds(plan) == [(verb, host) for verb in ("prepare image", "remove", "create") for host in hosts]
    (images, *_) = plan.stages
    assert [
        (one.host, one.pull, one.base, one.source) for one in images.operations if isinstance(one, PrepareImage)
    ] == [
        ("gpu1", False, moved.id, ""),
        ("gpu2", True, moved.id, "gpu1"),
    ]


def test_a_host_that_lacks_the_image_gets_what_another_one_has() -> None:
    digest = f"vllm/vllm-openai@sha256:{'12' * 32}"
    for digests, text in (((), "send {} (sha256:"), ((digest,), f"pull {digest} (or send it from gpu1)")):
        base = replace(world.BASE, digests=digests)
        facts = world.hosts(gpu1={"images": (base, world.ENGINE)}, gpu2={"images": ()})
        plan = diff(desired(world.inventory(), facts, world.INPUTS), facts)
        (one,) = [operation for operation in plan.operations() if isinstance(operation, PrepareImage)]
        assert (one.host, one.base, one.source) == ("gpu2", base.id, "gpu1")
        assert one.text.startswith(text.format(one.image))


def test_what_an_interrupted_run_left_is_removed() -> None:
    specs, facts = world.converged(world.inventory())
    left = world.running(specs[1], name="vcluster-lab-door-01234567", id="left", state="created")
    facts["gpu2"] = replace(facts["gpu2"], containers=(*facts["gpu2"].containers, left))
    assert kinds(diff(specs, facts)) == [("remove", "gpu2")]


def test_a_changed_secret_is_the_reason_shown() -> None:
    _, facts = world.converged(world.inventory())
    inputs = replace(world.INPUTS, secrets={"ray-token": "11", "api-key": "33"})
    plan = diff(desired(world.inventory(), facts, inputs), facts)
    reasons = {op.host: op.reason for op in plan.operations() if isinstance(op, CreateNode)}
    assert reasons == {"gpu1": "secrets.api-key changed"}


# fault: kernel/plan/spec.py: return f"{self.field}: {self.before} -> {self.after}" → return "its settings changed"
def test_a_plan_names_each_field_from_and_to() -> None:
    _, facts = world.converged(world.inventory())
    words = world.inventory(
        environment={"A": "1"}, image="vllm/vllm-openai:v0.34.0", entries={"gpu2": {"gpus": 1}}, shm_size="1g"
    )
    plan = diff(desired(words, facts, world.INPUTS), facts)
    created = {op.host: op for op in plan.operations() if isinstance(op, CreateNode)}
    assert [change.text for change in created["gpu2"].changes] == [
        "image: vllm/vllm-openai:v0.33.0 -> vllm/vllm-openai:v0.34.0",
        "gpu_count: 2 -> 1",
        "command.--gpus: 2 -> 1",
        "command.--num-gpus: 2 -> 1",
        "environment.A: (unset) -> 1",
        "shm_size: 16g -> 1g",
        "gpus: by a device request 0, 1 -> by a device request 0",
    ]
    assert created["gpu1"].reason == "image, environment.A, shm_size change"


def test_a_node_of_the_landed_version_is_recreated_with_that_reason() -> None:
    specs, facts = world.converged(world.inventory())
    labels = {key: value for key, value in specs[1].labels().items() if key != "io.vcluster.spec"}
    labels |= {"io.vcluster.format": "1", "io.vcluster.version": "0.1.0", "io.vcluster.spec-hash": "0123456789abcdef"}
    old = replace(facts["gpu2"].containers[0], labels=labels)
    facts["gpu2"] = replace(facts["gpu2"], containers=(old,))
    plan = diff(specs, facts)
    assert kinds(plan) == [("remove", "gpu2"), ("create", "gpu2")]
    assert {getattr(op, "reason", "") for op in plan.operations()} == {"made by an earlier version of vcluster (0.1.0)"}
