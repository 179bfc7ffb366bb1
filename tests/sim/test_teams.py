"""Two teams share hosts and call their clusters alike: each verb of one changes nothing of the other."""

from __future__ import annotations

import pickle
import re

import pytest

from tests.support.figures import record
from tests.support.sim import lab, make
from tests.support.sim.lab import code
from tests.support.sim.make import inventory_of as inventory
from tests.support.sim.world import Box, Picture, World, identity
from vllm_cluster.kernel.errors import VclusterError
from vllm_cluster.kernel.plan.spec import HEAD_ADDRESS, ID

VERBS = {
    "up": lab.do_up,
    "plan": lab.do_plan,
    "serve": lab.do_serve,
    "stop": lab.do_stop,
    "down": lab.do_down,
    "status": lab.do_status,
}


def everything(world: World) -> bytes:
    """Containers, files and volumes of all hosts."""
    return pickle.dumps([(m.name, m.boxes, m.volumes) for m in world.machines.values()])


def team_a(world: World, *, landed: bool) -> None:
    """Team A's cluster on gpu1 (head) and gpu2, serving."""
    for verb in (lab.do_up, lab.do_serve):
        assert lab.run(world, inventory(1, 2), verb).error is None
    for _, box in world.nodes() if landed else ():
        del box.labels[ID]


@pytest.mark.promise("P32", "P20")
@pytest.mark.parametrize("made_by", ["this version", "the version before ids"])
@pytest.mark.parametrize("verb", VERBS)
def test_another_teams_cluster_of_the_same_name(verb: str, made_by: str) -> None:
    """Team B: the same name, gpu3 (head) and gpu2, which is team A's worker; nothing of B is up yet."""
    world = make.world((2, 2, 2))
    with lab.inside(world):
        team_a(world, landed=made_by != "this version")
        before = everything(world)
        outcome = lab.run(world, inventory(3, 2), VERBS[verb])
        assert outcome.script.changing == [], outcome.story()
        assert everything(world) == before
        assert code(outcome) == (0 if verb in ("status", "stop") else 3), outcome.story()
        if verb == "status":
            assert [row.state for row in outcome.value.hosts] == ["missing", "foreign"]
        elif verb != "stop":
            assert "gpu2: vcluster-lab belongs to another cluster, lab" in str(outcome.error)
        assert lab.run(world, inventory(1, 2), lab.do_status).value.up
    record("P32", f"sim: {verb} of a second team, made by {made_by}", "0 changing calls; named, exit 3", True)


# fault: serving/serve/stop.py: if own else facts →
@pytest.mark.promise("P32")
@pytest.mark.parametrize("verb", VERBS)
def test_another_clusters_name_on_its_hosts(verb: str) -> None:
    """An inventory with another `cluster:` for the hosts of a cluster that serves: a slip of the hand."""
    world = make.world((2, 2))
    with lab.inside(world):
        team_a(world, landed=False)
        before = everything(world)
        outcome = lab.run(world, make.inventory(2, cluster="other"), VERBS[verb])
        assert outcome.script.changing == [], outcome.story()
        assert everything(world) == before
        assert code(outcome) == (0 if verb in ("status", "down") else 3), outcome.story()
        if code(outcome):
            assert ": vcluster-lab belongs to another cluster, lab" in str(outcome.error)
    record("P32", f"sim: {verb} of an inventory of another name", "0 changing calls; named", True)


@pytest.mark.promise("P32")
@pytest.mark.parametrize("verb", VERBS)
def test_a_team_that_is_up_takes_in_anothers_host(verb: str) -> None:
    """Team B is up on gpu3 alone and adds team A's worker, then team A's head, to its inventory."""
    world = make.world((2, 2, 2))
    with lab.inside(world):
        team_a(world, landed=False)
        assert lab.run(world, inventory(3), lab.do_up).error is None
        for wider in (inventory(3, 2), inventory(3, 1, 2)):
            before = everything(world)
            outcome = lab.run(world, wider, VERBS[verb])
            assert outcome.script.changing == [], outcome.story()
            assert everything(world) == before
            assert code(outcome) == (0 if verb in ("status", "stop") else 3), outcome.story()
    record("P32", f"sim: {verb} of a team that takes in another's hosts", "0 changing calls", True)


@pytest.mark.promise("P32")
def test_an_id_in_the_inventory_takes_over_a_cluster_whose_head_was_lost() -> None:
    """The head's address is another one now: without the id it is another cluster's, with it it is this one's."""
    world = make.world((2, 2, 2))
    with lab.inside(world):
        team_a(world, landed=False)
        known = world.machines["gpu2"].box("vcluster-lab")
        assert known
        assert code(lab.run(world, inventory(3, 2), lab.do_up)) == 3
        mine = inventory(3, 2, id=known.labels[ID])
        assert lab.run(world, mine, lab.do_up).error is None
        node = world.machines["gpu2"].box("vcluster-lab")
        assert node and (node.labels[HEAD_ADDRESS], node.labels[ID]) == ("10.0.0.3", known.labels[ID])
        pinned = inventory(1, 2, id="f" * 16)
        before = everything(world)
        assert code(lab.run(world, pinned, lab.do_down)) == 3
        assert everything(world) == before
    record("P32", "sim: an id in the inventory", "takes over what bears it, and nothing else", True)


# fault: kernel/plan/identity.py: or not is_temporary(cluster, container) →
@pytest.mark.promise("P32", "P20")
@pytest.mark.parametrize("name", ["experiment", "vcluster-lab2", "vcluster-lab-copy", "vcluster-lab-door"])
def test_labels_that_a_committed_image_passed_on(name: str) -> None:
    """`docker commit` of a node, and a container run from that image: our labels under another name."""
    world, words = make.world((2, 2)), inventory(1, 2)
    with lab.inside(world):
        team_a(world, landed=False)
        machine = world.machines["gpu2"]
        node = machine.box("vcluster-lab")
        assert node
        body = {"Image": node.image, "Labels": dict(node.labels), "Entrypoint": ["sleep"], "Cmd": []}
        copy = Box(identity(name), name, node.image, body, state="running")
        machine.boxes[copy.id] = copy
        again = lab.run(world, words, lab.do_up)
        assert (again.error, again.operations) == (None, []), again.story()
        assert lab.run(world, words, lab.do_down).error is None
        assert [box.name for box in machine.boxes.values()] == [name]
    record("P32", f"sim: a container {name} with a node's labels (docker commit)", "up and down leave it", True)


def committed(world: World) -> Picture:
    """An image made of the node on gpu2, with its labels."""
    machine = world.machines["gpu2"]
    node = machine.box("vcluster-lab")
    assert node
    image = Picture(f"sha256:{identity('committed')}", ["mine:1"], dict(make.WITH_RAY), dict(node.labels))
    machine.images[image.id] = image
    return image


# fault: kernel/plan/identity.py: return all(inherited.get(key) == → return False and all(inherited.get(key) ==
@pytest.mark.promise("P32", "P20")
def test_a_copy_of_a_node_under_the_node_s_own_name() -> None:
    """`docker commit` of a node, its removal, and a container of the same name from that image: not our node."""
    world, words = make.world((2, 2)), inventory(1, 2)
    with lab.inside(world):
        team_a(world, landed=False)
        machine, image = world.machines["gpu2"], committed(world)
        node = machine.box("vcluster-lab")
        assert node
        del machine.boxes[node.id]
        body = {"Image": image.id, "Labels": dict(image.labels), "Entrypoint": ["sleep"], "Cmd": []}
        copy = Box(identity("copy"), "vcluster-lab", image.id, body, state="running")
        machine.boxes[copy.id] = copy
        for verb in (lab.do_plan, lab.do_up, lab.do_serve):
            outcome = lab.run(world, words, verb)
            assert (code(outcome), outcome.script.changing) == (3, []), outcome.story()
            assert re.search(
                r"gpu2: container vcluster-lab \(\S+, running\) does not belong to this cluster", str(outcome.error)
            )
        done = lab.succeed(world, words, lab.do_down)
        assert any(event.kind == "warning" and "does not belong to this cluster" in event.text for event in done.events)
        assert {m.name: [box.id for box in m.boxes.values()] for m in world.machines.values()} == {
            "gpu1": [],
            "gpu2": [copy.id],
        }
    record("P32", "sim: a container vcluster-lab made from an image of our node", "up refuses it; down leaves it", True)


def test_nodes_made_from_an_image_of_a_node_belong_to_the_cluster() -> None:
    world = make.world((2, 2))
    with lab.inside(world):
        assert lab.run(world, inventory(1, 2), lab.do_up).error is None
        image = committed(world)
        for machine in world.machines.values():
            machine.images[image.id] = image
        assert lab.run(world, inventory(1, 2), lab.do_down).error is None
        words = inventory(1, 2, image="mine:1")
        assert lab.run(world, words, lab.do_up).error is None
        again = lab.run(world, words, lab.do_up)
        assert (again.error, again.operations) == (None, []), again.story()
        assert lab.run(world, words, lab.do_down).error is None
        assert [box.name for machine in world.machines.values() for box in machine.boxes.values()] == []


@pytest.mark.promise("P32", "P20")
@pytest.mark.parametrize("shared", ["the head", "a worker"])
def test_a_volume_that_another_team_left_decides_nothing(shared: str) -> None:
    """Team A's node on the shared host was removed by hand, and its volumes were not; team B is not up yet."""
    world = make.world((2, 2, 2))
    words = inventory(2, 3) if shared == "the head" else inventory(3, 2)
    with lab.inside(world):
        team_a(world, landed=False)
        machine = world.machines["gpu2"]
        machine.boxes.clear()
        before = everything(world)
        for verb in (lab.do_plan, lab.do_up, lab.do_down):
            outcome = lab.run(world, words, verb)
            assert (code(outcome), outcome.script.changing) == (3, []), outcome.story()
            assert "gpu2: the volume vcluster-lab-state belongs to another cluster, lab" in str(outcome.error)
        assert everything(world) == before
        mine = machine.volumes["vcluster-lab-state"].labels[ID]
        assert lab.run(world, words.model_copy(update={"id": mine}), lab.do_plan).error is None
    record("P32", f"sim: a volume that another team left on {shared}", "exit 3, 0 changing calls", True)


# fault: kernel/checks/docker.py: if other.id in who: → if other.id == "":
# fault: kernel/checks/finding.py: one.fix if alike[one.code, one.fix] > 1 else one.fix.replace → one.fix.replace
@pytest.mark.promise("P32")
@pytest.mark.parametrize("verb", ["up", "plan"])
def test_the_cause_comes_without_remedies_that_would_stop_the_other_cluster(verb: str) -> None:
    """A wrong `cluster:`: every port is taken by the cluster that is there, which alone is reported."""
    world = make.world((2, 2))
    with lab.inside(world):
        team_a(world, landed=False)
        outcome = lab.run(world, inventory(1, 2, cluster="prod"), VERBS[verb])
        assert code(outcome) == 3
        lines = str(outcome.error).splitlines()
        assert len(lines) == 1, lines
        assert lines[0].startswith("gpu1, gpu2: vcluster-lab belongs to another cluster, lab")
        # Whose it is: who changed it last, as its head keeps it.
        last = "docker exec vcluster-lab tail -n 1 /var/lib/vcluster/audit.jsonl"
        assert isinstance(outcome.error, VclusterError)
        assert (outcome.error.hint or "").splitlines()[1:] == [f"on gpu1: {last}"]
        down = lab.run(world, inventory(1, 2, cluster="prod"), lab.do_down)
        assert (down.error, down.script.changing) == (None, [])
        said = down.events[-1].text
        assert said == "Nothing to remove: cluster prod is not on these hosts; others there: lab on gpu1, lab on gpu2."
    record("P32", f"sim: {verb} with a wrong cluster name", "one line, of the cluster that is there", True)


def test_a_wrong_address_of_the_head_makes_its_own_nodes_no_other_clusters() -> None:
    world, words = make.world((2, 2)), inventory(1, 2)
    with lab.inside(world):
        team_a(world, landed=False)
        head = words.hosts["gpu1"].model_copy(update={"address": "10.0.0.99"})
        wrong = words.model_copy(update={"hosts": {**words.hosts, "gpu1": head}})
        outcome = lab.run(world, wrong, lab.do_plan)
        assert (code(outcome), outcome.script.changing) == (3, [])
        assert "no interface holds the address 10.0.0.99" in str(outcome.error)
        assert "another cluster" not in str(outcome.error)


@pytest.mark.promise("P32")
def test_a_volume_of_another_cluster_is_not_used() -> None:
    world, words = make.world((2, 2)), inventory(1, 2)
    with lab.inside(world):
        team_a(world, landed=False)
        machine = world.machines["gpu2"]
        machine.boxes.clear()
        machine.volumes["vcluster-lab-state"].labels[ID] = "f" * 16
        before = everything(world)
        for verb in (lab.do_up, lab.do_down):
            outcome = lab.run(world, words, verb)
            assert (code(outcome), outcome.script.changing) == (3, []), outcome.story()
            assert "the volume vcluster-lab-state belongs to another cluster" in str(outcome.error)
        assert everything(world) == before
    record("P32", "sim: a volume of our name with another id", "exit 3, 0 changing calls", True)


@pytest.mark.promise("P20", "P32")
@pytest.mark.parametrize("labels", [{}, {"io.vcluster.cluster": "other"}], ids=["none", "another cluster's"])
def test_a_container_that_has_our_node_s_name_is_reported_before_anything_changes(labels: dict[str, str]) -> None:
    world = make.world((2, 2))
    machine = world.machines["gpu2"]
    (image,) = machine.images
    body = {"Image": image, "Labels": labels, "Entrypoint": ["bash"], "Cmd": []}
    theirs = Box(identity("theirs"), "vcluster-lab", image, body, state="running", born=-1)
    machine.boxes[theirs.id] = theirs
    with lab.inside(world):
        for verb in (lab.do_plan, lab.do_up):
            outcome = lab.run(world, inventory(1, 2), verb)
            assert code(outcome) == 3, outcome.story()
            assert "gpu2: container vcluster-lab (" in str(outcome.error)
            assert outcome.script.changing == []
