"""A private image: the host's own login is used, and where there is none the error has the remedy."""

from __future__ import annotations

from functools import partial

import pytest

from tests.support.sim import lab, make, oracle
from tests.support.sim.faults import Call, Fault, Script
from tests.support.sim.heads import api_keys
from tests.support.sim.world import World
from vllm_cluster.kernel.errors import CommandFailed, ConnectionLost, PreflightFailed, VclusterError

pytestmark = pytest.mark.promise("P31")


def private(logged_in: bool) -> World:
    world = make.world((2,), present=False)
    world.private = True
    world.machines["gpu1"].logged_in = logged_in
    return world


def test_the_login_of_the_host_is_used() -> None:
    world, inventory = private(logged_in=True), make.inventory(1)
    with lab.inside(world):
        outcome = lab.succeed(world, inventory, lab.do_up)
        oracle.converged(world, inventory)
    told = [event.text for event in outcome.events if event.kind == "progress"]
    assert f"pulling {make.IMAGE}: 1 of 1 layers" in told


# fault: kernel/images/pull.py: if code != 0: → if code is None:
def test_without_a_login_the_error_names_the_command() -> None:
    way = {"user": "me", "port": 22, "identity": "/my key"}
    inventory = make.inventory(1, {"gpu1": {"ssh": way}}, ssh={"config": "/c"})
    world = private(logged_in=False)
    with lab.inside(world):
        error = lab.run(world, inventory, lab.do_up).error
    assert isinstance(error, CommandFailed)
    assert f"cannot pull {make.IMAGE}: Error response from daemon: pull access denied" in error.message
    assert str(error.hint).startswith(
        "Check the name. If the image is private, run on gpu1: docker login\n"
        f"Or copy it there: docker save {make.IMAGE} | ssh -F /c -l me -p 22 -i '/my key' gpu1 docker load"
    )


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.ERROR, Fault.SILENT, Fault.KILLED])
def test_a_pull_that_breaks_off_is_made_good_by_the_next(fault: Fault) -> None:
    world, inventory = private(logged_in=True), make.inventory(1)
    script = Script()
    script.by_words = lambda call: fault if call.what == "docker pull" and not script.met else None
    with lab.inside(world):
        broken = lab.run(world, inventory, lab.do_up, script)
        assert broken.error is not None, "the fault was not met"
        if isinstance(broken.error, VclusterError):
            assert "gpu1" in str(broken.error)
        assert not (fault is Fault.LOST and not isinstance(broken.error, ConnectionLost))
        world.settle()
        assert lab.run(world, inventory, lab.do_up).error is None
        oracle.converged(world, inventory)


@pytest.mark.promise("P26")
@pytest.mark.parametrize("answer", [True, False, None])
def test_a_moved_tag_is_taken_when_it_is_asked_for_and_confirmed(answer: bool | None) -> None:
    world, inventory = make.world((2, 2)), make.inventory(2)
    person = lab.Person(answer)
    renew = partial(lab.do_up, confirm=person, renew_image=True)

    first, second = make.base_image(1).id, make.base_image(2).id
    with lab.inside(world):
        assert lab.run(world, inventory, lab.do_up).error is None
        assert lab.run(world, inventory, renew).error is None
        assert person.asked == [], "nothing has moved"
        world.registry[make.IMAGE] = make.base_image(2)
        assert lab.run(world, inventory, lab.do_plan).value.empty, "no plain up looks for another image"
        done = lab.run(world, inventory, renew)
        assert len(person.asked) == 1
        assert "nodes on gpu1, gpu2" in person.asked[0]
        bases = [box.labels["io.vcluster.base-image"] for _, box in world.nodes()]
        assert bases == [second if answer else first] * 2
        assert lab.run(world, inventory, lab.do_plan).value.empty
        oracle.converged(world, inventory)
    # Before the first node is removed every host has the image, and one with Ray.
    words = [call.what for call in done.script.calls]
    if answer:
        removed = min(at for at, word in enumerate(words) if word.startswith("DELETE /containers/"))
        assert max(at for at, word in enumerate(words) if "/build" in word) < removed


def moved_by(world: World, way: str) -> Script:
    """A script in which that happens once the tag has moved; for the refusal, just before the lease is asked for."""
    script, head, other = Script(), world.machines["gpu1"], world.machines["gpu2"]
    lost = dict(other.boxes)
    if way == "second refusal":
        other.boxes.clear()

    def decide(call: Call) -> Fault | None:
        if call.what == "lease":
            other.boxes |= lost
        moved = any(make.IMAGE in one.tags and one.id != make.base_image(1).id for one in head.images.values())
        if moved and way == "preflight":
            head.gpus = 0
        return Fault.INTERRUPT if moved and way == "ctrl-c after the pull" and not script.met else None

    script.by_words = decide
    return script


# fault: serving/cluster/up.py: renew(head, inventory.image, emit, undo) → renew(head, inventory.image, emit, ExitStack())
@pytest.mark.promise("P26")
@pytest.mark.parametrize("way", ["ctrl-c at the question", "ctrl-c after the pull", "preflight", "second refusal"])
def test_a_moved_tag_is_given_back_however_up_ends_before_its_first_change(way: str) -> None:
    world, inventory = make.world((2, 2)), make.inventory(2)
    answers = iter([True, None])

    def confirm(_question: str) -> bool | None:
        if way == "ctrl-c at the question":
            raise KeyboardInterrupt
        return next(answers)

    renew = partial(lab.do_up, confirm=confirm, renew_image=True)

    with lab.inside(world):
        lab.succeed(world, inventory, lab.do_up)
        world.registry[make.IMAGE] = make.base_image(2)
        done = lab.run(world, inventory, renew, moved_by(world, way))
        assert isinstance(done.error, KeyboardInterrupt | PreflightFailed), done.story()
        assert any(call.what == "docker pull" for call in done.script.calls)
        world.machines["gpu1"].gpus = 2
        assert lab.succeed(world, inventory, lab.do_plan).value.empty, "the next up takes the image"


# fault: kernel/apply/barrier.py: if odd and not known and not → if odd and known and not
# fault: kernel/node/secret_files.py: if there is None or images is None: → if there is None or not images:
@pytest.mark.promise("P26")
@pytest.mark.parametrize("answer", [True, False, None])
def test_where_the_head_lost_an_image_whose_tag_moved_the_nodes_of_others_are_asked_about(answer: bool | None) -> None:
    world, inventory, person = make.world((2, 2)), make.inventory(2), lab.Person(answer)
    head = world.machines["gpu1"]
    with lab.inside(world):
        lab.succeed(world, inventory, lab.do_up)
        keys = api_keys(head)
        head.boxes.clear()
        head.images.clear()
        world.registry[make.IMAGE] = make.base_image(2)
        done = lab.run(world, inventory, partial(lab.do_up, confirm=person))
        assert len(person.asked) == 1, done.story()
        assert "model of lab (unknown: the head's node is gone" in person.asked[0]
        assert api_keys(head) == keys and not any("vcluster-node:empty" in one.tags for one in head.images.values())
        if answer:
            assert {box.labels["io.vcluster.base-image"] for _, box in world.nodes()} == {make.base_image(2).id}
            oracle.converged(world, inventory)
        else:
            assert [(machine.name, box.labels["io.vcluster.base-image"]) for machine, box in world.nodes()] == [
                ("gpu2", make.base_image(1).id)
            ]


@pytest.mark.promise("P26")
def test_where_no_registry_has_it_the_head_takes_what_runs_on_the_others() -> None:
    world, inventory = make.world((2, 2)), make.inventory(2)
    with lab.inside(world):
        lab.succeed(world, inventory, lab.do_up)
        world.machines["gpu1"].boxes.clear()
        world.machines["gpu1"].images.clear()
        world.registry.clear()
        lab.succeed(world, inventory, lab.do_up)
        assert {box.labels["io.vcluster.base-image"] for _, box in world.nodes()} == {make.base_image(1).id}
        oracle.converged(world, inventory)
