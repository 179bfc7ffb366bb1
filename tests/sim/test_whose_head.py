"""Whose word counts: the inventory's head, and a host that was made the head from this laptop.

No other host chooses the API key, what is served, or which cluster it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

import pytest

from tests.support.figures import record
from tests.support.sim import lab, make, oracle
from tests.support.sim.faults import Fault, Script
from tests.support.sim.heads import EVIL, api_keys, claim_head, contents, empty, files, labels_of, report
from tests.support.sim.lab import code
from tests.support.sim.make import inventory_of as inventory
from tests.support.sim.world import Machine, World
from vllm_cluster.kernel.node.handle import NodeHandle
from vllm_cluster.kernel.plan.spec import HEAD_ADDRESS, ID, ROLE, SECRET, secrets_volume
from vllm_cluster.serving.stops import Stops

ALL, MINE, THEIRS = inventory(1, 2, 3), inventory(1, 2), inventory(3, 4)


# What is left of the head, and the inventory that `up` then gets.
STATES: dict[str, tuple[Callable[[Machine], object], tuple[int, ...]]] = {
    "the head is there": (lambda _: None, (1, 2, 3)),
    "its container is gone": (lambda head: head.boxes.clear(), (1, 2, 3)),
    "all of it is gone": (empty, (1, 2, 3)),
    "the head moves": (lambda _: None, (3, 2, 1)),
    "the head moves and leaves": (lambda _: None, (3, 2)),
}


# fault: kernel/checks/docker.py: if led.leads and led.id != other.id) → if False)
@pytest.mark.promise("P33")
def test_who_is_to_take_over_another_id_is_shown_the_one_that_this_machine_knows() -> None:
    """A worker that made up an id of its own, once the head was wiped, was offered as the head of that cluster."""
    world = make.world((2, 2, 2))
    with lab.inside(world):
        lab.succeed(world, ALL, lab.do_up)
        lab.succeed(world, ALL, lab.do_serve)
        own = labels_of(world.machines["gpu1"])[0][ID]
        claim_head(world, own=True)
        for labels in labels_of(world.machines["gpu2"]):
            labels.update({ID: "5e5e5e5e5e5e5e5e"})
        for name in ("gpu1", "gpu3"):
            empty(world.machines[name])
        refused = lab.run(world, ALL, lab.do_up)
    assert (code(refused), refused.script.changing) == (3, [])
    assert f"; this machine knows lab as id {own} (head 10.0.0.1)" in report(refused)


# fault: kernel/checks/docker.py: and node.labels.get(ID) == other.id and → and
@pytest.mark.promise("P33")
def test_only_a_head_of_the_other_cluster_is_offered_as_its_head() -> None:
    """A worker had the id of another team's cluster, and the head of this one was offered with it."""
    world = make.world((2, 2, 2))
    with lab.inside(world):
        lab.succeed(world, ALL, lab.do_up)
        lab.succeed(world, ALL, lab.do_serve)
        claim_head(world)
        for labels in labels_of(world.machines["gpu2"]):
            labels.update({ID: "5e5e5e5e5e5e5e5e"})
        refused = report(lab.run(world, inventory(3, 1, 2), lab.do_up))
    assert "set id: 5e5e5e5e5e5e5e5e" in refused
    assert "and head:" not in refused


# fault: kernel/checks/docker.py: yield from undecided_head(inventory, facts) → yield from ()
@pytest.mark.promise("P47")
@pytest.mark.parametrize("state", STATES)
def test_a_worker_that_calls_itself_the_head_chooses_neither_key_nor_order(state: str) -> None:
    """Its order was copied onto the new head as it was, and its command ran there as root; its key was everyone's."""
    change, order = STATES[state]
    world = make.world((2, 2, 2))
    with lab.inside(world):
        lab.succeed(world, ALL, lab.do_up)
        lab.succeed(world, ALL, lab.do_serve)
        claim_head(world)
        change(world.machines["gpu1"])
        before, outcome = contents(world), lab.run(world, inventory(*order), lab.do_up)
        assert (code(outcome), contents(world)) == (3, before), outcome.story()
        head = world.machines[f"gpu{order[0]}"]
        assert b"sk-chosen" not in api_keys(head)
        assert not any(EVIL in content for name, content in files(head).items() if name.endswith("wanted.json"))
    record("P47", "sim: a worker calls itself the head, in five states of the true one", "no key, no order of it", True)


# fault: kernel/plan/kept.py: for name in mine.heads for holder → for name in facts for holder
@pytest.mark.promise("P47")
def test_no_worker_chooses_the_key_by_the_label_of_its_node() -> None:
    """The head has lost all, and a node of a worker has a key."""
    world, identity = make.world((2, 2)), lab.fast_secret_id("lab", "api-key", "sk-chosen")
    with lab.inside(world):
        lab.succeed(world, MINE, lab.do_up)
        empty(world.machines["gpu1"])
        (box,) = world.machines["gpu2"].boxes.values()
        box.labels[SECRET + "api-key"] = identity
        for volume in world.machines["gpu2"].volumes.values():
            volume.files |= {f"api-key-{identity}": b"sk-chosen"} if "secrets" in volume.name else {}
        world.api_key = None
        lab.succeed(world, MINE, lab.do_up)
        assert b"sk-chosen" not in api_keys(world.machines["gpu1"])


@pytest.mark.promise("P47")
def test_no_worker_chooses_the_key_of_a_cluster_that_is_new() -> None:
    world, identity = make.world((2, 2)), lab.fast_secret_id("lab", "api-key", "sk-chosen")
    with lab.inside(world):
        lab.succeed(world, MINE, lab.do_up)
        empty(world.machines["gpu1"])
        liar, ids = world.machines["gpu2"], {"api-key": identity}
        liar.boxes.clear()
        (volume,) = [one for name, one in liar.volumes.items() if "secrets" in name]
        volume.files, volume.name = {f"api-key-{identity}": b"sk-chosen"}, secrets_volume("lab", ids)
        volume.labels |= {SECRET + "api-key": identity}
        liar.volumes, known = {volume.name: volume}, dict(world.heads)
        world.heads.clear()
        refused = lab.run(world, MINE, lab.do_up)
        assert (code(refused), refused.script.changing) == (3, []), refused.story()
        world.heads = known
        refused = lab.run(world, MINE, lab.do_up)
        assert (code(refused), refused.script.changing) == (3, []), refused.story()
        assert "if none of them is, and the head is gone for good:\nvcluster up --new-key" in report(refused)
        lab.succeed(world, MINE.model_copy(update={"keep": ""}), lab.do_up)
        assert len(api_keys(world.machines["gpu1"]) - {b"sk-chosen"}) == 1


def claim_id(world: World, name: str) -> None:
    """Let all of a host be of the cluster of the other team."""
    (theirs,) = {labels[ID] for labels in labels_of(world.machines["gpu3"]) if ID in labels}
    before = next(labels[ID] for labels in labels_of(world.machines[name]) if ID in labels)
    for labels in labels_of(world.machines[name]):
        labels.update({key: value.replace(before, theirs) for key, value in labels.items()})
    state = world.machines[name].volumes["vcluster-lab-state"].files
    state |= {key: content.replace(before.encode(), theirs.encode()) for key, content in state.items()}


# fault: kernel/plan/identity.py: (self.addresses is None or head in self.addresses) → True
# fault: kernel/plan/identity.py: return here.id == identity → return True
@pytest.mark.promise("P47")
@pytest.mark.parametrize("verb", [lab.do_up, lab.do_down])
@pytest.mark.parametrize("known", [True, False], ids=["laptop of both", "laptop of none"])
@pytest.mark.parametrize(("liar", "gone"), [("gpu2", True), ("gpu1", False)], ids=["a worker", "the head"])
@pytest.mark.parametrize("named", [3, 4], ids=["their head", "their worker"])
def test_who_claims_the_id_of_another_team_gets_no_host_and_no_secret_of_it(
    verb: lab.Verb, known: bool, liar: str, gone: bool, named: int
) -> None:
    """My inventory also names a host of theirs. That is refused; a label made it mine."""
    world = make.world((2, 2, 2, 2))
    with lab.inside(world):
        lab.succeed(world, THEIRS, lab.do_up)
        lab.succeed(world, MINE, lab.do_up)
        claim_id(world, liar)
        if gone:
            empty(world.machines["gpu1"])
        if not known:
            world.heads.clear()
        before = {name: files(world.machines[name]) for name in THEIRS.hosts}
        outcome = lab.run(world, inventory(1, 2, named), verb)
        assert code(outcome) == 3 and outcome.script.changing == [], outcome.story()
        assert f"gpu{named}: vcluster-lab belongs to another cluster" in report(outcome)
        assert {name: files(world.machines[name]) for name in THEIRS.hosts} == before
    record("P47", "sim: a host claims the id of a cluster whose host the inventory names too", "refused, named", True)


# fault: kernel/apply/members.py: made = any(head.made_here and head.was_head_of == identity → made = any(True
@pytest.mark.promise("P47", "P32")
@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize("verb", [lab.do_up, lab.do_down])
def test_a_head_that_was_a_member_elsewhere_removes_nothing_there(verb: lab.Verb, running: bool) -> None:
    """It knows the token of the cluster that it left, so that proves nothing. This laptop brought both up."""
    world = make.world((2, 2, 2, 2))
    with lab.inside(world):
        lab.succeed(world, inventory(3, 4, 1), lab.do_up)
        (token,) = [(name, text) for name, text in files(world.machines["gpu1"]).items() if "ray-token" in name]
        lab.succeed(world, THEIRS, lab.do_up)
        lab.succeed(world, MINE, lab.do_up)
        rows = json.loads(world.machines["gpu3"].volumes["vcluster-lab-state"].files["cluster.json"])["members"]
        for name in MINE.hosts:
            claim_id(world, name)
            for labels in labels_of(world.machines[name]):
                labels.update({key: token[0].removeprefix("ray-token-") for key in labels if key.endswith("ray-token")})
            for volume in world.machines[name].volumes.values():
                volume.files |= dict([token]) if "secrets" in volume.name else {}
        state = world.machines["gpu1"].volumes["vcluster-lab-state"].files
        raw = json.loads(state["cluster.json"])
        raw["members"] += [{**row, "leaving": True} for row in rows]
        state["cluster.json"] = json.dumps(raw).encode()
        for name in THEIRS.hosts if not running else ():
            for box in world.machines[name].boxes.values():
                box.state = "exited"
        before = {name: files(world.machines[name]) for name in THEIRS.hosts}
        outcome = lab.run(world, MINE, verb)
        assert {name: files(world.machines[name]) for name in THEIRS.hosts} == before
        assert all(world.machines[name].boxes for name in THEIRS.hosts), outcome.story()
        assert "gpu3: not looked at" in report(outcome)
    record("P47", f"sim: {verb.__name__} with a head that left another team's cluster", "nothing changed there", True)


# fault: serving/consent.py: outside = {one.host: fleet.outside[one.host] → outside = {one.host: "" for _ in ()
@pytest.mark.promise("P32")
@pytest.mark.parametrize("verb", [lab.do_up, lab.do_down])
def test_a_host_outside_of_the_inventory_is_named_in_the_question(verb: Callable[..., object]) -> None:
    """Also where its node has ended: then nothing was asked."""
    world = make.world((2, 2, 2))
    with lab.inside(world):
        lab.succeed(world, ALL, lab.do_up)
        for box in world.machines["gpu3"].boxes.values():
            box.state = "exited"
        person = lab.Person(None)
        outcome = lab.run(world, MINE, partial(verb, confirm=person))
        assert "remove what lab has on gpu3, which has left the inventory" in person.asked[0].lower()
        assert outcome.script.changing == []


# fault: kernel/facts/host_facts.py: return here.id if here and here.leads and here.done else "" → return ""
@pytest.mark.promise("P33")
def test_a_laptop_that_has_not_made_the_head_moves_it_in_two_steps() -> None:
    """The colleague sees what to do, and the key and what is served are kept."""
    world = make.world((2, 2, 2))
    with lab.inside(world):
        lab.succeed(world, ALL, lab.do_up)
        lab.succeed(world, ALL, lab.do_serve)
        keys = api_keys(world.machines["gpu1"])
        world.heads.clear()
        (claimed,) = {labels[ID] for labels in labels_of(world.machines["gpu1"])}
        after = inventory(2, 1, 3)
        for words, step in (
            (after, f"if that cluster is yours, set id: {claimed}"),
            (after.model_copy(update={"id": claimed}), "if gpu1 is the head:\nvcluster up --keep gpu1"),
        ):
            refused = lab.run(world, words, lab.do_up)
            assert (code(refused), refused.script.changing) == (3, [])
            assert step in report(refused)
        oracle.untouched(lab.run(world, ALL, lab.do_up))
        lab.succeed(world, inventory(2, 1, 3), lab.do_up)
        oracle.converged(world, inventory(2, 1, 3))
        assert api_keys(world.machines["gpu2"]) == keys
        assert b"org/model" in world.machines["gpu2"].volumes["vcluster-lab-state"].files["wanted.json"]
    record("P33", "sim: a colleague's laptop moves the head", "refused with the two steps; they keep the key", True)


# fault: kernel/checks/docker.py: yield from undecided_head(inventory, facts) → yield from ()
@pytest.mark.promise("P47")
def test_an_id_in_the_inventory_makes_no_head_of_who_claims_to_be_it() -> None:
    world = make.world((2, 2, 2))
    with lab.inside(world):
        lab.succeed(world, ALL, lab.do_up)
        lab.succeed(world, ALL, lab.do_serve)
        pinned = ALL.model_copy(update={"id": next(labels[ID] for labels in labels_of(world.machines["gpu1"]))})
        claim_head(world)
        for labels in labels_of(world.machines["gpu2"]):
            labels.update({HEAD_ADDRESS: "10.0.0.2"})
        empty(world.machines["gpu1"])
        world.heads.clear()
        outcome = lab.run(world, pinned, lab.do_up)
        assert (code(outcome), outcome.script.changing) == (3, [])
        assert "gpu2 (its node is the head, this machine does not know it as that)" in report(outcome)


@pytest.mark.promise("P33")
def test_a_head_that_is_gone_for_good_is_followed_by_another_member() -> None:
    """By the id that a person gives: a worker alone may name any head that is not there."""
    world = make.world((2, 2, 2))
    with lab.inside(world):
        lab.succeed(world, ALL, lab.do_up)
        (known,) = {labels[ID] for labels in labels_of(world.machines["gpu1"])}
        world.machines["gpu1"].reachable = False
        world.new_keys += 1
        world.api_key = None
        refused = lab.run(world, inventory(2, 3), lab.do_up)
        assert (code(refused), refused.script.changing) == (3, [])
        assert f"if its head is gone for good, set id: {known}" in report(refused)
        lab.succeed(world, inventory(2, 3).model_copy(update={"id": known}), lab.do_up)
        assert [box.labels[HEAD_ADDRESS] for box in world.machines["gpu3"].boxes.values()] == ["10.0.0.2"]


# fault: kernel/plan/identity.py: addresses |= {led.address for led in _known_heads(facts).every if led.id == identity} → pass
@pytest.mark.promise("P33")
def test_a_head_whose_address_changes_keeps_its_workers() -> None:
    world = make.world((2, 2, 2))
    hosts = {**ALL.hosts, "gpu1": ALL.hosts["gpu1"].model_copy(update={"address": "10.0.0.9"})}
    with lab.inside(world):
        lab.succeed(world, ALL, lab.do_up)
        moved = ALL.model_copy(update={"hosts": hosts})
        world.machines["gpu1"].address = "10.0.0.9"
        outcome = lab.run(world, moved, lab.do_plan)
        assert "belongs to another cluster" not in report(outcome)


# fault: serving/cluster/down.py: for host in self._mine.heads: → for host in containers:
@pytest.mark.promise("P47")
def test_a_worker_that_calls_itself_the_head_hides_no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each head's list took the place of the one before: `down` without a terminal deleted the batch of a colleague."""
    with lab.cluster(2, lab.do_up) as world:
        world.machines["gpu2"].box("vcluster-lab").labels[ROLE] = "head"  # type: ignore[union-attr]
        asked: list[str] = []

        def listed(stops: Stops, node: NodeHandle, _: str) -> Stops:
            asked.append(node.host)
            return stops

        monkeypatch.setattr("vllm_cluster.serving.cluster.down.batches_beside", listed)
        lab.run(world, MINE, lab.do_down)
        assert set(asked) == {"gpu1"}


# fault: serving/cluster/up.py: made = bool(mine.id is None or → made = bool(True or
@pytest.mark.promise("P47")
@pytest.mark.parametrize("verb", [lab.do_up, lab.do_down])
def test_a_head_of_which_this_laptop_knows_nothing_takes_over_no_cluster_that_it_knows(verb: lab.Verb) -> None:
    """After one `up` it was remembered as the head of the other cluster, and the second one removed nodes there."""
    world = make.world((2, 2, 2, 2))
    with lab.inside(world):
        lab.succeed(world, MINE, lab.do_up)
        world.heads.clear()
        lab.succeed(world, THEIRS, lab.do_up)
        for name in MINE.hosts:
            claim_id(world, name)
        lab.run(world, MINE, lab.do_up)
        state = world.machines["gpu1"].volumes["vcluster-lab-state"].files
        raw = json.loads(state["cluster.json"])
        theirs = json.loads(world.machines["gpu3"].volumes["vcluster-lab-state"].files["cluster.json"])["members"]
        state["cluster.json"] = json.dumps({**raw, "members": raw["members"] + theirs}).encode()
        outcome = lab.run(world, MINE, verb)
        assert all(world.machines[name].boxes for name in THEIRS.hosts), outcome.story()
        assert "gpu3: not looked at" in report(outcome)


# fault: serving/cluster/up.py: visited.lead(inventory.cluster, way, now, ended) → visited.lead(inventory.cluster, way, now if done else same or now, ended)
@pytest.mark.promise("P33")
@pytest.mark.parametrize("head", [1, 2])
@pytest.mark.parametrize("share", [0.3, 0.5, 0.6, 0.7, 0.8, 0.9])
def test_a_head_that_moves_back_and_is_broken_off_is_continued_by_either_inventory(head: int, share: float) -> None:
    """The host to which it moved back was remembered as one that is head no more, and both inventories were refused."""
    there, back = inventory(2, 1, 3), ALL
    world = make.world((2, 2, 2))
    with lab.inside(world):
        lab.succeed(world, back, lab.do_up)
        lab.succeed(world, there, lab.do_up)
        start = world.snapshot()
        calls = len(lab.succeed(world, back, lab.do_up).script.calls)
    world = World.again(start)
    with lab.inside(world):
        lab.run(world, back, lab.do_up, Script({int(calls * share): Fault.KILLED}))
        lab.succeed(world, back if head == 1 else there, lab.do_up)
        oracle.converged(world, back if head == 1 else there)


# fault: kernel/checks/heads.py: (own or all(one.trusted and one.runs for one in claims)) → True
@pytest.mark.promise("P33")
def test_a_head_without_its_container_is_made_again_before_it_moves() -> None:
    """What it served was dropped in silence, as only a node that is there is read."""
    world = make.world((2, 2, 2))
    with lab.inside(world):
        lab.succeed(world, ALL, lab.do_up)
        lab.succeed(world, ALL, lab.do_serve)
        keys = api_keys(world.machines["gpu1"])
        world.machines["gpu1"].boxes.clear()
        refused = lab.run(world, inventory(3, 2, 1), lab.do_up)
        assert (code(refused), refused.script.changing) == (3, [])
        assert "set head: gpu1\nvcluster up --keep gpu1\nthen set head: gpu3" in report(refused)
        lab.succeed(world, ALL, lab.do_up)
        lab.succeed(world, inventory(3, 2, 1), lab.do_up)
        assert api_keys(world.machines["gpu3"]) == keys
        assert b"org/model" in world.machines["gpu3"].volumes["vcluster-lab-state"].files["wanted.json"]


# fault: kernel/hosts/visited.py: if led.id == now.id or one not in members} → }
@pytest.mark.promise("P33")
def test_what_a_wiped_cluster_left_in_memory_keeps_no_head_from_moving() -> None:
    world = make.world((2, 2))
    with lab.inside(world):
        lab.succeed(world, MINE, lab.do_up)
        for machine in world.machines.values():
            empty(machine)
        world.api_key = None
        for order in ((2, 1), (1, 2)):
            lab.succeed(world, inventory(*order), lab.do_up)
