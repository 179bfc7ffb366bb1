"""`vcluster models` shows what is being pulled; `models rm` removes what nothing uses, once a person agreed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.sim import lab, life, make
from tests.support.sim.lab import Outcome
from tests.support.sim.world import Box, World
from vllm_cluster.features.pull.models import RunningPull, running_pulls
from vllm_cluster.features.pull.models_remove import remove_model
from vllm_cluster.kernel.errors import Aborted, InventoryError, Locked, PreflightFailed, UsageError
from vllm_cluster.kernel.events import Emit
from vllm_cluster.kernel.hosts.reach import reached
from vllm_cluster.kernel.hosts.runtime import Runtime
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.plan.pull import STATUS

OTHER, SERVED = "org/other", "org/model"
SIZE = make.MODEL_SIZE


@pytest.fixture
def world() -> Iterator[World]:
    """Two hosts that serve a model, and have two."""
    with lab.cluster(2, lab.do_up, lab.do_serve) as made:
        for machine in made.machines.values():
            machine.models = {"hub/models--org--other": SIZE, "hub/models--org--model": SIZE, "mine": SIZE}
        yield made


def rm(
    world: World, model: str = OTHER, *hosts: str, answer: bool | None = True, meanwhile: Callable[[], object] = int
) -> tuple[Outcome, list[str]]:
    """How it ended, and what it asked; something may come to be before the answer."""
    asked: list[str] = []

    def confirm(question: str) -> bool | None:
        asked.append(question)
        meanwhile()
        return answer

    return lab.run(world, make.inventory(2), lab.verb(remove_model, model=model, hosts=hosts, confirm=confirm)), asked


def left(world: World) -> dict[str, set[str]]:
    """The folders in each cache."""
    return {name: {*machine.models} for name, machine in world.machines.items()}


def pulling(world: World, model: str) -> None:
    """A pull's container, with what it writes beside itself."""
    machine = world.machines["gpu2"]
    labels = {**machine.box("vcluster-lab").body["Labels"]}  # type: ignore[union-attr]
    made = Box(
        "f" * 64, "vcluster-lab-pull", "sha256:x", {"Image": "sha256:x", "Labels": labels}, state="running", born=0
    )
    files, inside, _ = machine.place(made, STATUS)
    files[inside] = json.dumps({"v": 1, "phase": "bringing", "model": model}).encode()
    machine.boxes[made.id] = made


def requests(world: World, model: str, *flags: str) -> None:
    """The head is asked to serve another model, which has not begun."""
    machine = world.machines["gpu1"]
    head = machine.box("vcluster-lab")
    assert head
    files, inside, _ = machine.place(head, f"{life.STATE}/wanted.json")
    asked = json.loads(files[inside])
    (placed,) = asked["deployments"]
    placed["deployment"] |= {"model": model, "flags": flags}
    placed["replica"]["parts"][0]["argv"] = ["vllm", "serve", model, *flags]
    files[inside] = json.dumps(asked).encode()


def test_it_is_removed_from_every_host(world: World) -> None:
    outcome, asked = rm(world)
    assert outcome.error is None, outcome.story()
    assert asked == ["Remove org/other from gpu1 (16.1 GB), gpu2 (16.1 GB)?"]
    assert left(world) == {name: {"hub/models--org--model", "mine"} for name in ("gpu1", "gpu2")}
    assert outcome.events[-1].text == "Removed org/other from gpu1, gpu2: 32.2 GB."
    data = {"model": OTHER, "hosts": ["gpu1", "gpu2"], "removed_bytes": 2 * SIZE}
    assert outcome.events[-1].data == data
    assert not any(machine.lock for machine in world.machines.values())


# fault: features/pull/models_remove.py: if found.locked: → if found is None:
def test_what_another_cluster_pulls_into_a_shared_cache_stays(world: World) -> None:
    before, shared = left(world), world.machines["gpu2"]
    shared.pulled_elsewhere = "hub/models--org--other"
    outcome, asked = rm(world)
    assert isinstance(outcome.error, Locked) and (asked, left(world)) == ([], before)
    shared.pulled_elsewhere = ""

    def begins() -> None:
        shared.pulled_elsewhere = "hub/models--org--other"

    outcome, _ = rm(world, meanwhile=begins)
    assert isinstance(outcome.error, Locked) and left(world)["gpu2"] == before["gpu2"]


def test_only_the_chosen_hosts_lose_it(world: World) -> None:
    outcome, asked = rm(world, "./mine", "gpu2")
    assert (outcome.value, asked) == (SIZE, ["Remove ./mine from gpu2 (16.1 GB)?"])
    assert "mine" in left(world)["gpu1"] and "mine" not in left(world)["gpu2"]


def test_removing_what_no_host_has_succeeds(world: World) -> None:
    before = left(world)
    outcome, asked = rm(world, "lab/qwen3-8b")
    assert (outcome.error, asked, left(world)) == (None, [], before)
    assert (
        outcome.events[-1].text
        == "lab/qwen3-8b is not on gpu1, gpu2. Nothing was changed. vcluster models lists what is there."
    )


# fault: features/pull/models.py: None if model in there else nearest(model, → None and nearest(model,
def test_a_slip_in_the_name_names_the_model_that_was_meant(world: World) -> None:
    outcome, _ = rm(world, "org/othre")
    assert outcome.events[-1].text == "org/othre is not on gpu1, gpu2. Nothing was changed. Did you mean org/other?"


def test_a_name_that_only_a_folder_has_is_asked_about(world: World) -> None:
    outcome, asked = rm(world, "mine")
    assert (outcome.error, asked) == (None, [])
    assert outcome.events[-1].text == "mine is not on gpu1, gpu2. Nothing was changed. Did you mean ./mine?"


@pytest.mark.parametrize(("answer", "error"), [(False, Aborted), (None, UsageError)])
def test_without_a_yes_nothing_is_removed(world: World, answer: bool | None, error: type[Exception]) -> None:
    before = left(world)
    outcome, _ = rm(world, answer=answer)
    assert isinstance(outcome.error, error) and left(world) == before


# fault: features/pull/models_remove.py: command_line("vcluster", "stop", served_name) → "vcluster stop"
def test_what_is_served_stays(world: World) -> None:
    before = left(world)
    outcome, asked = rm(world, SERVED)
    assert isinstance(outcome.error, PreflightFailed) and lab.code(outcome) == 3, outcome.story()
    assert (outcome.error.message, asked, left(world)) == ("gpu1: org/model is being served", [], before)
    # Beside other models `stop` without a name is refused.
    assert outcome.error.hint == "vcluster stop org/model"
    assert lab.run(world, make.inventory(2), lab.do_stop).error is None
    assert rm(world, SERVED)[0].error is None


# fault: features/pull/models_remove.py: if (other.host, other.name) in running: → if False:
# fault: features/pull/models_remove.py: if one.state in RUNS} → }
def test_what_a_node_of_another_cluster_may_serve_stays(world: World) -> None:
    other = make.inventory(2, cluster="other")
    refused = lab.run(world, other, lab.verb(remove_model, confirm=lambda _: True, model="org/model"))
    assert isinstance(refused.error, PreflightFailed) and "gpu1: a node of lab runs, and may serve it" in str(
        refused.error
    )
    for machine in world.machines.values():
        box = machine.box("vcluster-lab")
        assert box
        box.state = "exited"
    assert not lab.run(world, other, lab.verb(remove_model, confirm=lambda _: True, model="org/model")).error


def test_what_a_flag_names_stays(world: World) -> None:
    requests(world, SERVED, "--tokenizer=org/other")
    assert lab.code(rm(world)[0]) == 3


def test_what_is_asked_for_before_the_answer_stays(world: World) -> None:
    before = left(world)
    outcome, _ = rm(world, meanwhile=lambda: requests(world, OTHER))
    assert lab.code(outcome) == 3 and left(world) == before
    assert not any(machine.lock for machine in world.machines.values())


# fault: features/pull/models_remove.py: _refuse_used(now, place) → _refuse_used(there, place)
def test_what_a_head_serves_that_was_started_before_the_answer_stays(world: World) -> None:
    before, head = left(world), world.machines["gpu1"].box("vcluster-lab")
    assert head
    requests(world, OTHER)
    head.state = "exited"

    def start() -> None:
        head.state = "running"

    outcome, asked = rm(world, meanwhile=start)
    assert asked and lab.code(outcome) == 3, outcome.story()
    assert left(world) == before


@pytest.mark.parametrize("model", [OTHER, ""])
def test_what_is_being_pulled_stays(world: World, model: str) -> None:
    before = left(world)
    pulling(world, model)
    outcome, asked = rm(world)
    assert isinstance(outcome.error, Locked) and lab.code(outcome) == 75, outcome.story()
    assert (str(outcome.error.message), asked) == ("org/other is being pulled to gpu2", [])
    assert left(world) == before


def test_the_pull_of_another_model_is_in_no_way(world: World) -> None:
    pulling(world, "org/third")
    outcome, _ = rm(world)
    assert outcome.error is None, outcome.story()


def test_a_name_that_leads_elsewhere_is_refused_before_any_host_is_asked(world: World) -> None:
    outcome, asked = rm(world, "./../etc")
    assert isinstance(outcome.error, UsageError) and not asked
    assert outcome.script.calls == []


def test_a_host_that_is_not_there_is_refused(world: World) -> None:
    outcome, _ = rm(world, OTHER, "gpu9")
    assert isinstance(outcome.error, InventoryError) and outcome.script.calls == []


def test_only_a_pull_that_runs_is_shown_and_a_broken_docker_stops_nothing() -> None:
    world = make.world((2, 2, 2, 2))
    for host, phase in {"gpu1": "downloading", "gpu2": "receiving", "gpu3": "done", "gpu4": "receiving"}.items():
        make.part_of_a_pull(world, host, phase)
    world.machines["gpu4"].docker = "stopped"

    def verb(inventory: Inventory, emit: Emit, runtime: Runtime) -> Any:
        with reached(inventory, emit, runtime=runtime) as (fleet, _):
            return running_pulls(inventory, fleet, fleet.names)

    with lab.inside(world):
        outcome = lab.run(world, make.inventory(4), verb)
    assert outcome.error is None, outcome.story()
    assert outcome.value == {
        "gpu1": RunningPull("org/new", "c" * 40, "downloading", SIZE // 2, SIZE),
        "gpu2": RunningPull("org/new", "c" * 40, "receiving", SIZE // 2, SIZE),
    }
