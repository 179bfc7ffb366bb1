"""Two hosts that have what a head has, as while one moves: what they hold is compared, or a person decides.

Labels show no rotation, and memory cannot know that another laptop has moved the head on.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from functools import partial

import pytest

from tests.support.figures import record
from tests.support.sim import lab, make
from tests.support.sim.faults import Fault, Script
from tests.support.sim.heads import (
    EVIL,
    api_keys,
    claim_head,
    contents,
    empty,
    files,
    follow,
    follow_first,
    forge_key,
    labels_of,
    move_elsewhere,
    report,
)
from tests.support.sim.make import inventory_of as inventory
from tests.support.sim.world import Machine, World
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.plan.spec import ID, ROLE
from vllm_cluster.wire.keys import KeyFile

THERE, MOVED = inventory(1, 2, 3), inventory(3, 2, 1)
PAIR, PAIR_MOVED = inventory(2, 1), inventory(1, 2)


def keys_of(machine: Machine) -> set[str]:
    """The API keys that clients may use there."""
    return {KeyFile.read(content.decode()).key for content in api_keys(machine)}


def rotate(machine: Machine, key: str) -> None:
    """What `endpoint --rotate` writes: its file and its labels keep their names."""
    for volume in machine.volumes.values():
        for name in [one for one in volume.files if one.startswith("api-key")]:
            volume.files[name] = KeyFile(key, lab.fast_secret_id("lab", "api-key", key)).text().encode()


def is_head(machine: Machine) -> bool:
    """Whether its node is the head."""
    return any(box.labels.get(ROLE) == "head" for box in machine.boxes.values())


def bring_up(world: World, wanted: Inventory, true_id: str, *, first: bool = False) -> str:
    """Bring it up, and do what each refusal prints, or what is `first` in it; returns all that a person reads."""
    todo, text = [wanted], ""
    for _ in range(8):
        before, outcome = contents(world), lab.run(world, todo[0], lab.do_up)
        text += report(outcome)
        if lab.code(outcome) == 0:
            todo.pop(0)
            if not todo:
                return text
            continue
        assert (lab.code(outcome), contents(world)) == (3, before), outcome.story()
        if first and "it is not certain" in report(outcome):
            todo[:1] = follow_first(todo[0], report(outcome))
        else:
            todo[:1] = follow(world, todo[0], report(outcome), true_id, gone=False)
    raise AssertionError(text)


# fault: kernel/assess.py: require_one_head(inventory, facts, fleet) → pass
@pytest.mark.promise("P33", "P1")
@pytest.mark.parametrize("rotated", [False, True], ids=["", "rotated"])
@pytest.mark.parametrize("share", [0.5, 0.52, 0.54, 0.56, 0.58, 0.6])
def test_a_move_that_broke_off_and_a_head_that_lost_its_container_lose_neither_key_nor_order(
    share: float, rotated: bool
) -> None:
    """The target had a copy of the key, and so its old key and no order were taken in silence."""
    with lab.cluster(3, lab.do_up, lab.do_serve) as world:
        true_id, start = next(iter(labels_of(world.machines["gpu1"])))[ID], world.snapshot()
        calls = len(lab.succeed(world, MOVED, lab.do_up).script.calls)
    world = World.again(start)
    with lab.inside(world):
        lab.run(world, MOVED, lab.do_up, Script({int(calls * share): Fault.KILLED}))
        first = world.machines["gpu1"]
        assert is_head(first)
        if rotated:
            rotate(first, "sk-rotated")
        keys = keys_of(first)
        first.boxes.clear()
        world.api_key = None
        bring_up(world, MOVED, true_id)
        head = world.machines["gpu3"]
        assert keys_of(head) == keys
        assert b"org/model" in files(head)["wanted.json"]
    record("P33", "sim: a move breaks off, the head loses its container", "key and order kept", True)


FORGE: dict[str, Callable[[Machine], object]] = {
    "another API key": lambda machine: rotate(machine, "sk-chosen"),
    "another order": lambda machine: None,
}


# fault: kernel/apply/two_heads.py: if not given and other.key and other.key != base.key and not copied: → if False:
# fault: kernel/apply/two_heads.py: return "it has another order" → return ""
@pytest.mark.promise("P47")
@pytest.mark.parametrize("forged", FORGE)
def test_a_former_head_with_the_labels_of_before_chooses_neither_key_nor_order(forged: str) -> None:
    """Of two hosts, no third one shows that the head had moved."""
    world = make.world((2, 2))
    with lab.inside(world):
        move_elsewhere(world, PAIR, PAIR_MOVED)
        head, liar = world.machines["gpu1"], world.machines["gpu2"]
        keys, true = keys_of(head), {name: text for name, text in files(head).items() if name.startswith("api-key")}
        labels = {key: text for row in labels_of(head) for key, text in row.items() if key.endswith("api-key")}
        claim_head(world, own=True)
        for row in labels_of(liar):
            row.update({key: text for key, text in labels.items() if key in row})
        for volume in liar.volumes.values():
            if "secrets" in volume.name:
                volume.files = {name: text for name, text in volume.files.items() if "api-key" not in name} | true
        FORGE[forged](liar)
        head.boxes.clear()
        world.api_key = None
        refused = lab.run(world, PAIR_MOVED, lab.do_up)
        assert lab.code(refused) == 3, refused.story()
        (text,) = re.findall(r"gpu2 \(([^)]*)\)", str(refused.error))
        assert text.startswith(f"its node is the head, this machine made it that, it has {forged} than gpu1"), text
        assert keys_of(head) == keys and EVIL not in files(head)["wanted.json"]


# fault: kernel/checks/heads.py: (own or all(one.trusted and one.runs for one in claims)) → True
@pytest.mark.promise("P33")
@pytest.mark.parametrize("known", [True, False], ids=["made here", "not known here"])
def test_a_new_machine_with_the_address_of_the_head_takes_over_what_it_left(known: bool) -> None:
    """Its volumes name the address that the new one has now: they counted as nothing of a head, and were removed."""
    with lab.cluster(3, lab.do_up, lab.do_serve) as world:
        first, third = world.machines["gpu1"], world.machines["gpu3"]
        keys, true_id = keys_of(first), next(iter(labels_of(first)))[ID]
        empty(third)
        first.boxes.clear()
        first.address, third.address = "10.0.0.9", "10.0.0.1"
        if not known:
            world.heads.clear()
        world.api_key = None
        now = {
            **MOVED.hosts,
            "gpu1": MOVED.hosts["gpu1"].model_copy(update={"address": "10.0.0.9"}),
            "gpu3": MOVED.hosts["gpu3"].model_copy(update={"address": "10.0.0.1"}),
        }
        bring_up(world, MOVED.model_copy(update={"hosts": now}), true_id)
        assert keys_of(third) == keys
        assert b"org/model" in files(third)["wanted.json"]


# fault: kernel/checks/heads.py: certain = sum(one.runs for one in claims) < 2 and → certain = True or
@pytest.mark.promise("P33")
def test_of_two_nodes_that_are_the_head_none_goes_without_a_question() -> None:
    """Key and order are those of both; history and batches are not."""
    with lab.cluster(3, lab.do_up, lab.do_serve) as world:
        former = world.machines["gpu3"]
        lab.succeed(world, MOVED, lab.do_up)
        old = {name: copy.deepcopy(getattr(former, name)) for name in ("boxes", "volumes")}
        lab.succeed(world, THERE, lab.do_up)
        for name, what in old.items():
            setattr(former, name, what)
        before, refused = contents(world), lab.run(world, MOVED, lab.do_up)
        assert (lab.code(refused), contents(world)) == (3, before), refused.story()
        assert follow_first(MOVED, report(refused))[0].keep == "gpu1"


@pytest.mark.promise("P33", "P47")
@pytest.mark.parametrize("numbers", [(1, 3), (1, 2, 3)], ids=["two hosts", "three hosts"])
@pytest.mark.parametrize("before", [False, True], ids=["added as the head", "added first"])
def test_a_former_head_that_comes_back_gives_no_key_that_was_revoked(numbers: tuple[int, ...], before: bool) -> None:
    """It was off while another host took its place, and was made the head in the edit that added it again."""
    world = make.world((2, 2, 2))
    last = numbers[-1]
    all_, rest = inventory(last, *numbers[:-1]), inventory(*numbers[:-1])
    with lab.inside(world):
        lab.succeed(world, all_, lab.do_up)
        lab.succeed(world, all_, lab.do_serve)
        true_id = labels_of(world.machines[f"gpu{last}"])[0][ID]
        pinned = {"id": true_id}
        world.machines[f"gpu{last}"].reachable = False
        world.new_keys += 1
        world.api_key = None
        lab.succeed(world, rest.model_copy(update=pinned), lab.do_up)
        lab.succeed(world, rest.model_copy(update=pinned), lab.do_serve)
        rotate(world.machines["gpu1"], "sk-rotated")
        world.machines[f"gpu{last}"].reachable = True
        wanted = inventory(*numbers) if before else all_
        bring_up(world, wanted.model_copy(update=pinned), true_id, first=True)
        assert keys_of(world.machines[wanted.head_name]) == {"sk-rotated"}


LIES: dict[str, tuple[Callable[[World], object], Inventory, Inventory]] = {
    "it names itself": (lambda world: claim_head(world, "gpu1", "gpu2", own=True), inventory(2, 1, 3), MOVED),
    "by its volumes": (lambda world: forge_key(world.machines["gpu2"]), THERE, MOVED),
    "by its volumes, and nothing moves": (lambda world: forge_key(world.machines["gpu2"]), THERE, THERE),
    "by its volumes, and is to be the head": (lambda world: forge_key(world.machines["gpu3"]), THERE, MOVED),
}


# fault: kernel/checks/heads.py: looks, *steps → looks, *reversed(steps)
@pytest.mark.promise("P47")
@pytest.mark.parametrize("pinned", [False, True], ids=["", "id"])
@pytest.mark.parametrize("gone", [False, True], ids=["the head is there", "its container is gone"])
@pytest.mark.parametrize("lie", LIES)
def test_who_takes_the_first_step_gives_no_host_the_word_of_a_liar(lie: str, gone: bool, pinned: bool) -> None:
    """The first step removed the true head, or made the liar the head, by what the liar's labels showed."""
    claims, there, wanted = LIES[lie]
    with lab.cluster(3) as world:
        lab.succeed(world, there, lab.do_up)
        lab.succeed(world, there, lab.do_serve)
        head = world.machines[there.head_name]
        keys, true_id = keys_of(head), labels_of(head)[0][ID]
        claims(world)
        if gone:
            head.boxes.clear()
        world.api_key = None
        bring_up(world, wanted.model_copy(update={"id": true_id if pinned else None}), true_id, first=True)
        assert keys_of(world.machines[wanted.head_name]) == keys
        assert EVIL not in files(world.machines[wanted.head_name])["wanted.json"]
    record(
        "P47", "sim: hosts that call themselves the head, and the first step of each refusal", "the head's key", True
    )


@pytest.mark.promise("P47")
@pytest.mark.parametrize("own", [False, True], ids=["", "by its own address"])
@pytest.mark.parametrize("gone", [False, True], ids=["the head is there", "its container is gone"])
def test_a_host_whose_node_calls_itself_the_head_becomes_it_with_no_key_of_its_own(gone: bool, own: bool) -> None:
    """Once it was to be the head, by the id that the product printed, all of the true head went without a word."""
    with lab.cluster(3, lab.do_up, lab.do_serve) as world:
        head, true_id = world.machines["gpu1"], labels_of(world.machines["gpu1"])[0][ID]
        keys = keys_of(head)
        claim_head(world, "gpu3", own=own)
        if gone:
            head.boxes.clear()
        world.api_key = None
        todo = [MOVED.model_copy(update={"id": true_id})]
        for _ in range(6):
            outcome = lab.run(world, todo[0], lab.do_up)
            todo = todo[1:] if lab.code(outcome) == 0 else follow_first(todo[0], report(outcome))
            assert keys_of(head) == keys and b"org/model" in files(head)["wanted.json"], outcome.story()


# fault: kernel/apply/two_heads.py: copied = claim.trusted and not base.key → copied = not base.key
@pytest.mark.promise("P33")
@pytest.mark.parametrize("share", [0.5, 0.52, 0.54, 0.56, 0.58, 0.6])
def test_a_key_that_was_cut_off_on_its_way_takes_the_place_of_no_whole_one(share: float) -> None:
    """A laptop without memory made a new key, and the head's own went, where no node ran without a question."""
    with lab.cluster(3, lab.do_up, lab.do_serve) as world:
        true_id, start = labels_of(world.machines["gpu1"])[0][ID], world.snapshot()
        calls = len(lab.succeed(world, MOVED, lab.do_up).script.calls)
    world = World.again(start)
    with lab.inside(world):
        lab.run(world, MOVED, lab.do_up, Script({int(calls * share): Fault.KILLED}))
        keys = keys_of(world.machines["gpu1"])
        for volume in world.machines["gpu3"].volumes.values():
            volume.files |= {name: b"" for name in volume.files if name.startswith("api-key")}
        world.machines["gpu1"].boxes.clear()
        world.heads.clear()
        world.api_key = None
        bring_up(world, MOVED.model_copy(update={"id": true_id}), true_id)
        assert keys_of(world.machines["gpu3"]) == keys


# fault: kernel/plan/identity.py: known = _known_heads(facts).head → known = next(iter(_known_heads(facts).every), None)
@pytest.mark.promise("P47", "P32")
def test_of_two_heads_with_one_address_this_machine_knows_which_is_which() -> None:
    """`down` removed the worker of the other cluster, which the inventory named too."""
    world = make.world((2, 2, 2, 2))
    world.machines["gpu4"].address = "10.0.0.1"
    theirs = inventory(4, 3)
    hosts = {**theirs.hosts, "gpu4": theirs.hosts["gpu4"].model_copy(update={"address": "10.0.0.1"})}
    with lab.inside(world):
        lab.succeed(world, theirs.model_copy(update={"hosts": hosts}), lab.do_up)
        lab.succeed(world, inventory(1, 2), lab.do_up)
        empty(world.machines["gpu2"])
        world.machines["gpu1"].reachable = False
        outcome = lab.run(world, inventory(1, 2, 3), partial(lab.do_down))
        assert (lab.code(outcome), outcome.script.changing) == (3, []), outcome.story()
        assert "gpu3: vcluster-lab belongs to another cluster" in report(outcome)


@pytest.mark.promise("P1")
def test_a_person_who_names_a_host_that_was_no_head_is_refused() -> None:
    with lab.cluster(3, lab.do_up) as world:
        refused = lab.run(world, MOVED.model_copy(update={"keep": "gpu2"}), lab.do_up)
        assert (lab.code(refused), refused.script.changing) == (3, [])
        assert "gpu2: it has nothing that a head has" in report(refused)
        refused = lab.run(world, THERE.model_copy(update={"keep": ""}), lab.do_up)
        assert (lab.code(refused), refused.script.changing) == (3, [])
        assert "gpu1: it has what a head has" in report(refused)


# fault: serving/cluster/up.py: if inventory.keep in sources: → if False:
@pytest.mark.promise("P33")
@pytest.mark.parametrize("pinned", [False, True], ids=["", "id"])
@pytest.mark.parametrize("share", [0.3, 0.4, 0.5, 0.55, 0.6, 0.7, 0.8, 0.9])
def test_a_move_from_a_host_that_a_person_named_is_continued_without_that_word(share: float, pinned: bool) -> None:
    """The host to which it went was remembered as the head before anything was there, and came first."""
    with lab.cluster(3, lab.do_up, lab.do_serve) as world:
        true_id = labels_of(world.machines["gpu1"])[0][ID]
        world.heads.clear()
        # Without `id:` a laptop that knows nothing has to look at the cluster once.
        wanted = MOVED.model_copy(update={"id": true_id})
        named, start = wanted.model_copy(update={"keep": "gpu1"}), world.snapshot()
        calls = len(lab.succeed(world, named, lab.do_up).script.calls)
    world = World.again(start)
    with lab.inside(world):
        keys = keys_of(world.machines["gpu1"])
        lab.run(world, named, lab.do_up, Script({int(calls * share): Fault.KILLED}))
        world.api_key = None
        bring_up(world, wanted if pinned else MOVED, true_id, first=True)
        head = world.machines["gpu3"]
        assert (keys_of(head), b"org/model" in files(head)["wanted.json"]) == (keys, True)


# fault: serving/cluster/up.py: made=made, done=done or there) → made=made)
@pytest.mark.promise("P47")
@pytest.mark.parametrize("pinned", [False, True], ids=["", "id"])
@pytest.mark.parametrize("wiped", [False, True], ids=["the head is there", "another machine in its place"])
@pytest.mark.parametrize("share", [0.4, 0.6, 0.9])
def test_a_host_to_which_a_move_only_began_is_not_believed(share: float, wiped: bool, pinned: bool) -> None:
    """It was remembered as the head from the first moment, and its key and order were taken without a question."""
    pair = inventory(1, 3)
    with lab.cluster(3) as world:
        lab.succeed(world, pair, lab.do_up)
        lab.succeed(world, pair, lab.do_serve)
        head, true_id, start = world.machines["gpu1"], labels_of(world.machines["gpu1"])[0][ID], world.snapshot()
        calls = len(lab.succeed(world, inventory(3, 1), lab.do_up).script.calls)
    world = World.again(start)
    with lab.inside(world):
        lab.run(world, inventory(3, 1), lab.do_up, Script({int(calls * share): Fault.KILLED}))
        head = world.machines["gpu1"]
        keys = keys_of(head)
        if not world.machines["gpu3"].volumes or not is_head(head):
            return
        claim_head(world, "gpu3", own=True)
        if wiped:
            empty(head)
        world.api_key = None
        wanted = pair.model_copy(update={"id": true_id if pinned else None})
        refused = lab.run(world, wanted, lab.do_up)
        assert lab.code(refused) == 3, refused.story()
        assert not re.search(r"gpu3 \([^)]*made it that", report(refused)), report(refused)
        assert (
            wiped
            or "belongs to another cluster" in report(refused)
            or follow_first(wanted, report(refused))[0].keep == "gpu1"
        )
        assert keys_of(head) == (set() if wiped else keys)


# fault: serving/cluster/up.py: for one in others if one.host != inventory.keep) → for one in ())
@pytest.mark.promise("P1", "P33")
def test_what_the_host_that_becomes_the_head_has_of_one_is_named_before_it_goes() -> None:
    with lab.cluster(3, lab.do_up, lab.do_serve) as world:
        forge_key(world.machines["gpu3"])
        person = lab.Person(False)
        outcome = lab.run(world, MOVED.model_copy(update={"keep": "gpu1"}), partial(lab.do_up, confirm=person))
        assert "give up the API key, order, history and batches that gpu3 kept as a head" in person.asked[0]
        assert outcome.script.changing == []


# fault: serving/cluster/down.py: if one.host not in self._mine.heads) → if False)
@pytest.mark.promise("P1")
def test_down_names_what_another_host_has_of_a_head() -> None:
    with lab.cluster(3, lab.do_up, lab.do_serve) as world:
        claim_head(world)
        person = lab.Person(False)
        lab.run(world, THERE, partial(lab.do_down, confirm=person))
        assert "give up the API key, order, history and batches that gpu2 kept as a head" in person.asked[0]


# fault: kernel/checks/heads.py: if inventory.keep and inventory.keep not in (one.host for one in claims): → if False:
@pytest.mark.promise("P33")
def test_a_word_that_is_no_longer_true_takes_no_key_away() -> None:
    """A script had it, and a colleague has moved the head since."""
    with lab.cluster(3, lab.do_up, lab.do_serve) as world:
        lab.succeed(world, MOVED, lab.do_up)
        keys = keys_of(world.machines["gpu3"])
        refused = lab.run(world, THERE.model_copy(update={"keep": "gpu1"}), lab.do_up)
        assert (lab.code(refused), refused.script.changing) == (3, [])
        assert keys_of(world.machines["gpu3"]) == keys


# fault: serving/cluster/up.py: there = not sources and inventory.head_name in → there = not sources or inventory.head_name in
@pytest.mark.promise("P47")
@pytest.mark.parametrize("share", [0.3, 0.4, 0.5])
@pytest.mark.parametrize("back", [False, True], ids=["another machine in its place", "the head is back"])
def test_a_head_that_was_given_up_too_soon_is_first_once_it_is_back(share: float, back: bool) -> None:
    """The run that made another one broke off, and that was remembered as one that this machine had made."""
    away = inventory(3, 2)
    with lab.cluster(3, lab.do_up, lab.do_serve) as world:
        true_id = labels_of(world.machines["gpu1"])[0][ID]
        pinned = away.model_copy(update={"id": true_id})
        world.machines["gpu1"].reachable = False
        world.heads.clear()
        world.new_keys += 1
        world.api_key = None
        start = world.snapshot()
        calls = len(lab.succeed(world, pinned, lab.do_up).script.calls)
    world = World.again(start)
    with lab.inside(world):
        lab.run(world, pinned, lab.do_up, Script({int(calls * share): Fault.KILLED}))
        head = world.machines["gpu1"]
        head.reachable, keys = True, keys_of(head)
        if not back:
            claim_head(world, "gpu3", own=True)
            empty(head)
            refused = lab.run(world, inventory(1, 3).model_copy(update={"id": true_id}), lab.do_up)
            assert lab.code(refused) == 3, refused.story()
            return
        bring_up(world, THERE.model_copy(update={"id": true_id}), true_id, first=True)
        assert (keys_of(head), b"org/model" in files(head)["wanted.json"]) == (keys, True)
