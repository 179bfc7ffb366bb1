"""Generated secrets outlive the containers that use them; what holds secrets is never emptied, and never disagrees."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.support import landed
from tests.support.depth import cases
from tests.support.figures import record
from tests.support.sim import lab, make, oracle
from tests.support.sim.faults import Fault, Script
from tests.support.sim.world import Volume, World, belongs_to_lab
from vllm_cluster.kernel.errors import HostError, UsageError
from vllm_cluster.kernel.hosts.runtime import Runtime
from vllm_cluster.kernel.hosts.secrets import secret_id
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.plan.kept import secret_ids
from vllm_cluster.kernel.plan.spec import CLUSTER, SECRET
from vllm_cluster.serving.cluster.up import FIRST_KEY
from vllm_cluster.serving.endpoint import endpoint, tunnel
from vllm_cluster.serving.endpoint.rotate import rotate
from vllm_cluster.serving.head import at_head

# Killed at each call the runs take 30 s of processor time; in CI at every third, so that both kinds of kill alternate.
STEP = cases(3, 3, 1)


def key(world: World, inventory: Inventory) -> str:
    """What `vcluster endpoint --key` prints."""
    nowhere = Path("/no/cache")  # no tunnel is open
    found = lab.succeed(world, inventory, lambda i, _, runtime: endpoint.key(i, nowhere, runtime=runtime))
    return str(found.value)


def announced(outcome: lab.Outcome) -> list[str]:
    """How a run announced a new key."""
    return [event.kind for event in outcome.events if event.data.get("code") == "new-api-key"]


# fault: kernel/node/secret_files.py: not labels.items() <= has.items() and →
@pytest.mark.promise("P1", "P33")
@pytest.mark.slow
def test_the_key_survives_a_recreation_that_is_killed_anywhere() -> None:
    before, after = make.inventory(2), make.inventory(2, environment={"A": "1"})
    points = kills = 0
    world = make.world()
    with lab.inside(world):
        first = lab.run(world, before, lab.do_up)
        assert announced(first) == ["note"]
        # No client has an older one yet.
        assert [event.text for event in first.events if event.data.get("code")] == [FIRST_KEY]
        had = key(world, before)
    start = world.snapshot()
    while True:
        world = World.again(start)
        with lab.inside(world):
            crash = Script({points: Fault.KILLED_AFTER if points % 2 else Fault.KILLED}, spare=points % 5)
            cut = lab.run(world, after, lab.do_up, crash)
            if cut.error is None:
                break
            kills += 1
            world.clock.sleep(20)
            healed = lab.run(world, after, lab.do_up)
            assert healed.error is None, f"{points}: {cut.story()}\n{healed.story()}"
            assert announced(cut) + announced(healed) == []
            assert key(world, after) == had, f"{points}: {cut.story()}"
            oracle.converged(world, after)
        points += STEP
    assert kills > 60 // STEP
    record(
        "P1", "sim: up killed at each call while the nodes are recreated", f"{kills} of {kills} keep the API key", True
    )


@pytest.mark.promise("P33")
@pytest.mark.parametrize("gone", [("gpu1",), ("gpu2",), ("gpu1", "gpu2")])
def test_the_key_survives_docker_rm(gone: tuple[str, ...]) -> None:
    world, inventory = make.world(), make.inventory(2)
    with lab.inside(world):
        lab.run(world, inventory, lab.do_up)
        had = key(world, inventory)
        for name in gone:
            machine = world.machines[name]
            machine.boxes = {i: box for i, box in machine.boxes.items() if not belongs_to_lab(box)}
        outcome = lab.succeed(world, inventory, lab.do_up)
        assert announced(outcome) == []
        assert key(world, inventory) == had
        oracle.converged(world, inventory)


@pytest.mark.promise("P33")
@pytest.mark.slow
def test_the_key_survives_an_upgrade_that_is_killed_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The volume of version 0.1.0 is emptied by name and has no label of what it holds."""
    # The ids on its labels are real ones.
    monkeypatch.setattr(lab, "fast_secret_id", cache(secret_id))
    points = kills = 0
    world, inventory = landed.serving()
    start = world.snapshot()
    while True:
        world = World.again(start)
        head = world.machines["gpu1"]
        had = next(c for name, c in head.volumes["vcluster-lab-secrets"].files.items() if name.startswith("api-key"))
        with lab.inside(world):
            cut = lab.run(world, inventory, lab.do_up, Script({points: (Fault.KILLED, Fault.KILLED_AFTER)[points % 2]}))
            kills += cut.error is not None
            if cut.error is not None:
                world.clock.sleep(20)
                healed = lab.run(world, inventory, lab.do_up)
                assert healed.error is None, f"{points}: {cut.story()}\n{healed.story()}"
                assert announced(cut) + announced(healed) == []
            assert key(world, inventory) == had.decode(), f"{points}: {cut.story()}"
            assert [name for name in head.volumes if name == "vcluster-lab-secrets"] == []
        if cut.error is None:
            break
        points += STEP
    assert kills > 40 // STEP


@pytest.mark.promise("P33")
def test_the_key_moves_with_the_head() -> None:
    world, inventory, moved = make.world(), make.inventory(2), make.inventory(2, head="gpu2")
    with lab.inside(world):
        lab.run(world, inventory, lab.do_up)
        had = key(world, inventory)
        for now in (moved, inventory):
            outcome = lab.succeed(world, now, lab.do_up)
            assert announced(outcome) == []
            assert key(world, now) == had
            oracle.converged(world, now)


# `vcluster endpoint --rotate 10m`.
ROTATE = lab.verb(lambda *words, **more: rotate(*words, **more)[0], grace=600)


def test_a_rotated_key_survives_up_a_recreation_and_a_move_of_the_head() -> None:
    world, inventory = make.world(), make.inventory(2)
    with lab.inside(world):
        lab.run(world, inventory, lab.do_up)
        first, boxes = key(world, inventory), dict(world.machines["gpu1"].boxes)
        rotated = lab.succeed(world, inventory, ROTATE)
        assert key(world, inventory) == rotated.value != first
        # Nothing was made again for it, and nothing is to do.
        assert world.machines["gpu1"].boxes == boxes
        assert lab.run(world, inventory, lab.do_plan).value.empty
        for now in (
            make.inventory(2),
            make.inventory(2, environment={"A": "1"}),
            make.inventory(2, environment={"A": "1"}, head="gpu2"),
        ):
            outcome = lab.succeed(world, now, lab.do_up)
            assert announced(outcome) == []
            assert key(world, now) == rotated.value
            oracle.converged(world, now)
        again = lab.run(world, now, ROTATE)
        assert key(world, now) == again.value not in (first, rotated.value)


def test_a_rotation_that_is_killed_anywhere_leaves_a_key() -> None:
    points = kills = 0
    while True:
        world, inventory = make.world(), make.inventory(2)
        with lab.inside(world):
            lab.run(world, inventory, lab.do_up)
            first = key(world, inventory)
            cut = lab.run(world, inventory, ROTATE, Script({points: (Fault.KILLED, Fault.KILLED_AFTER)[points % 2]}))
            if cut.error is None:
                break
            kills += 1
            world.clock.sleep(20)
            left = key(world, inventory)
            healed = lab.run(world, inventory, lab.do_up)
            assert healed.error is None, f"{points}: {cut.story()}\n{healed.story()}"
            assert key(world, inventory) == left, f"{points}: {cut.story()}"
            oracle.converged(world, inventory)
            assert (lab.run(world, inventory, ROTATE).value == key(world, inventory)) and left != key(world, inventory)
        points += 1
    assert kills > 8
    assert first


# fault: serving/head.py: return key_file(content, head.name).key if content else None → return None
# fault: serving/endpoint/tunnel.py: if now and now != self._key: → if False:
# fault: serving/endpoint/tunnel.py: if now and now != self._key: → if now != self._key:
# fault: serving/head.py: return runtime.secret_id(inventory.cluster, NAME, key) → return "one of all"
def test_a_tunnel_learns_the_key_of_its_end_from_the_key_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its label any host could pass for another cluster's head; a rotation leaves the label as it is."""
    world, inventory, found = make.world(), make.inventory(2), list[str]()

    def learn(inventory: Inventory, _emit: object, runtime: Runtime) -> None:
        with at_head(inventory, runtime) as head:
            end = tunnel._KeyAtEnd(inventory, head, runtime)
            found.append(end.key_id())
            rotated.append(lab.succeed(world, inventory, ROTATE).value)
            found.append(end.key_id())
            # While `up` makes the node again, the end of the connection is the same.
            monkeypatch.setattr(tunnel, "key_now", lambda *_: None)
            found.append(end.key_id())

    rotated = list[str]()
    with lab.inside(world):
        lab.succeed(world, inventory, lab.do_up)
        before = key(world, inventory)
        lab.succeed(world, inventory, learn)
    first, second = (lab.fast_secret_id("lab", "api-key", text) for text in (before, *rotated))
    assert found == [first, second, second]
    assert first != second


# fault: kernel/hosts/connection.py: return self._docker_id if self.docker else "" → return self._docker_id
def test_a_rotation_names_why_the_docker_of_the_head_does_not_answer() -> None:
    """The lease of a host is by its engine."""
    world, inventory = make.world(), make.inventory(2)
    with lab.inside(world):
        lab.succeed(world, inventory, lab.do_up)
        world.machines["gpu1"].docker = "stopped"
        error = lab.run(world, inventory, ROTATE).error
        assert isinstance(error, HostError) and "Docker does not answer" in str(error)


def test_a_key_of_the_inventory_is_rotated_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "a-key-of-mine")
    world, inventory = make.world(), make.inventory(2, api_key="env:KEY")
    with lab.inside(world):
        lab.run(world, inventory, lab.do_up)
        refused = lab.run(world, inventory, ROTATE)
        assert isinstance(refused.error, UsageError)
        assert not refused.script.calls


# fault: serving/cluster/up.py: if "api-key" in seen.secrets.new: → if "none" in seen.secrets.new:
@pytest.mark.promise("P33")
@pytest.mark.parametrize("lost", ["cut off", "gone"])
def test_a_key_that_is_lost_is_replaced_and_announced(lost: str) -> None:
    """The container was removed and the file on the volume is not what its name promises."""
    world, inventory = make.world(), make.inventory(2)
    with lab.inside(world):
        lab.run(world, inventory, lab.do_up)
        had = key(world, inventory)
        head = world.machines["gpu1"]
        head.boxes = {i: box for i, box in head.boxes.items() if not belongs_to_lab(box)}
        volume = next(volume for name, volume in head.volumes.items() if "-secrets-" in name)
        files = {name: content for name, content in volume.files.items() if not name.startswith("api-key")}
        volume.files = (
            files if lost == "gone" else {**volume.files, **{n: b"x" for n in volume.files if n not in files}}
        )
        outcome = lab.succeed(world, inventory, lab.do_up)
        assert announced(outcome) == ["warning"]
        assert key(world, inventory) != had
        oracle.converged(world, inventory)
        removed = lab.run(world, inventory, lab.do_down)
        assert "API key is removed" in " ".join(event.text for event in removed.events)
        assert announced(lab.run(world, inventory, lab.do_up)) == ["note"]


# fault: kernel/plan/diff.py: restarting" and f"({NO_SECRETS})" in container.status → none"
def test_a_node_whose_secrets_are_gone_is_recreated() -> None:
    """Docker made its volume again, empty and without the labels of what it should hold."""
    world, inventory = make.world(), make.inventory(2)
    with lab.inside(world):
        lab.run(world, inventory, lab.do_up)
        for name, kept in (("gpu2", True), ("gpu1", False)):
            machine = world.machines[name]
            node = machine.box("vcluster-lab")
            assert node
            had = key(world, inventory)
            volume = next(name for name in machine.volumes if "-secrets-" in name)
            machine.volumes[volume] = Volume(volume, {CLUSTER: "lab"})
            world.stop(machine, node)
            world.start(machine, node)
            planned = lab.run(world, inventory, lab.do_plan).value
            assert "its secret files are missing" in "".join(operation.text for operation in planned.operations())
            outcome = lab.succeed(world, inventory, lab.do_up)
            oracle.converged(world, inventory)
            assert (key(world, inventory) == had) is kept
            assert announced(outcome) == ([] if kept else ["warning"])


# fault: kernel/node/secret_files.py: labels.get(ID, spec.cluster_id) == spec.cluster_id → spec
def test_what_is_not_used_any_more_is_removed_and_what_others_use_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    world, inventory = make.world(), make.inventory(2, api_key="env:KEY")
    head = world.machines["gpu1"]
    for value in ("first-key", "second-key"):
        monkeypatch.setenv("KEY", value)
        head.volumes["vcluster-lab-secrets"] = Volume("vcluster-lab-secrets", {}, {"file": b"precious"})
        head.volumes["data"] = Volume("data", {CLUSTER: "lab"}, {"file": b"theirs"})
        with lab.inside(world):
            lab.succeed(world, inventory, lab.do_up)
            assert key(world, inventory) == value
        held = [volume for name, volume in head.volumes.items() if "-secrets-" in name]
        assert [secret_ids(volume.labels).keys() for volume in held] == [{"ray-token", "api-key"}]
        assert head.volumes["vcluster-lab-secrets"].files == {"file": b"precious"}
        assert head.volumes["data"].files == {"file": b"theirs"}


# fault: serving/look_up.py: , read=False →
@pytest.mark.parametrize("verb", [lab.do_serve, lab.do_stop, lab.do_down])
def test_only_up_needs_the_secrets_of_this_laptop(verb: lab.Verb, monkeypatch: pytest.MonkeyPatch) -> None:
    """A colleague who may serve need not have the token with which the nodes were made."""
    world, inventory = make.world((2,)), make.inventory(1, hf_token="env:SOMEBODYS_TOKEN")
    monkeypatch.setenv("SOMEBODYS_TOKEN", "hf_canary")
    with lab.inside(world):
        assert lab.run(world, inventory, lab.do_up).error is None
        monkeypatch.delenv("SOMEBODYS_TOKEN")
        ended = lab.run(world, inventory, verb)
    assert ended.error is None, ended.story()


@pytest.mark.promise("P3", "P19")
def test_an_old_volume_on_an_empty_head_host_is_not_counted_on() -> None:
    """Without an image there, nothing can read the volume: `plan` must not count on what its labels name."""
    world, inventory = make.world(), make.inventory(2)
    with lab.inside(world):
        lab.succeed(world, inventory, lab.do_up)
        head = world.machines["gpu1"]
        head.boxes, head.volumes, head.images = {}, {}, {}
        labels = {CLUSTER: "lab", f"{SECRET}ray-token": "000", f"{SECRET}api-key": "111"}
        name = "vcluster-lab-secrets-0123456789ab"
        head.volumes[name] = Volume(name, labels, {"ray-token-000": b"old"})
        before = lab.run(world, inventory, lab.do_plan)
        after = lab.run(world, inventory, lab.do_up)
        oracle.honest(before, after, inventory)
        assert after.error is None, after.story()
