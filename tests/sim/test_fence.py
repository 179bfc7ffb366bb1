"""P34: two controllers, with any two inventories: one at a time, and no call without the lease."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from random import Random

import pytest

from tests.support.depth import FULL, cases
from tests.support.figures import record
from tests.support.sim import lab, life, make, oracle
from tests.support.sim.faults import Call, Fault, Script
from tests.support.sim.interleave import Controller, interleave
from tests.support.sim.lab import Verb, code
from tests.support.sim.world import World
from vllm_cluster.kernel.errors import ConnectionLost, LeaseLost, Locked, Replaced, VclusterError
from vllm_cluster.kernel.inventory.model import Inventory

WAIT = 90.0
FAULTS = (Fault.KILLED, Fault.KILLED_AFTER)
# The whole promise is 500 over the four kinds of pairs.
CASES = cases(3, 6, 125)


PATIENT_UP, PATIENT_DOWN = partial(lab.do_up, wait=WAIT), partial(lab.do_down, wait=WAIT)


def one_head(world: World) -> None:
    """Never two heads of one cluster, and no change without the lease."""
    heads = [m.name for m, box in world.nodes() if life.role(box) == "head" and box.name == "vcluster-lab"]
    assert len(heads) <= 1, f"two heads: {heads}"
    assert world.unfenced == []


HERE = make.inventory(3)
ELSEWHERE = make.inventory(3, head="gpu2")
SHARED = make.inventory(3, cluster="other")
PAIRS: dict[str, tuple[Inventory, Verb, Inventory, Verb]] = {
    "the same head": (HERE, PATIENT_UP, HERE, PATIENT_UP),
    "another head": (HERE, PATIENT_UP, ELSEWHERE, PATIENT_UP),
    "another cluster on the same hosts": (HERE, PATIENT_UP, SHARED, PATIENT_UP),
    "one of them takes it down": (HERE, PATIENT_UP, HERE, PATIENT_DOWN),
}


def case(pair: str, seed: int) -> None:
    """One random order of the calls of two controllers; in every second case a laptop is closed at a call."""
    random = Random(seed)
    first, one, second, other = PAIRS[pair]
    world = make.world((2, 2, 2))
    with lab.inside(world):
        if random.random() < 0.5 or other is PATIENT_DOWN:
            assert lab.run(world, first, lab.do_up).error is None
            first = make.inventory(3, environment={"NCCL_DEBUG": "INFO"})
        controllers = [Controller(first, one), Controller(second, other)]
        random.shuffle(controllers)
        if seed % 2:
            controllers[0].naps = {random.randrange(150): random.choice((16.0, 40.0))}
        try:
            interleave(world, controllers, random, lambda: one_head(world))
            world.settle(40)
            repair(world, first, second if second.cluster != "lab" else None)
        except AssertionError as error:
            told = "\n---\n".join(c.outcome.story()[-3000:] for c in controllers)
            raise AssertionError(f"{pair}, seed {seed}: {str(error)[:2000]}\n{told}") from None


def repair(world: World, inventory: Inventory, other: Inventory | None) -> None:
    """One more run makes the cluster whole; another one on its hosts is taken down before."""
    if other:
        error = lab.run(world, other, lab.do_down).error
        assert error is None, error
    again = lab.run(world, inventory, lab.do_up)
    assert again.error is None, again.story()[-3000:]
    left = lab.run(world, inventory, lab.do_plan)
    assert left.error is None and left.value.empty, left.story()[-3000:]
    oracle.converged(world, inventory)


# fault: kernel/hosts/connection.py: *self._through, *DIAL → *DIAL
@pytest.mark.promise("P34")
@pytest.mark.parametrize("pair", PAIRS)
def test_two_controllers_call_by_call(pair: str) -> None:
    began = time.monotonic()
    for seed in range(CASES):
        case(pair, seed)
    seconds = time.monotonic() - began
    figure = f"{CASES} random orders of calls, half with a laptop asleep: never two heads, no call without the lease"
    record("P34", f"sim: two controllers, {pair}", f"{figure}, one rerun converges; {seconds:.0f} s", True)


def sleeps(world: World, seconds: float, words: str, meanwhile: Callable[[], object], host: str = "") -> Script:
    """The laptop is closed right when a call is on its way, for so long, and others work meanwhile."""

    def hook(call: Call) -> None:
        if words in call.what and host in ("", call.host) and "lease" not in call.what:
            script.hook = lambda _: None
            world.nap(seconds)
            meanwhile()

    script = Script(hook=hook)
    return script


@pytest.mark.promise("P34")
def test_a_request_from_a_laptop_that_slept_is_refused() -> None:
    world, inventory = make.world((2, 2)), make.inventory(2)
    with lab.inside(world):
        assert lab.run(world, inventory, lab.do_up).error is None

        def serve_b() -> None:
            lab.succeed(world, inventory, partial(lab.do_serve, model="org/b"))

        script = sleeps(world, 20, "PUT /containers/vcluster-lab/archive", serve_b)
        late = lab.run(world, inventory, partial(lab.do_serve, model="org/a"), script)
        assert isinstance(late.error, LeaseLost), late.story()
        assert "lost the lease" in late.error.message
        head = world.machines["gpu1"].box("vcluster-lab")
        assert head
        world.settle(30)
        assert head.life["serve"]["phase"] == "ready"
        assert b"org/b" in (world.machines["gpu1"].read(head, "/var/lib/vcluster/wanted.json") or b"")


@pytest.mark.promise("P34")
def test_a_laptop_that_slept_behind_its_request_learns_who_replaced_it() -> None:
    """The request is written, and the line of the history that follows it is not."""
    world, inventory = make.world((2, 2)), make.inventory(2)
    with lab.inside(world):
        assert lab.run(world, inventory, lab.do_up).error is None

        def another() -> None:
            lab.succeed(world, inventory.model_copy(update={"head": "gpu2"}), lab.do_up)

        script = sleeps(world, 20, "docker exec append_line", another)
        late = lab.run(world, inventory, partial(lab.do_serve, model="org/a"), script)
        assert isinstance(late.error, Replaced), late.story()
        assert "moved the head to another host" in late.error.message
        assert any(event.kind == "warning" and "has no line for this serve" in event.text for event in late.events)


# fault: serving/ask_head.py: self._number = _current_number( → self._number = (lambda _, n, __: n)(
@pytest.mark.promise("P34")
@pytest.mark.parametrize("verb", ["serve", "stop", "up"])
def test_who_waits_for_its_model_learns_who_replaced_it(verb: str) -> None:
    world, inventory = make.world((2, 2)), make.inventory(2)
    with lab.inside(world):
        assert lab.run(world, inventory, lab.do_up).error is None
        fired: list[int] = []

        moved = inventory.model_copy(update={"head": "gpu2"})
        replaces: dict[str, tuple[Inventory, Verb]] = {
            "stop": (inventory, lab.do_stop),
            "up": (moved, lab.do_up),
            "serve": (inventory, partial(lab.do_serve, model="org/b")),
        }

        def hook(call: Call) -> None:
            # While it follows: three looks after the line of the history.
            written = next((c.index for c in script.calls if c.what.startswith("PUT")), len(script.calls))
            audit = [c for c in script.calls if c.what == "docker exec append_line" and c.index > written]
            if audit and call.index > audit[-1].index + 8 and not fired:
                fired.append(1)
                assert lab.run(world, *replaces[verb]).error is None

        script = Script(hook=hook)
        outcome = lab.run(world, inventory, partial(lab.do_serve, model="org/a"), script)
        assert isinstance(outcome.error, Replaced), outcome.error
        assert outcome.error.exit_code == 75
        served = " ran serve org/b (TP=2 × PP=2) at 20"
        words = {"stop": " ran stop at 20", "serve": served, "up": "moved the head to another host"}
        assert words[verb] in outcome.error.message


# fault: serving/cluster/up.py: in_order(fleet, seen.facts) → [fleet.connections[inventory.head_name]]
@pytest.mark.promise("P11")
@pytest.mark.parametrize("other", ["another head", "another cluster on the same hosts"])
def test_whoever_shares_a_host_is_kept_out(other: str) -> None:
    world = make.world((2, 2, 2))
    second = PAIRS[other][2]
    errors: list[VclusterError | None] = []
    with lab.inside(world):

        def hook(call: Call) -> None:
            if call.changes and not errors:
                errors.append(None)
                error = lab.run(world, second, lab.do_up).error
                errors[0] = error if isinstance(error, VclusterError) else None

        assert lab.run(world, HERE, lab.do_up, Script(hook=hook)).error is None
    assert isinstance(errors[0], Locked)
    assert "is locked by" in errors[0].message


@pytest.mark.promise("P34")
@pytest.mark.parametrize("refusing", ["gpu1", "gpu2"])
def test_down_cleans_the_other_hosts_where_one_refuses_the_lease(refusing: str) -> None:
    world, inventory = make.world((2, 2, 2)), make.inventory(3)
    with lab.inside(world):
        assert lab.run(world, inventory, lab.do_up).error is None
        script = Script(by_words=lambda call: Fault.LOST if (call.host, call.what) == (refusing, "lease") else None)
        outcome = lab.run(world, inventory, lab.do_down, script)
        assert isinstance(outcome.error, ConnectionLost), outcome.error
        assert [(event.kind, event.host) for event in outcome.events if event.kind == "failed"] == [
            ("failed", refusing)
        ]
        oracle.clean(machine for name, machine in world.machines.items() if name != refusing)
        assert world.machines[refusing].box("vcluster-lab")
        oracle.no_lease_left(world)


@pytest.mark.promise("P34")
@pytest.mark.slow
def test_any_run_after_a_lost_lease_leaves_one_volume_of_secrets() -> None:
    """One run ends right after it wrote the secrets of a new head; all nodes are as the next one wants them."""
    world = make.world((2, 2, 2))
    with lab.inside(world):
        assert lab.run(world, HERE, lab.do_up).error is None
        start = world.snapshot()
        calls = lab.run(world, ELSEWHERE, lab.do_up).script.calls
    first, *_, last = [call.index for call in calls if "-door-" in call.what]
    # CI's share: at every second call one of the faults, in turn; all of them take 22 s of processor time.
    for index in range(first, last + 2, 1 if FULL else 2):
        for fault in FAULTS if FULL else FAULTS[index // 2 % 2 :][:1]:
            world = World.again(start)
            with lab.inside(world):
                lab.run(world, ELSEWHERE, lab.do_up, Script({index: fault}))
                world.settle(40)
                lab.succeed(world, HERE, lab.do_up)
                oracle.converged(world, HERE)


# fault: kernel/plan/followed.py: Order(order.epoch + 1, "", now → Order(order.epoch, "", now
@pytest.mark.promise("P34")
def test_every_writer_of_the_request_counts_up() -> None:
    """Also `up`, where the request follows the members, and where the head moves away and back."""
    world, fewer, elsewhere = make.world((2, 2, 2)), make.inventory(2), make.inventory(2, head="gpu2")
    epochs: list[int] = []

    def good(inventory: Inventory, verb: Verb, head: str = "gpu1") -> None:
        lab.succeed(world, inventory, verb)
        world.settle(20)
        node = world.machines[head].box("vcluster-lab")
        raw = world.machines[head].read(node, f"{life.STATE}/wanted.json") if node else None
        assert raw and node, head
        epochs.append(json.loads(raw)["epoch"])
        assert (node.life["serve"] or {}).get("phase") == "ready"

    with lab.inside(world):
        assert lab.run(world, HERE, lab.do_up).error is None
        good(HERE, lab.do_serve)
        good(fewer, lab.do_up)
        good(elsewhere, lab.do_up, "gpu2")
        good(elsewhere, partial(lab.do_serve, model="org/b"), "gpu2")
        good(fewer, lab.do_up)
    assert epochs == sorted(epochs)
    assert epochs[0] < epochs[1] < epochs[3], epochs


@pytest.mark.promise("P34")
@pytest.mark.parametrize("verb", [lab.do_up, lab.do_down])
@pytest.mark.parametrize("host", ["gpu1", "gpu2"])
def test_a_laptop_that_slept_under_its_lease_reports_it(verb: Verb, host: str) -> None:
    """Also where the call that was under way broke with the lease."""
    world = make.world((2, 2, 2))
    with lab.inside(world):
        assert lab.run(world, HERE, lab.do_up).error is None
        inventory = make.inventory(3, environment={"NCCL_DEBUG": "INFO"}) if verb is lab.do_up else HERE

        def another() -> None:
            if world.machines["gpu1"].box("vcluster-lab") is None:
                # What a head had goes to another one only while its node is there.
                lab.succeed(world, HERE, lab.do_up)
            lab.succeed(world, ELSEWHERE, lab.do_up)

        script = sleeps(world, 20, "DELETE /containers", another, host)
        late = lab.run(world, inventory, verb, script)
        assert script.met == [] and isinstance(late.error, LeaseLost), late.story()
        assert code(late) == 75
        one_head(world)
        assert lab.run(world, ELSEWHERE, lab.do_plan).value.empty


@pytest.mark.promise("P34")
def test_a_laptop_that_slept_right_after_it_took_the_lease_reports_it() -> None:
    """No call that changes anything was under way: what broke were its looks at the hosts."""
    world = make.world((2, 2, 2))
    script = Script()

    def hook(call: Call) -> None:
        if "lease" not in call.what and any(before.what == "lease" for before in script.calls):
            script.hook = lambda _: None
            world.nap(20)
            lab.succeed(world, ELSEWHERE, lab.do_up)

    script.hook = hook
    with lab.inside(world):
        assert lab.run(world, HERE, lab.do_up).error is None
        late = lab.run(world, HERE, lab.do_down, script)
        assert isinstance(late.error, LeaseLost), late.story()
        assert script.changing == []
