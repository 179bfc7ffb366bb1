"""Any inventory, any world, any course of verbs that break off anywhere: the next runs repair it."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tests.support.depth import FULL, cases
from tests.support.figures import record
from tests.support.sim import lab, make, oracle
from tests.support.sim.engine import name_image
from tests.support.sim.faults import Fault, Script
from tests.support.sim.lab import Outcome
from tests.support.sim.world import Box, Volume, belongs_to_lab
from vllm_cluster.kernel.plan.spec import CLUSTER, SECRET

RUNS: Counter[str] = Counter()
# A busy machine is not a failure; a failing case prints what reproduces it.
PATIENT = settings(
    max_examples=cases(3, 15, 300),
    stateful_step_count=12,
    deadline=None,
    print_blob=True,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],  # to explain takes minutes here
    derandomize=not FULL,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
FAULTS = st.tuples(st.integers(0, 120), st.sampled_from(Fault), st.integers(0, 12))
HOST = st.integers(0, 7)


class Cluster(RuleBasedStateMachine):
    """A person, a cluster, and everything that happens to both."""

    @initialize(
        gpus=st.lists(st.integers(1, 4), min_size=1, max_size=8),
        head=HOST,
        ray=st.booleans(),
        present=st.booleans(),
        skew=st.sampled_from([0.0, 0.0, -3600.0, 7.5]),
        crowded=st.booleans(),
    )
    def begin(self, *, gpus: list[int], head: int, ray: bool, present: bool, skew: float, crowded: bool) -> None:
        """A world."""
        self.world = make.world(gpus, have=make.WITH_RAY if ray else None, present=present)
        self.names = list(self.world.machines)
        self.words: dict[str, Any] = {"head": self.names[head % len(gpus)]}
        self.entries: dict[str, dict[str, Any]] = {}
        self.world.machines[self.names[-1]].skew = skew
        for machine in self.world.machines.values() if crowded else ():
            make.neighbours(machine)
        self.foreign = self.world.foreign()
        self.stack = ExitStack()
        self.stack.enter_context(lab.inside(self.world))
        self.builds = 1
        self.out: set[str] = set()

    @property
    def inventory(self) -> Any:
        """The inventory as it is."""
        whole = make.inventory(len(self.names), self.entries, **self.words)
        hosts = {name: host for name, host in whole.hosts.items() if name not in self.out}
        return whole.model_copy(update={"hosts": hosts})

    @property
    def inside(self) -> list[str]:
        """The hosts of the inventory."""
        return [name for name in self.names if name not in self.out]

    def do(self, verb: lab.Verb, script: Script | None = None) -> Outcome:
        """Run a verb and keep the world's own rules."""
        outcome = lab.run(self.world, self.inventory, verb, script)
        RUNS[verb.__name__] += 1
        note(f"{verb.__name__}:\n{outcome.story()}")
        oracle.one_node_at_most(self.world)
        oracle.no_lease_left(self.world)
        return outcome

    # ---- what a person does

    @rule(order=st.permutations(range(8)))
    def hosts_answer_in_another_order(self, order: list[int]) -> None:
        """Which host is first at work."""
        self.world.order = lambda works: [works[i] for i in order if i < len(works)]

    @rule(fault=FAULTS, verb=st.sampled_from([lab.do_up, lab.do_up, lab.do_down, lab.do_serve, lab.do_stop]))
    def break_off(self, fault: tuple[int, Fault, int], verb: lab.Verb) -> None:
        """Run a verb that breaks off somewhere, or is over before."""
        index, kind, spare = fault
        self.do(verb, Script({index: kind}, spare=spare))

    @rule(faults=st.dictionaries(st.integers(0, 150), st.sampled_from([f for f in Fault if not f.kills]), max_size=6))
    def stumble(self, faults: dict[int, Fault]) -> None:
        """Run `up` on a bad day."""
        self.do(lab.do_up, Script(faults))

    @rule(key=st.sampled_from(["environment", "shm_size", "ray", "head", "gpus", "ports"]), value=st.integers(0, 7))
    def change(self, key: str, value: int) -> None:
        """Edit the inventory."""
        name = self.inside[value % len(self.inside)]
        if key == "gpus":
            self.entries[name] = {"gpus": 1 + value % self.world.machines[name].gpus}
        else:
            values = {
                "environment": {"A": str(value)},
                "shm_size": (1 + value) << 30,
                "ray": f"2.{56 + value % 2}.1",
                "head": name,
                "ports": {"object_manager": 6390 + value},
            }
            self.words[key] = values[key]

    @rule(host=HOST, fault=FAULTS)
    def join_or_leave(self, host: int, fault: tuple[int, Fault, int]) -> None:
        """A host is taken out of the inventory, or put back, and the `up` for it breaks off somewhere."""
        name = self.names[host % len(self.names)]
        if name == self.inventory.head_name:
            return
        self.up()
        self.out ^= {name}
        index, kind, spare = fault
        self.do(lab.do_up, Script({index: kind}, spare=spare))
        self.up()
        oracle.clean(self.world.machines[out] for out in self.out)

    # ---- what happens to hosts

    def _node(self, host: int) -> tuple[Any, Box | None]:
        machine = self.world.machines[self.inside[host % len(self.inside)]]
        return machine, machine.box("vcluster-lab")

    @rule(host=HOST, how=st.sampled_from(["ends", "is killed", "pauses", "is removed", "is being removed", "dies"]))
    def node(self, host: int, how: str) -> None:
        """Something happens to a node's container."""
        machine, box = self._node(host)
        if box is None or not belongs_to_lab(box):
            return
        if how in ("ends", "is killed"):
            self.world.stop(machine, box, gently=how == "ends", code=137)
        elif how == "pauses" and box.state == "running":
            box.state = "paused"
        elif how == "is removed":
            self.world.remove(machine, box)
        elif how in ("is being removed", "dies"):
            self.world.stop(machine, box, gently=False)
            box.state = "removing" if how == "is being removed" else "dead"

    @rule(host=HOST)
    def wipe(self, host: int) -> None:
        """A host comes back empty of all that is the cluster's."""
        machine, _ = self._node(host)
        machine.boxes = {i: box for i, box in machine.boxes.items() if not belongs_to_lab(box)}
        machine.volumes = {name: volume for name, volume in machine.volumes.items() if not belongs_to_lab(volume)}
        machine.images = {i: image for i, image in machine.images.items() if "postgres:17" in image.tags}

    @rule(host=HOST, what=st.sampled_from(["door", "probe", "half", "volume"]))
    def leave(self, host: int, what: str) -> None:
        """An earlier run's leavings."""
        machine, there = self._node(host)
        labels = {CLUSTER: "lab"}
        if what == "volume":
            # Of a run that ended before it had made a node; one that runs was made after the old ones were removed.
            if there is None:
                name = "vcluster-lab-secrets-0123456789ab"
                labels |= {f"{SECRET}ray-token": "000", f"{SECRET}api-key": "111"}
                machine.volumes[name] = Volume(name, labels, {"ray-token-000": b"old"})
            return
        name = "vcluster-lab" if what == "half" else f"vcluster-lab-{what}-01234567"
        if machine.box(name) is None and not (what == "half" and there):
            body = {"Image": "x", "Labels": labels, "Entrypoint": ["true"], "Cmd": []}
            made = Box(self.world.next_id(name), name, "x", body)
            machine.boxes[made.id] = made

    @rule(host=HOST)
    def prune(self, host: int) -> None:
        """`docker image prune -a`: names of images that no container is made from go."""
        machine, _ = self._node(host)
        used = {box.image for box in machine.boxes.values()}
        for image in machine.images.values():
            if image.id not in used and "postgres:17" not in image.tags:
                image.tags.clear()

    @rule()
    def new_build(self) -> None:
        """The tag moves in the registry."""
        self.builds += 1
        self.world.registry[make.IMAGE] = make.base_image(self.builds)

    @rule()
    def pull_everywhere(self) -> None:
        """`docker pull` on every host."""
        for machine in self.world.machines.values():
            fresh = deepcopy(self.world.registry[make.IMAGE])
            name_image(machine, machine.images.setdefault(fresh.id, fresh), make.IMAGE)

    # ---- and what must hold

    @rule()
    def up(self) -> None:
        """After any course of events `up` repairs it, as planned, and a second one does nothing."""
        self.world.settle(5)
        before = self.do(lab.do_plan)
        outcome = self.do(lab.do_up)
        if "is sha256:" in str(outcome.error):
            oracle.honest(before, outcome, self.inventory)
            self.pull_everywhere()  # as the error asks for
            before, outcome = self.do(lab.do_plan), self.do(lab.do_up)
        oracle.honest(before, outcome, self.inventory)
        assert outcome.error is None, outcome.story()
        oracle.converged(self.world, self.inventory)
        oracle.untouched(self.do(lab.do_up))
        seen = self.do(lab.do_status)
        assert seen.error is None and seen.value.up, seen.story()
        assert not seen.script.changing

    @rule()
    def serve(self) -> None:
        """On a cluster that is up: serving gets ready, again changes nothing, and ends."""
        self.world.settle(5)
        if self.do(lab.do_up).error is None:
            for verb in (lab.do_serve, lab.do_serve, lab.do_stop):
                outcome = self.do(verb)
                assert outcome.error is None, outcome.story()
            oracle.converged(self.world, self.inventory)

    @rule()
    def down(self) -> None:
        """`down` leaves nothing of the cluster."""
        self.world.settle(5)
        outcome = self.do(lab.do_down)
        assert outcome.error is None, outcome.story()
        oracle.nothing_left(self.world)

    @invariant()
    def others_are_left_alone(self) -> None:
        """What belongs to others is as it was."""
        if hasattr(self, "world"):
            assert self.world.foreign() == self.foreign

    def teardown(self) -> None:
        """However it ended, it can be repaired, and taken down."""
        if hasattr(self, "stack"):
            try:
                self.up()
                self.down()
                self.others_are_left_alone()
            finally:
                self.stack.close()


@pytest.mark.promise("P1", "P2", "P3", "P19", "P20")
def test_any_course_converges() -> None:
    RUNS.clear()
    began = time.monotonic()
    run_state_machine_as_test(Cluster, settings=PATIENT)
    total, seconds = sum(RUNS.values()), time.monotonic() - began
    figure = f"{total} runs of verbs on 1 to 8 hosts, {total / seconds:.0f}/s: all converged"
    record("P1", "sim: any course of verbs and accidents, by hypothesis", figure, True)
    for promise, attack, what in (
        (
            "P2",
            "sim: up again after each of these",
            f"{RUNS['do_up']} runs of up; again: 0 operations, at most 7 round trips",
        ),
        (
            "P3",
            "sim: any inventory × any world",
            f"{RUNS['do_plan']} plans: what ran is what was printed; 0 changing calls",
        ),
        ("P19", "sim: down after any course", f"{RUNS['do_down']} runs of down: nothing left"),
        ("P20", "sim: neighbours with similar names", f"{total} runs: theirs byte for byte as before"),
    ):
        record(promise, attack, what, True)
