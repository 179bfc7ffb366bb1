"""Promises that have one attack each, in the simulated world."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.support.depth import FULL
from tests.support.figures import record
from tests.support.sim import lab, make, oracle
from tests.support.sim.faults import Call, Fault, Killed, Script
from tests.support.sim.lab import Outcome, code
from tests.support.sim.world import Box, Volume, World
from vllm_cluster.kernel.errors import InventoryError, PreflightFailed, VclusterError
from vllm_cluster.kernel.images.supply import PULL_SECONDS
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.plan.spec import FORMAT_LABEL, VERSION
from vllm_cluster.kernel.shell_line import Pasted
from vllm_cluster.kernel.terminal.session import Session


def node(world: World, host: str) -> Box:
    """The node's container on a host."""
    box = world.machines[host].box("vcluster-lab")
    assert box
    return box


def failure(outcome: Outcome) -> VclusterError:
    """The error that a run ended with."""
    assert isinstance(outcome.error, VclusterError), outcome.story()
    return outcome.error


@pytest.mark.promise("P18")
@pytest.mark.parametrize("fault", [Fault.SILENT, Fault.LOST, Fault.REFUSED, Fault.ERROR, Fault.KILLED])
@pytest.mark.parametrize(
    "words", ["docker pull", "docker start", "output of", "/build", "archive", "docker exec", "/start"]
)
def test_no_call_is_without_an_end(fault: Fault, words: str) -> None:
    world, inventory = make.world((2,), present=False), make.inventory(1, backend="ray")
    with lab.inside(world):
        broken = lab.run(world, inventory, lab.do_up, first(words, fault))
        # Only the line of history may be missed without an error: what it is about has been done.
        warned = any("has no line for this up" in event.text for event in broken.events if event.kind == "warning")
        assert broken.error is not None or (words == "docker exec" and warned), broken.story()
        assert broken.seconds < PULL_SECONDS + 100, "it waited longer than any deadline"
        world.settle()
        assert lab.run(world, inventory, lab.do_up).error is None
        oracle.converged(world, inventory)


def first(words: str, fault: Fault, host: str = "") -> Script:
    """A script in which the first call with these words goes wrong."""
    script = Script()
    meant = lab.at(words, host)

    def decide(call: Call) -> Fault | None:
        return fault if meant(call) and not script.met else None

    script.by_words = decide
    return script


# ---- P24


STAGES = {
    "connect": "connect",
    "facts": "facts",
    "list": "GET /containers/json",
    "pull": "docker pull",
    "probe": "output of inspect_image",
    "build": "/build",
    "remove": "DELETE /containers",
    "volumes": "/volumes/create",
    "create": "'name': 'vcluster-lab'",
    "files": "'path': '/'",
    "start": "/start",
    "verify": "status.json",
}


@pytest.mark.promise("P24")
@pytest.mark.parametrize("stage", STAGES)
def test_one_of_eight_fails(stage: str) -> None:
    world, inventory = make.world((2,) * 8, present=False), make.inventory(8)
    with lab.inside(world):
        if stage == "remove":
            assert lab.run(world, inventory, lab.do_up).error is None
            inventory = make.inventory(8, environment={"A": "1"})
        elif stage == "start":
            assert lab.run(world, inventory, lab.do_up).error is None
            for host in inventory.hosts:
                world.stop(world.machines[host], node(world, host))
        broken = lab.run(world, inventory, lab.do_up, first(STAGES[stage], Fault.ERROR, "gpu5"))
        error = failure(broken)
        assert error.exit_code == (4 if stage == "connect" else 1)
        document = json.loads(json.dumps(error.as_json(Pasted)))
        states = {host: row["state"] for host, row in document["hosts"].items()}
        assert states == {**dict.fromkeys(inventory.hosts, "ok"), "gpu5": "failed"}
        assert document["hosts"]["gpu5"]["message"].startswith("gpu5: ")
        again = lab.succeed(world, inventory, lab.do_up)
        oracle.converged(world, inventory)
        done = {event.text for event in broken.events if event.kind == "done"}
        ran = [text for host, text in again.operations if host != "gpu5" and text in done]
        assert not ran, f"done twice: {ran}"
    attack = f"sim: 1 of 8 hosts fails at {stage}"
    figure = f"exit {error.exit_code}, 8 rows, the rerun did {len(again.operations)} operations"
    record("P24", attack, figure, True)


@pytest.mark.promise("P24")
def test_a_failing_host_has_a_row_of_its_own() -> None:
    world, inventory = make.world((2, 2, 2)), make.inventory(3)
    with lab.inside(world):
        broken = lab.run(world, inventory, lab.do_up, first("'name': 'vcluster-lab'", Fault.ERROR, "gpu2"))
    assert [event.host for event in broken.events if event.kind == "failed"] == ["gpu2"]


# fault: serving/status/status.py: UNREACHABLE if away else DOCKER_ERROR → UNREACHABLE if away or True else DOCKER_ERROR
def test_a_docker_that_fails_is_not_a_host_that_cannot_be_reached() -> None:
    world, inventory = make.world((2, 2)), make.inventory(2)
    with lab.inside(world):
        seen = lab.run(world, inventory, lab.do_status, first("GET /containers/json", Fault.ERROR, "gpu2")).value
    assert ([row.state for row in seen.hosts], seen.unreachable) == (["missing", "docker-error"], ())


# ---- P25


# fault: kernel/checks/docker.py: if node and _newer(node.labels.get(FORMAT_LABEL)): → if node and not node.labels:
@pytest.mark.promise("P25")
@pytest.mark.parametrize("label", ["4", "3.1", "next", ""])
def test_the_next_version_is_refused_politely(label: str) -> None:
    world, inventory = make.world(), make.inventory(2)
    with lab.inside(world):
        assert lab.run(world, inventory, lab.do_up).error is None
        node(world, "gpu2").labels.update({FORMAT_LABEL: label, VERSION: "9.0"})
        for verb in (lab.do_up, lab.do_plan):
            refused = lab.run(world, inventory, verb)
            assert isinstance(refused.error, PreflightFailed)
            assert "newer vcluster (9.0)" in str(refused.error)
            assert not refused.script.changing
    record("P25", f"sim: a container whose format label is {label!r}", "exit 3, nothing changed", True)


@pytest.mark.promise("P25")
def test_labels_of_other_versions_are_passed_over() -> None:
    """A container of an earlier or a later one of our format: what we do not know is nothing to us."""
    world, inventory = make.world(), make.inventory(2)
    with lab.inside(world):
        assert lab.run(world, inventory, lab.do_up).error is None
        for host in inventory.hosts:
            labels = node(world, host).labels
            labels["io.vcluster.colour"] = "blue"
            labels[VERSION] = "0.0.1"
            labels.pop(FORMAT_LABEL)
        oracle.untouched(lab.run(world, inventory, lab.do_up))
        assert lab.run(world, inventory, lab.do_down).error is None
        oracle.nothing_left(world)
    record("P25", "sim: labels of the previous version", "read; 0 operations", True)


# ---- P26


@pytest.mark.promise("P26")
def test_one_image_everywhere_also_where_a_tag_has_moved() -> None:
    """On a host that joins, on one that joins where the tag was pruned, and where a tag differs from the head's."""
    for case in ("joins", "joins a pruned one", "tags differ"):
        world, two = make.world((2, 2)), make.inventory(2)
        with lab.inside(world):
            if case != "tags differ":
                assert lab.run(world, make.inventory(1), lab.do_up).error is None
            if case == "joins a pruned one":
                picture = world.machines["gpu1"].picture(make.IMAGE)
                assert picture
                picture.tags.clear()
            world.registry[make.IMAGE] = make.base_image(2)
            world.machines["gpu2"].images.clear()
            if case == "tags differ":
                world.machines["gpu2"].images["sha256:2"] = make.base_image(2)
                world.machines["gpu2"].images["sha256:2"].tags.append(make.IMAGE)
            done = lab.run(world, two, lab.do_up)
            assert done.error is None, f"{case}: {done.story()}"
            oracle.converged(world, two)
            assert lab.run(world, two, lab.do_plan).value.empty, case
        bases = [box.labels["io.vcluster.base-image"] for _, box in world.nodes()]
        assert bases == [make.base_image(1).id] * 2, f"{case}: nodes of another image run"
        named = [event for event in done.events if event.data.get("code") == "image-differs"]
        assert bool(named) == (case == "tags differ")
        if case == "tags differ":
            assert make.IMAGE in world.machines["gpu2"].images["sha256:2"].tags, "a name was taken from its image"
    record("P26", "sim: a tag that moved before a host joined", "3 of 3 run the head's image; names are left", True)


# ---- P8, P9, P10


@pytest.mark.promise("P8")
@pytest.mark.parametrize("docker", ["missing", "stopped", "forbidden", "old"])
def test_docker_cannot_be_used(docker: str) -> None:
    world, inventory = make.world(), make.inventory(2)
    machine = world.machines["gpu2"]
    machine.docker, machine.api, machine.version = docker, "1.40" if docker == "old" else "1.47", "19.03"
    with lab.inside(world):
        for verb in (lab.do_up, lab.do_plan):
            refused = lab.run(world, inventory, verb)
            error = failure(refused)
            assert (error.exit_code, refused.script.changing) == (3, [])
            assert len(error.message.splitlines()) == len((error.hint or "").splitlines()) == 1
            assert error.message.startswith("gpu2: ")
        seen = lab.succeed(world, inventory, lab.do_status)
        assert [row.state for row in seen.value.hosts] == ["missing", "docker-error"]
        assert failure(lab.run(world, inventory, lab.do_down)).exit_code == 1
    record("P8", f"sim: Docker is {docker}", "exit 3, one finding with its fix, nothing changed", True)


@pytest.mark.promise("P9")
def test_a_clock_an_hour_off() -> None:
    for skew in (3600.0, -3600.0, 29.0):
        world, inventory = make.world((1, 1, 1)), make.inventory(3)
        world.machines["gpu1"].skew = skew
        with lab.inside(world):
            outcome = lab.succeed(world, inventory, lab.do_up)
            oracle.converged(world, inventory)
            assert two_at_once(world, make.inventory(3, environment={"A": "1"})) == (0, 75)
        codes = {event.data.get("code") for event in outcome.events if event.kind == "warning"}
        assert codes == ({"clock-skew"} if abs(skew) > 30 else set())
    record("P9", "sim: the head's clock an hour off, both ways", "warned; up in order; the lease excludes", True)


@pytest.mark.promise("P10")
def test_one_machine_under_two_names() -> None:
    world = make.world((1, 1))
    world.machines["gpu2"].machine_id = world.machines["gpu1"].machine_id
    same = make.inventory(2, {"gpu1": {"ssh": "box"}, "gpu2": {"ssh": "box"}})
    with lab.inside(world):
        by_name = lab.run(world, same, lab.do_up)
        assert isinstance(by_name.error, InventoryError)
        assert by_name.script.calls == []
        by_id = lab.run(world, make.inventory(2), lab.do_up)
        assert isinstance(by_id.error, PreflightFailed)
        assert not by_id.script.changing
    record("P10", "sim: one machine under two names", "refused; by name without a connection", True)


# ---- P11


def two_at_once(world: World, inventory: Inventory) -> tuple[int, int]:
    """The exit codes of one `up`, and of another that comes while the first has the lease and has begun."""
    inner: list[Outcome] = []

    def other(call: Call) -> None:
        if call.changes and not inner:
            inner.append(lab.run(world, inventory, lab.do_up))

    outer = lab.run(world, inventory, lab.do_up, Script(hook=other))
    return code(outer), code(inner[0])


@pytest.mark.promise("P11")
@pytest.mark.parametrize("verb", [lab.do_up, lab.do_down])
def test_who_lost_the_lease_stops(verb: lab.Verb) -> None:
    """The head received nothing for longer than the lease lives: another may have it, so nothing more is changed."""
    world, inventory = make.world((2, 2, 2)), make.inventory(3)
    head = world.machines["gpu1"]
    late: list[Call] = []

    def hook(call: Call) -> None:
        if late or not call.changes or call.host != "gpu2":
            late.extend([call] if late and call.changes else [])
            return
        late.append(call)
        head.reachable = False
        world.clock.sleep(16)
        assert not head.lock, "the head gave the lease up"

    with lab.inside(world):
        if verb is lab.do_down:
            assert lab.run(world, inventory, lab.do_up).error is None
        broken = lab.run(world, inventory, verb, Script(hook=hook))
    assert "lost the lease" in str(broken.error), broken.story()
    # What was under way on one host may end; the next operation must not begin.
    assert {call.host for call in late} == {"gpu2"}, broken.story()
    record("P11", f"sim: {verb.__name__} behind a black hole for 16 s", "stops before the next operation", True)


# ---- P17


@pytest.mark.slow
@pytest.mark.promise("P17")
def test_ctrl_c_at_every_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    start, inventory = make.world((2, 2)).snapshot(), make.inventory(2)
    world = World.again(start)
    with lab.inside(world):
        calls = len(lab.run(world, inventory, lab.do_up).script.calls)
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    # Odd ones in CI: a second controller comes at the even ones.
    longest, tried = 0.0, range(calls) if FULL else range(1, calls, 2)
    try:
        for index in tried:
            world = World.again(start)
            began = world.clock.now
            with lab.inside(world), pytest.raises(SystemExit) as ended, Session(None, as_json=True):
                error = lab.run(world, inventory, lab.do_up, Script({index: Fault.INTERRUPT})).error
                assert isinstance(error, KeyboardInterrupt), index
                raise error
            assert ended.value.code == 130
            oracle.no_lease_left(world)
            longest = max(longest, world.clock.now - began)
            with lab.inside(world):
                assert lab.run(world, inventory, lab.do_up).error is None
                oracle.converged(world, inventory)
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])
    assert longest < 5 + 2
    record(
        "P17", "sim: Ctrl-C at every call of up", f"{len(tried)} of {len(tried)}: exit 130, lease free, converged", True
    )


# ---- P19, P20


@pytest.mark.promise("P20")
def test_containers_of_others_stop_the_run_and_stay() -> None:
    """Names that we need, taken by others: a clear error, and nothing of theirs is changed."""
    for taken in ("container", "state volume"):
        world, inventory = make.world(), make.inventory(2)
        machine = world.machines["gpu2"]
        make.neighbours(machine)
        if taken == "container":
            other = next(box for box in machine.boxes.values())
            other.name = "vcluster-lab"
        else:
            machine.volumes["vcluster-lab-state"] = Volume("vcluster-lab-state", {}, {"file": b"precious"})
        foreign = world.foreign()
        with lab.inside(world):
            for _ in range(2):
                refused = failure(lab.run(world, inventory, lab.do_up))
                assert "gpu2" in str(refused) and "vcluster-lab" in str(refused)
                assert world.foreign() == foreign, taken
            assert lab.run(world, inventory, lab.do_down).error is None
            oracle.nothing_left(world)
        assert world.foreign() == foreign, taken
    record("P20", "sim: our names taken by others", "2 of 2 refused, nothing of theirs changed", True)


@pytest.mark.promise("P6", "P19")
def test_a_volume_that_docker_had_no_time_to_label() -> None:
    """A host that dies between the two steps of a volume's making: empty and unused, it is not missed."""
    names = {"vcluster-lab-state", "vcluster-lab-secrets-0123456789ab"}
    for verb in (lab.do_up, lab.do_down):
        world, inventory = make.world(), make.inventory(2)
        machine = world.machines["gpu2"]
        machine.volumes |= {name: Volume(name) for name in names} | {
            "vcluster-lab2-state": Volume("vcluster-lab2-state")
        }
        with lab.inside(world):
            assert lab.run(world, inventory, verb).error is None
            assert all(machine.volumes[name].labels for name in names & set(machine.volumes))
            assert lab.run(world, inventory, lab.do_down).error is None
        assert set(machine.volumes) == {"vcluster-lab2-state"}
    record("P6", "sim: a host died before Docker had labelled our volumes", "up converges, down leaves none", True)


# fault: kernel/apply/execute.py: spec.document → ""
@pytest.mark.promise("P20")
def test_a_create_whose_answer_came_too_late_is_adopted() -> None:
    """The controller is killed while dockerd creates; the next run has looked before the container appears."""
    world, inventory = make.world(), make.inventory(2)
    with lab.inside(world):
        assert lab.run(world, inventory, lab.do_up).error is None
        world.remove(world.machines["gpu2"], node(world, "gpu2"))
        broken = lab.run(world, inventory, lab.do_up, first("'name': 'vcluster-lab'", Fault.KILLED_LATE))
        assert isinstance(broken.error, Killed)
        ((_, create),) = world.machines["gpu2"].late
        world.machines["gpu2"].late.clear()

        def appears(call: Call) -> None:
            if "door" in call.what and world.machines["gpu2"].box("vcluster-lab") is None:
                create()

        lab.succeed(world, inventory, lab.do_up, Script(hook=appears))
        oracle.converged(world, inventory)
    record("P20", "sim: a lost create appears while the rerun works", "adopted", True)


@pytest.mark.promise("P19")
def test_a_create_that_comes_after_down_leaves_nothing_behind() -> None:
    """dockerd finishes a killed controller's create when the volumes have gone, and makes them as the cluster's."""
    world, inventory = make.world(), make.inventory(2)
    with lab.inside(world):
        lab.run(world, inventory, lab.do_up, first("'name': 'vcluster-lab'", Fault.KILLED_LATE))
        ((_, create),) = world.machines["gpu1"].late
        world.machines["gpu1"].late.clear()
        assert lab.run(world, inventory, lab.do_down).error is None
        create()
        volumes = world.machines["gpu1"].volumes
        assert {name.partition("-secrets-")[0] for name in volumes} == {"vcluster-lab", "vcluster-lab-state"}
        assert lab.run(world, inventory, lab.do_down).error is None
        assert not volumes
    record("P19", "sim: a lost create happens after down", "the next down removes it with its volumes", True)


# fault: kernel/docker/client.py: if error.returncode != 409: → if error:
def test_a_removal_under_way_is_awaited() -> None:
    world, inventory = make.world(), make.inventory(2)
    with lab.inside(world):
        assert lab.run(world, inventory, lab.do_up).error is None
        node(world, "gpu1").state = "removing"
        lab.succeed(world, inventory, lab.do_up)
        oracle.converged(world, inventory)
