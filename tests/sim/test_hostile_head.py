"""A head that was taken over harms no host that the inventory does not name, and leads the laptop nowhere."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.support.figures import record
from tests.support.sim import lab, make, oracle
from tests.support.sim.lab import Outcome, code
from tests.support.sim.make import inventory_of as inventory
from tests.support.sim.world import Machine, World
from vllm_cluster.kernel.errors import LeftAlone, UsageError
from vllm_cluster.kernel.facts.heads import Led
from vllm_cluster.kernel.plan.members import Named, way_to
from vllm_cluster.kernel.plan.spec import ID, SPEC
from vllm_cluster.kernel.transport.base import Target, Transport

MINE, THEIRS = inventory(1, 2), inventory(3, 4)


def node_id(machine: Machine) -> str:
    """The id of the cluster that the machine's node is of, by its label."""
    node = machine.box("vcluster-lab")
    assert node
    return node.labels[ID]


def take_over(world: World, identity: str, *members: dict[str, Any]) -> None:
    """Let the nodes of my cluster claim another id, and its head other members."""
    before = node_id(world.machines["gpu1"])
    for machine in (world.machines["gpu1"], world.machines["gpu2"]):
        labels = [box.labels for box in machine.boxes.values()] + [one.labels for one in machine.volumes.values()]
        for one in labels:
            one.update({key: one[key].replace(before, identity) for key in (ID, SPEC) if key in one})
    files = world.machines["gpu1"].volumes["vcluster-lab-state"].files
    raw = json.loads(files["cluster.json"])
    names = {row["name"] for row in members}
    kept = [row for row in raw["members"] if row["name"] not in names]
    files["cluster.json"] = json.dumps({**raw, "id": identity, "members": [*kept, *members]}).encode()


def trust(world: World) -> None:
    """Let the laptop have made my head that of the other cluster: then the proof by its token is all that is left."""
    world.heads["lab"][way_to(MINE, MINE.hosts["gpu1"])] = Led("10.0.0.1", node_id(world.machines["gpu3"]), made=True)


def member(number: int, **words: Any) -> dict[str, Any]:
    """A host as a record has it."""
    name = f"gpu{number}"
    row = {"name": name, "address": f"10.0.0.{number}", "machine_id": f"machine-{number}", "gpus": 2, "since": 1.0}
    return {**row, "host": name, "leaving": True, **words}


def everything(*machines: Machine) -> bytes:
    """Containers, files and volumes."""
    return pickle.dumps([(one.boxes, one.volumes) for one in machines])


def report(outcome: Outcome) -> str:
    """All that a person reads."""
    return "\n".join([f"{event.host}: {event.text}" for event in outcome.events] + [str(outcome.error)])


# fault: kernel/apply/members.py: if token is None or held != token: → if False:
@pytest.mark.promise("P32", "P47")
@pytest.mark.parametrize("only_volumes", [False, True])
@pytest.mark.parametrize("verb", ["up", "down"])
def test_a_head_that_claims_another_teams_hosts_has_nothing_removed_there(verb: str, only_volumes: bool) -> None:
    """This laptop brought both clusters up, so that it knows the way to all hosts; the answer to questions is yes."""
    world = make.world((2, 2, 2, 2))
    theirs = [world.machines[name] for name in THEIRS.hosts]
    with lab.inside(world):
        lab.succeed(world, THEIRS, lab.do_up)
        lab.succeed(world, THEIRS, lab.do_serve)
        lab.succeed(world, MINE, lab.do_up)
        take_over(world, node_id(theirs[0]), member(3), member(4))
        trust(world)
        for machine in theirs if only_volumes else ():
            machine.boxes.clear()
        before = everything(*theirs)
        outcome = lab.run(world, MINE, lab.do_up if verb == "up" else lab.do_down)
        assert everything(*theirs) == before, outcome.story()
        for name in THEIRS.hosts:
            assert only_volumes or f"{name}: its node is left alone" in report(outcome)
        assert "docker rm" not in report(outcome)
    for promise in ("P32", "P47"):
        record(
            promise, f"sim: {verb} with a head that claims another team's hosts", "nothing changed there; named", True
        )


# fault: kernel/apply/members.py: if inventory.id is None: → if False:
@pytest.mark.promise("P32", "P47")
@pytest.mark.parametrize("verb", [lab.do_plan, lab.do_up, lab.do_down])
def test_no_line_to_paste_removes_by_an_id_that_the_head_alone_claims(verb: lab.Verb) -> None:
    """The host of another team is away just now; once it is back, the printed line would have ended what it serves."""
    world = make.world((2, 2, 2, 2))
    with lab.inside(world):
        lab.succeed(world, THEIRS, lab.do_up)
        lab.succeed(world, MINE, lab.do_up)
        claimed = node_id(world.machines["gpu3"])
        take_over(world, claimed, member(3))
        trust(world)
        world.machines["gpu3"].reachable = False
        told = report(lab.run(world, MINE, verb))
        assert "look first, on gpu3: sh -c 'docker ps -a --filter=label=io.vcluster.cluster=lab " in told
        assert claimed not in told and "xargs" not in told and "docker rm" not in told
    record("P47", f"sim: {verb.__name__} where a head claims the id of another team", "no line to paste has it", True)


# fault: kernel/apply/members.py: if made and member.way in known} → }
@pytest.mark.promise("P32", "P47")
@pytest.mark.parametrize("verb", [lab.do_plan, lab.do_up, lab.do_down, lab.do_status])
@pytest.mark.parametrize("words", [{}, {"host": "local"}, {"user": "root", "port": 2222, "jump": "attacker.example"}])
def test_a_head_alone_leads_the_laptop_nowhere(verb: lab.Verb, words: dict[str, Any]) -> None:
    world = make.world((2, 2, 2))
    with lab.inside(world):
        lab.succeed(world, MINE, lab.do_up)
        take_over(world, node_id(world.machines["gpu1"]), member(3, **words))
        outcome = lab.run(world, MINE, verb)
        assert outcome.script_hosts() == {"gpu1", "gpu2"}, outcome.story()
        assert verb is lab.do_status or "gpu3: not looked at" in report(outcome)
    for promise in ("P32", "P47"):
        record(promise, "sim: a head names a host that no inventory of the laptop did", "not connected to; named", True)


@pytest.mark.promise("P33")
def test_another_laptop_removes_a_former_member_that_a_person_names() -> None:
    world, all_three = make.world((2, 2, 2)), inventory(1, 2, 3)
    with lab.inside(world):
        lab.succeed(world, all_three, lab.do_up)
        world.visited.clear()
        away = lab.run(world, MINE, lab.do_up)
        assert isinstance(away.error, LeftAlone), away.story()
        assert away.error.hint == "vcluster up --former gpu3\nvcluster up --forget gpu3"
        assert away.error.hint.replace("\n", ", or: ") in report(away)
        wrong = lab.run(world, MINE, partial(lab.do_up, named=Named(former=("gpu4",))))
        assert (code(wrong), wrong.script.changing) == (2, [])
        named = lab.succeed(world, MINE, partial(lab.do_up, named=Named(former=("gpu3",))))
        assert ("gpu3", "remove volume vcluster-lab-state: the host left the inventory") in named.operations
        oracle.clean([world.machines["gpu3"]])
        oracle.untouched(lab.run(world, MINE, lab.do_up))
    record("P33", "sim: another laptop's up, and --former", "named with the line to type; cleaned", True)


# fault: kernel/plan/members.py: if self.host == LOCAL: → if not self.host:
@pytest.mark.promise("P32", "P47")
@pytest.mark.parametrize("words", [{}, {"user": "root"}, {"port": 22}])
def test_no_record_leads_to_this_machine_also_where_a_person_pastes_what_is_shown(words: dict[str, Any]) -> None:
    """`vcluster up --former local` was shown; with it Docker of the laptop itself was asked."""
    world = make.world((2, 2))
    with lab.inside(world):
        lab.succeed(world, MINE, lab.do_up)
        take_over(world, node_id(world.machines["gpu1"]), member(3, host="local", **words))
        for verb in (lab.do_plan, lab.do_up):
            shown = report(lab.run(world, MINE, verb))
            assert "vcluster up --forget gpu3" in shown and "--former" not in shown
        (row,) = (one for one in lab.succeed(world, MINE, lab.do_status).value.hosts if one.role == "former")
        assert row.fix == "vcluster up\nvcluster up --forget gpu3"
        for way in ("local", "root@local", "local:22", ""):
            pasted = lab.run(world, MINE, partial(lab.do_up, named=Named(former=(way,))))
            assert isinstance(pasted.error, UsageError), pasted.story()
            assert pasted.script_hosts() == {"gpu1", "gpu2"}
        forgotten = lab.succeed(world, MINE, partial(lab.do_up, named=Named(forget=("gpu3",))))
        assert forgotten.script_hosts() == {"gpu1", "gpu2"}


# fault: kernel/apply/members.py: replace(one, jump=None) → one
@pytest.mark.promise("P32", "P47")
def test_no_jump_host_of_a_record_is_used() -> None:
    world, targets = make.world((2, 2, 2)), list[Target]()
    with lab.inside(world):
        lab.succeed(world, inventory(1, 2, 3), lab.do_up)
        take_over(world, node_id(world.machines["gpu3"]), member(3, user="root", port=2222, jump="attacker.example"))
        assert world.runtime
        connect = world.runtime.connect

        def spy(target: Target, *rest: Any) -> Transport:
            targets.append(target)
            return connect(target, *rest)

        world.runtime = replace(world.runtime, connect=spy)
        lab.succeed(world, MINE, partial(lab.do_up, named=Named(former=("root@gpu3:2222",))))
        assert [(at.user, at.port, at.jump) for at in targets if at.name == "gpu3"] == [("root", 2222, None)]


# fault: kernel/apply/members.py: if token is None or held != token: → if held != token:
@pytest.mark.promise("P32", "P47")
def test_two_hosts_without_a_token_prove_nothing() -> None:
    world = make.world((2, 2, 2, 2))
    with lab.inside(world):
        lab.succeed(world, THEIRS, lab.do_up)
        lab.succeed(world, MINE, lab.do_up)
        take_over(world, node_id(world.machines["gpu3"]), member(4))
        trust(world)
        for machine in world.machines.values():
            for volume in machine.volumes.values():
                for name in [name for name in volume.files if name.startswith("ray-token")]:
                    del volume.files[name]
        before = everything(world.machines["gpu4"])
        outcome = lab.run(world, MINE, lab.do_plan)
        assert "gpu4: its node is left alone" in report(outcome)
        lab.run(world, MINE, lab.do_up)
        assert everything(world.machines["gpu4"]) == before
