"""Hosts join, leave, are replaced, renamed, and the head moves: shown, done, resumed, and nothing is forgotten."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.support.depth import FULL
from tests.support.figures import record
from tests.support.sim import lab, life, make, oracle
from tests.support.sim.faults import Call, Fault, Script
from tests.support.sim.lab import Outcome, code
from tests.support.sim.make import inventory_of as inventory
from tests.support.sim.world import Machine, World
from vllm_cluster.kernel.apply.barrier import GONE_SECONDS
from vllm_cluster.kernel.errors import HostError, NodesNotJoined, Unreachable, VclusterError
from vllm_cluster.kernel.hosts.connection import CONNECT_SECONDS
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.plan.plan import RecordMembers
from vllm_cluster.wire.order import read_order

CHANGES = {
    "a host joins": (inventory(1, 2), inventory(1, 2, 3)),
    "a host leaves": (inventory(1, 2, 3), inventory(1, 2)),
    "two hosts change places": (inventory(1, 2), inventory(1, 3)),
    "the head moves": (inventory(1, 2), inventory(2, 1)),
    "the head moves and a host leaves": (inventory(1, 2, 3), inventory(2, 1)),
}


def remembered(world: World, words: Inventory) -> dict[str, bool]:
    """The members that the head remembers, and whether they are leaving."""
    machine = world.machines[words.head_name]
    node = machine.box("vcluster-lab")
    raw = machine.read(node, f"{life.STATE}/cluster.json") if node else None
    return {member["name"]: member["leaving"] for member in json.loads(raw)["members"]} if raw else {}


def served(world: World, words: Inventory) -> tuple[str, str] | None:
    """Model and phase, as the head has them."""
    world.settle(20)
    serve = lab.succeed(world, words, lab.do_status).value.head.serve
    return (serve.model, serve.phase) if serve else None


def whole(world: World, words: Inventory) -> None:
    """The cluster is what the inventory declares, others hold nothing of it, and the head knows exactly its hosts."""
    oracle.converged(world, words)
    oracle.clean(machine for name, machine in world.machines.items() if name not in words.hosts)
    assert remembered(world, words) == dict.fromkeys(words.hosts, False)
    oracle.untouched(lab.run(world, words, lab.do_up))


@pytest.mark.promise("P33")
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_members_while_a_model_is_served(change: str) -> None:
    before, after = CHANGES[change]
    world = make.world((2, 2, 2))
    with lab.inside(world):
        lab.succeed(world, before, lab.do_up)
        lab.succeed(world, before, lab.do_serve)
        planned = lab.succeed(world, after, lab.do_plan)
        assert planned.script.changing == []
        outcome = lab.succeed(world, after, lab.do_up)
        assert lab.texts(planned.value) == outcome.operations or sorted(lab.texts(planned.value)) == sorted(
            outcome.operations
        )
        whole(world, after)
        assert served(world, after) == ("org/model", "ready")
        lab.succeed(world, after, lab.do_down)
        oracle.nothing_left(world)
    record("P33", f"sim: {change} while a model is served", "planned, done, served again; down leaves nothing", True)


FAULTS = (Fault.KILLED, Fault.LOST_AFTER)
# Of the changes, CI has the two that hold what the others do; each night has all.
BROKEN_OFF = [
    name
    if name in ("two hosts change places", "the head moves and a host leaves")
    else pytest.param(name, marks=pytest.mark.deep)
    for name in CHANGES
]


def breaks(calls: list[Call], fault: Fault) -> list[int]:
    """The calls at which a run is broken off by a fault: all of them.

    CI's share: a controller is killed before every second call that changes something, as one that is killed at a look
    leaves what the next change would find; of the others every second loses its answer, and of the looks every fourth
    kind.
    """
    chosen, turn, seen = list[int](), 0, set[tuple[str, str]]()
    for call in calls:
        again = (call.host, call.what) in seen and not call.changes
        seen.add((call.host, call.what))
        turn += not again
        mine = call.changes and turn % 2 if fault is Fault.KILLED else not again and turn % 4 == 0
        if FULL or mine:
            chosen.append(call.index)
    return chosen


# fault: kernel/apply/moved_head.py: followed.content if followed else last.document → last.document
@pytest.mark.slow
@pytest.mark.promise("P33", "P1")
@pytest.mark.parametrize("change", BROKEN_OFF)
@pytest.mark.parametrize("fault", FAULTS)
def test_broken_off_at_every_call(change: str, fault: Fault) -> None:
    before, after = CHANGES[change]
    world = make.world((2, 2, 2))
    with lab.inside(world):
        lab.succeed(world, before, lab.do_up)
        lab.succeed(world, before, lab.do_serve)
    start = world.snapshot()
    with lab.inside(world):
        numbers = breaks(lab.succeed(world, after, lab.do_up).script.calls, fault)
    for index in numbers:
        world = World.again(start)
        with lab.inside(world):
            lab.run(world, after, lab.do_up, Script({index: fault}))
            world.settle(5)
            lab.succeed(world, after, lab.do_up)
            whole(world, after)
            assert served(world, after) == ("org/model", "ready"), index
    figure = f"{len(numbers)} of {len(numbers)} converged, and serve again"
    record("P33", f"sim: {change}, broken off at every call", figure, True)


GPU3 = {"name": "gpu3", "address": "10.0.0.3", "machine_id": "machine-3", "gpus": 2, "since": 1.0, "host": "gpu3"}
HOSTILE: tuple[dict[str, Any], ...] = (
    {"host": "-oProxyCommand=touch x"}, {"host": ["a"]}, {"host": 5}, {"host": "\ud800"}, {"user": "-x"},
    {"port": "x"}, {"port": 99999999}, {"machine_id": ["x"]}, {"machine_id": "\x1b[2J"}, {"name": ["x"]},
    {"name": "\x1b[2Jgpu3; rm -rf ~"}, {"name": "gpu3\nrm -rf ~"}, {"name": "-x"}, {"address": "x"},
    {"address": ["x"]}, {"gpus": "x"}, {"gpus": float("nan")}, {"since": "x"}, {"since": 1e999}, {"jump": "-oX"},
)  # fmt: skip


def rewritten(world: World, change: Callable[[Any], Any]) -> None:
    """The head's cluster.json as another person left it."""
    files = world.machines["gpu1"].volumes["vcluster-lab-state"].files
    raw = json.loads(files["cluster.json"])
    changed = change(raw)
    files["cluster.json"] = changed if isinstance(changed, bytes) else json.dumps(changed).encode()


def warnings(outcome: Outcome) -> list[str]:
    """What a run warned of."""
    return [event.text for event in outcome.events if event.kind == "warning"]


@pytest.mark.promise("P33", "P15")
@pytest.mark.parametrize("words", HOSTILE, ids=repr)
@pytest.mark.parametrize("verb", [lab.do_up, lab.do_down, lab.do_status])
def test_an_unreadable_member_is_reported_and_blocks_no_verb(verb: lab.Verb, words: dict[str, Any]) -> None:
    """Whoever may use the head's Docker can write its record."""
    world, here = make.world((2, 2, 2)), inventory(1, 2)
    with lab.inside(world):
        lab.succeed(world, here, lab.do_up)
        rewritten(world, lambda raw: {**raw, "members": [*raw["members"], {**GPU3, **words}]})
        outcome = lab.succeed(world, here, verb)
        assert outcome.script_hosts() == {"gpu1", "gpu2"}
        if verb is not lab.do_status:
            (key,) = words
            assert f"cluster.json cannot be read: member 3: {key}" in warnings(outcome)[0]
            assert "".join(warnings(outcome)).isprintable()
        if verb is lab.do_up:
            whole(world, here)


# fault: kernel/plan/members.py: if record and record.id != node.labels.get(ID, record.id): → if record and not record.id:
@pytest.mark.promise("P33")
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda raw: b"{", "it is not a record"),
        (lambda raw: b"[" * 100_000, "it is not a record"),
        (lambda raw: [raw], "it is not a record"),
        (
            lambda raw: {**raw, "members": [[]] * 600},
            "".join(f"member {n}: must be an object; " for n in (1, 2, 3)) + "512 in all;",
        ),
        (lambda raw: {**raw, "members": "x" * 600}, "member 1: must be an object;"),
        (lambda raw: {**raw, "members": 5}, "it is not a record"),
        (lambda raw: {**raw, "id": [[]]}, "it is of another cluster, with the id [[]]"),
        (lambda raw: json.dumps(raw).encode().replace(b'"v": 1', b'"v": 1e999'), "it has format inf"),
        (lambda raw: {**raw, "v": 2}, "it has format 2; this vcluster reads 1"),
        (lambda raw: {**raw, "id": "0" * 16}, "it is of another cluster, with the id 0000000000000000"),
    ],
    ids=["half", "deep", "list", "rows", "text", "number", "id", "infinite", "newer", "foreign"],
)
def test_a_record_that_cannot_be_read_is_reported_and_written_again(change: Callable[[Any], Any], why: str) -> None:
    world, here = make.world((2, 2)), inventory(1, 2)
    with lab.inside(world):
        lab.succeed(world, here, lab.do_up)
        rewritten(world, change)
        for verb in (lab.do_plan, lab.do_up):
            outcome = lab.succeed(world, here, verb)
            assert f"cluster.json cannot be read: {why}" in warnings(outcome)[0]
        whole(world, here)
        assert not warnings(lab.succeed(world, here, lab.do_plan))


@pytest.mark.promise("P33")
@pytest.mark.parametrize(
    "words",
    [{"generation": 5}, {"deployment": {"name": 5}}, {"replica": {}}, {"replica": []}, {"replica": {"parts": []}}],
    ids=repr,
)
def test_a_request_that_no_laptop_wrote_blocks_no_verb(words: dict[str, Any]) -> None:
    world, fewer = make.world((2, 2, 2)), inventory(1, 2)
    with lab.inside(world):
        lab.succeed(world, inventory(1, 2, 3), lab.do_up)
        lab.succeed(world, inventory(1, 2, 3), lab.do_serve)
        files = world.machines["gpu1"].volumes["vcluster-lab-state"].files
        asked = json.loads(files["wanted.json"])
        (placed,) = asked["deployments"]
        files["wanted.json"] = json.dumps({**asked, "deployments": [{**placed, **words}]}).encode()
        lab.succeed(world, fewer, lab.do_plan)
        lab.succeed(world, fewer, lab.do_down)


# fault: kernel/apply/members.py: if facts.machine_id != member.machine_id: → if facts.machine_id == "":
@pytest.mark.promise("P33")
@pytest.mark.parametrize("verb", [lab.do_up, lab.do_down])
def test_another_machine_on_the_way_to_a_member_that_left_is_not_taken_for_it(verb: lab.Verb) -> None:
    """The laptop of a colleague has another gpu3 in its ssh_config, or the address was given away."""
    world = make.world((2, 2, 2, 2))
    with lab.inside(world):
        lab.succeed(world, inventory(1, 2, 3), lab.do_up)
        there = world.machines["gpu3"]
        world.machines["gpu3"] = world.machines["gpu4"]
        outcome = lab.run(world, inventory(1, 2), verb)
        told = "\n".join([event.text for event in outcome.events] + [str(outcome.error)])
        assert "another machine answers at gpu3: its machine id is machine-4, not machine-3" in told
        assert there.box("vcluster-lab")
        assert (
            "If gpu3 was of this cluster, look first, on gpu3: sh -c 'docker ps -a --filter=label=io.vcluster." in told
        )
        if verb is lab.do_down:
            assert isinstance(outcome.error, HostError)
        else:
            assert remembered(world, inventory(1, 2)) == {"gpu1": False, "gpu2": False, "gpu3": True}


@pytest.mark.promise("P33")
def test_a_stopped_model_does_not_come_back_when_the_head_does() -> None:
    world = make.world((2, 2))
    first, second = inventory(1, 2), inventory(2, 1)

    with lab.inside(world):
        lab.succeed(world, first, lab.do_up)
        lab.succeed(world, first, lab.do_serve)
        lab.succeed(world, second, lab.do_up)
        assert served(world, second) == ("org/model", "ready")
        lab.succeed(world, second, partial(lab.do_serve, model="org/NEW"))
        lab.succeed(world, second, lab.do_stop)
        lab.succeed(world, first, lab.do_up)
        assert served(world, first) is None
        history = world.machines["gpu1"].volumes["vcluster-lab-state"].files["audit.jsonl"]
        assert [json.loads(line)["verb"] for line in history.splitlines()] == [
            "up",
            "serve",
            "up",
            "serve",
            "stop",
            "up",
        ]
    record("P33", "sim: the head moves there and back, a model stopped meanwhile", "nothing starts by itself", True)


@pytest.mark.promise("P33", "P27")
def test_a_host_joins_and_the_model_survives_its_next_failure() -> None:
    world = make.world((2, 2, 2))
    with lab.inside(world):
        lab.succeed(world, inventory(1, 2), lab.do_up)
        lab.succeed(world, inventory(1, 2), lab.do_serve)
        node = world.machines["gpu1"].box("vcluster-lab")
        assert node
        lab.succeed(world, inventory(1, 2, 3), lab.do_up)
        assert node.life["serve"]["phase"] == "ready"
        node.life["serve"]["phase"] = "waiting"
        assert served(world, inventory(1, 2, 3)) == ("org/model", "ready")
        again = lab.succeed(world, inventory(1, 2), lab.do_status)
        assert [(row.host, row.role) for row in again.value.hosts][2:] == [("gpu3", "former")]
        # Whether it can be reached was not looked at: all ways are shown.
        assert again.value.hosts[2].fix == "vcluster up\nvcluster up --former gpu3\nvcluster up --forget gpu3"
    record("P33", "sim: a host joins while a model is served, which then fails", "served again on 6 GPUs", True)


# fault: kernel/plan/followed.py: if before.size <= total: → if before.size <= 1000 * total:
@pytest.mark.promise("P33")
def test_a_layout_that_was_asked_for_is_not_replaced_by_another() -> None:
    world = make.world((2, 2, 2))

    with lab.inside(world):
        lab.succeed(world, inventory(1, 2, 3), lab.do_up)
        lab.succeed(world, inventory(1, 2, 3), partial(lab.do_serve, tp=2, pp=3))
        outcome = lab.succeed(world, inventory(1, 2), lab.do_up)
        said = next(text for _, text in outcome.operations if text.startswith("record"))
        assert "TP=2 × PP=3 needs 6 GPUs, and there are 4; to serve it again: vcluster serve org/model" in said
        whole(world, inventory(1, 2))
        assert served(world, inventory(1, 2)) is None
    record("P33", "sim: a layout that was asked for does not fit any more", "stopped, with the command", True)


# fault: kernel/plan/members.py: return claims[0] if claims == there != [] else "" → return ""
# fault: kernel/apply/members.py: in ("", facts.docker.id) or not facts.docker.id → == "none"
# fault: kernel/plan/members.py: same.get((member.machine_id, member.name)) or machines.get(member.machine_id) → machines.get(member.machine_id)
@pytest.mark.promise("P33")
@pytest.mark.parametrize("there", ["answers", "away", "one Docker"])
@pytest.mark.parametrize("verb", [lab.do_up, lab.do_down])
def test_a_host_that_gives_the_id_of_one_that_left_does_not_hide_it(verb: lab.Verb, there: str) -> None:
    """It was taken for that host under another name: the node stayed without a word, and `down` ended well."""
    world = make.world((2, 2, 2))
    with lab.inside(world):
        lab.succeed(world, inventory(1, 2, 3), lab.do_up)
        liar, left = world.machines["gpu2"], world.machines["gpu3"]
        liar.machine_id, left.reachable = left.machine_id, there != "away"
        if there != "one Docker":
            liar.engine = "another"
        outcome = lab.run(world, inventory(1, 2), verb)
        told = "\n".join(f"{event.host}: {event.text}" for event in outcome.events)
        if there == "answers":
            assert (left.boxes, left.volumes) == ({}, {}), outcome.story()
            assert outcome.error is None
        else:
            assert left.box("vcluster-lab")
            assert isinstance(outcome.error, VclusterError)
            assert "gpu3: " in told
        if verb is lab.do_up:
            assert "gpu2: it gives the machine id of gpu3, which left the inventory" in told
            assert remembered(world, inventory(1, 2)).get("gpu3") is (None if there == "answers" else True)
            again = lab.succeed(world, inventory(1, 2), lab.do_plan).value
            assert [one for one in again.operations() if isinstance(one, RecordMembers)] == []


def identity_of(machine: Machine) -> str:
    """The id of the cluster that its node is of."""
    node = machine.box("vcluster-lab")
    assert node
    return node.labels["io.vcluster.id"]


# fault: kernel/apply/members.py: labels = [_label(CLUSTER, cluster), _label(ID, inventory.id)] → labels = [_label(CLUSTER, cluster)]
@pytest.mark.promise("P33", "P19")
def test_a_member_that_left_and_cannot_be_reached_is_not_forgotten() -> None:
    world = make.world((2, 2, 2))
    with lab.inside(world):
        lab.succeed(world, inventory(1, 2, 3), lab.do_up)
        gone = world.machines["gpu3"]
        world.stop(gone, next(iter(gone.boxes.values())), gently=False)
        gone.reachable = False
        left = inventory(1, 2).model_copy(update={"id": identity_of(gone)})
        outcome = lab.succeed(world, left, lab.do_up)
        warned = [event.text for event in outcome.events if event.kind == "warning" and event.host == "gpu3"]
        # By the id too: another cluster of this name may be there.
        mine = f"--filter=label=io.vcluster.cluster=lab --filter=label=io.vcluster.id={identity_of(gone)}"
        nodes = f"docker ps -aq {mine} --filter=name=vcluster-lab | xargs -r docker rm -f"
        both = f"{nodes}; docker volume ls -q {mine} | xargs -r docker volume rm"
        # One word: pasted with its sentence, what is behind the pipe runs nowhere.
        assert warned and f"by hand, on gpu3: sh -c '{both}'" in warned[0]
        assert remembered(world, inventory(1, 2)) == {"gpu1": False, "gpu2": False, "gpu3": True}
        missed = World.again(world.snapshot())
        gone.reachable = True
        lab.succeed(world, inventory(1, 2), lab.do_up)
        whole(world, inventory(1, 2))
    with lab.inside(missed):
        down = lab.run(missed, left, lab.do_down)
        assert code(down) == 4
        assert any(
            "--filter=name=vcluster-lab | xargs -r docker rm -f" in event.text
            for event in down.events
            if event.host == "gpu3"
        )
    record("P33", "sim: a member left and is behind a black hole", "named with the command, cleaned later", True)


def left_behind(world: World, *, dead: bool) -> Machine:
    """gpu3 has left a cluster of three, and SSH does not reach it; its node runs on unless it is dead."""
    lab.succeed(world, inventory(1, 2, 3), lab.do_up)
    gone = world.machines["gpu3"]
    if dead:
        world.stop(gone, next(iter(gone.boxes.values())), gently=False)
    gone.reachable = False
    return gone


@pytest.mark.promise("P33")
def test_a_member_that_is_gone_for_good_is_forgotten() -> None:
    world = make.world((2, 2, 2))
    with lab.inside(world):
        left_behind(world, dead=True)
        outcome = lab.succeed(world, inventory(1, 2), lab.do_up)
        # Once, though it is looked at twice.
        (warned,) = [event.text for event in outcome.events if event.kind == "warning" and event.host == "gpu3"]
        assert warned.endswith("If it is gone for good: vcluster up --forget gpu3")
        outcome = lab.succeed(world, inventory(1, 2), lab.do_forget("gpu3"))
        assert outcome.operations == [("gpu1", "record on the head: gpu3 is forgotten")]
        oracle.converged(world, inventory(1, 2))
        assert remembered(world, inventory(1, 2)) == {"gpu1": False, "gpu2": False}
        again = lab.succeed(world, inventory(1, 2), lab.do_up)
        assert "gpu3" not in again.script_hosts()
        assert again.seconds < 1 < outcome.seconds
    record("P33", "sim: up --forget of a member that is gone for good", "nothing is asked of it any more", True)


@pytest.mark.promise("P33")
@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("gpu1", "gpu1 is in the inventory"),
        ("gpu3", ""),
        ("gpuu3", "gpuu3 is not a former host, did you mean gpu3?"),
        ("x", "x is not a former host; former hosts: gpu3"),
    ],
)
def test_only_a_member_that_left_can_be_forgotten(host: str, why: str) -> None:
    world = make.world((2, 2, 2))
    with lab.inside(world):
        lab.succeed(world, inventory(1, 2, 3), lab.do_up)
        outcome = lab.run(world, inventory(1, 2), lab.do_forget(host))
        if host == "gpu3":
            # It answers: its node is removed, as without the option.
            assert outcome.error is None
            whole(world, inventory(1, 2))
        else:
            assert code(outcome) == 2
            assert str(outcome.error) == f"--forget {host}: {why}"
            assert isinstance(outcome.error, VclusterError)
            assert outcome.error.instead == ({"gpuu3": "gpu3"} if host == "gpuu3" else {})
            assert outcome.script.changing == []


# fault: kernel/apply/barrier.py: found = absent(status.roll if status else None, → found = absent(None,
def test_up_waits_for_the_roll_and_names_who_is_not_on_it() -> None:
    """A firewall closes its one port; Ray, on others, counts every GPU."""
    world, inventory = make.world((2, 2)), make.inventory(2)
    world.machines["gpu2"].off_roll = True
    with lab.inside(world):
        failed: Any = lab.run(world, inventory, lab.do_up)
        assert isinstance(failed.error, NodesNotJoined), failed.story()
        assert "gpu2: its node has not joined" in failed.error.message
        world.machines["gpu2"].off_roll = False
        lab.succeed(world, inventory, lab.do_up)


# fault: kernel/apply/barrier.py: if found.complete and not away: → if found.have:
@pytest.mark.promise("P33", "P18")
def test_an_unreachable_node_that_ray_counts_ends_up_at_once() -> None:
    world = make.world((2, 2, 2))
    with lab.inside(world):
        gone = left_behind(world, dead=False)
        outcome = lab.run(world, inventory(1, 2), lab.do_up)
        assert isinstance(outcome.error, Unreachable), outcome.story()
        assert "gpu3: Ray still reports its node at 10.0.0.3" in outcome.error.message
        assert "on gpu3: sh -c 'docker ps -a --filter=label=io.vcluster.cluster=lab " in str(outcome.error.hint)
        assert "xargs" not in str(outcome.error.hint)
        seconds = outcome.seconds
        gone.reachable = True
        lab.succeed(world, inventory(1, 2), lab.do_up)
        whole(world, inventory(1, 2))
    assert seconds < 2 * CONNECT_SECONDS
    record("P33", "sim: a node outside the inventory that SSH does not reach", f"exit 4 after {seconds:.0f} s", True)


# fault: serving/status/status.py: if node.address not in known → if not known
@pytest.mark.promise("P33", "P18")
def test_an_unknown_node_is_reported_once_ray_would_have_noticed_its_end() -> None:
    world = make.world((2, 2, 2))
    with lab.inside(world):
        lab.succeed(world, inventory(1, 2, 3), lab.do_up)
        del world.machines["gpu1"].volumes["vcluster-lab-state"].files["cluster.json"]
        seen = lab.run(world, inventory(1, 2), lab.do_status).value
        assert (seen.up, seen.hosts[-1].address, seen.hosts[-1].state) == (False, "10.0.0.3", "joined")
        outcome = lab.run(world, inventory(1, 2), lab.do_up)
        assert isinstance(outcome.error, HostError), outcome.story()
        assert "Ray reports a node at 10.0.0.3, which is not in the inventory" in outcome.error.message
        assert "on 10.0.0.3: sh -c 'docker ps -a --filter=label=io.vcluster.cluster=lab " in str(outcome.error.hint)
    assert GONE_SECONDS < outcome.seconds < GONE_SECONDS + 10


@pytest.mark.promise("P33")
@pytest.mark.parametrize("what", ["replaced", "renamed", "readdressed"])
def test_a_host_is_replaced_renamed_or_readdressed(what: str) -> None:
    world, after = make.world((2, 2)), inventory(1, 2)
    with lab.inside(world):
        lab.succeed(world, inventory(1, 2), lab.do_up)
        machine = world.machines["gpu2"]
        if what == "replaced":
            machine.machine_id = "another"
            machine.boxes.clear()
            machine.volumes.clear()
        elif what == "renamed":
            world.machines["big"] = world.machines.pop("gpu2")
            machine.name = "big"
            hosts = {name: host for name, host in after.hosts.items() if name == "gpu1"}
            after = after.model_copy(
                update={"hosts": {**hosts, "big": after.hosts["gpu2"].model_copy(update={"name": "big"})}}
            )
        else:
            machine.address = "10.0.0.22"
            moved = after.hosts["gpu2"].model_copy(update={"address": machine.address})
            after = after.model_copy(update={"hosts": {**after.hosts, "gpu2": moved}})
        planned = lab.succeed(world, after, lab.do_plan)
        changed = [op.changed for op in planned.value.operations() if isinstance(op, RecordMembers)]
        assert changed == {
            "replaced": ["gpu2 is another machine now"],
            "renamed": ["gpu2 is called big"],
            "readdressed": ["gpu2 has the address 10.0.0.22, before 10.0.0.2"],
        }.get(what)
        lab.succeed(world, after, lab.do_up)
        whole(world, after)
    record("P33", f"sim: a host is {what}", "the plan names it; up does it", True)


@pytest.mark.promise("P33")
@pytest.mark.parametrize("readdressed", ["gpu1", "gpu2"])
def test_a_model_is_served_where_its_hosts_are_after_they_got_other_addresses(readdressed: str) -> None:
    world, before = make.world((2, 2)), inventory(1, 2)

    hosts = ("gpu2",) if readdressed == "gpu2" else ()

    with lab.inside(world):
        lab.succeed(world, before, lab.do_up)
        lab.succeed(world, before, partial(lab.do_serve, expose=True, hosts=hosts))
        machine, address = world.machines[readdressed], "10.0.0.77"
        machine.address = address
        moved = before.hosts[readdressed].model_copy(update={"address": address})
        node = machine.box("vcluster-lab")
        assert node
        # A head at another address is known by the cluster's id alone.
        known = {"hosts": {**before.hosts, readdressed: moved}, "id": node.labels["io.vcluster.id"]}
        after = before.model_copy(update=known)
        lab.succeed(world, after, lab.do_up)
        assert served(world, after) == ("org/model", "ready")
        whole(world, after)
        asked = read_order(world.machines["gpu1"].volumes["vcluster-lab-state"].files["wanted.json"]).wanted
        assert asked
        if readdressed == "gpu1":
            assert asked.replica.host == address
            assert f"--host={address}" in asked.replica.leader.argv
        else:
            assert [*asked.replica.ranks] == [address]
