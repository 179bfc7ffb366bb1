"""Two models at one URL: one that fails beside one that is ready is seen by all that look at a model."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.support.sim import lab, life, make
from tests.support.sim.world import World
from vllm_cluster.kernel.errors import PreflightFailed, UsageError
from vllm_cluster.kernel.hosts.runtime import Runtime
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.node.handle import NodeHandle
from vllm_cluster.kernel.node.history import command_of
from vllm_cluster.serving import head
from vllm_cluster.serving.explain import explain
from vllm_cluster.serving.explain.logs import Log, sources
from vllm_cluster.serving.others import ready_model
from vllm_cluster.wire.order import read_order
from vllm_cluster.wire.status import ServeStatus

INVENTORY = make.inventory(2, backend="mp")
ONE, OTHER = "org/model", "org/other"
HOSTS = {ONE: "gpu1", OTHER: "gpu2"}
WHY = "torch.OutOfMemoryError: CUDA out of memory"


@pytest.fixture
def served() -> Iterator[World]:
    """A model on each of two hosts."""
    world = make.world((2, 2))
    with lab.inside(world):
        lab.succeed(world, INVENTORY, lab.do_up)
        for model, host in HOSTS.items():
            lab.succeed(world, INVENTORY, partial(lab.do_serve, hosts=(host,), model=model))
        yield world


def fail_other(world: World) -> None:
    """Have the second model end, as vLLM does for want of memory."""
    leads, box = (world.machines[name].box("vcluster-lab") for name in ("gpu1", "gpu2"))
    assert leads
    assert box
    box.log += f"[vllm_1] (EngineCore pid=41) ERROR 11-21 02:00:00 [x.py:1] {WHY}\n"
    life.fail(world, world.machines["gpu1"], leads, 1, WHY)
    world.clock.sleep(0.1)


def explained(world: World, model: str | None = None) -> explain.Explanation:
    """`vcluster explain [NAME]`."""
    found = lab.run(world, INVENTORY, lambda i, emit, r: explain.of_cluster(i, emit, model, runtime=r)).value
    assert isinstance(found, explain.Explanation)
    return found


# fault: serving/serve/serve.py: models_by_name(*self.room.stays, *self.wanted) → models_by_name(*self.wanted)
# fault: serving/serve/rollback.py: models_by_name(*order.beside(model), *wanted) → models_by_name(*wanted)
def test_what_is_served_beside_another_is_asked_by_name(served: World) -> None:
    alone = lab.succeed(served, INVENTORY, partial(lab.do_serve, hosts=("gpu2",), model=OTHER, flags=("--seed=1",)))
    back = lab.succeed(served, INVENTORY, partial(lab.do_rollback, name=OTHER))
    assert [(found.value.model, found.value.several) for found in (alone, back)] == [(OTHER, True), (OTHER, True)]


# fault: kernel/node/history.py: (one.generation, one.deployment.replicas) == asked → one.generation == end.generation
# fault: serving/serve/rollback.py: return found.repeats(asked) if asked else found.generation == generation → return found.generation == generation
@pytest.mark.parametrize("name", [None, "1"])
def test_a_rollback_brings_as_many_replicas_as_there_were(name: str | None) -> None:
    """From three to one replica what the first one runs is the same, and so is its command."""
    world, inventory = make.world((2, 2, 2)), make.inventory(3, backend="mp")
    with lab.inside(world):
        lab.succeed(world, inventory, lab.do_up)
        for replicas in (3, 1):
            lab.succeed(world, inventory, partial(lab.do_serve, replicas=replicas, tp=2, pp=1))
        lab.succeed(world, inventory, partial(lab.do_rollback, name=name))
        order = read_order(world.machines["gpu1"].volumes["vcluster-lab-state"].files["wanted.json"])
        assert [one.deployment.replicas for one in order.deployments] == [3, 3, 3]
        same = lab.run(world, inventory, partial(lab.do_rollback, name="1")).error
        assert isinstance(same, PreflightFailed)
        assert "is what is served now" in same.message
        # Forward again: the request for one is kept as well.
        lab.succeed(world, inventory, partial(lab.do_rollback, name="2"))
        order = read_order(world.machines["gpu1"].volumes["vcluster-lab-state"].files["wanted.json"])
        assert [one.deployment.replicas for one in order.deployments] == [1]


# fault: serving/explain/explain.py: any(one.phase != "ready" for one in rows) → (rows and rows[0].phase != "ready")
def test_the_failure_of_the_second_is_explained(served: World) -> None:
    assert explained(served).verdict.result == "healthy"
    fail_other(served)
    box = served.machines["gpu1"].box("vcluster-lab")
    assert box
    box.life[life.key_of(1)].update(phase="failed")
    served.clock.sleep(60)  # what works by a status that is older than this can have failed since
    found = explained(served).verdict
    assert (found.result, found.cause and found.cause.failure.slug) == ("explained", "gpu-memory-full")


def test_a_model_is_explained_by_what_concerns_it(served: World) -> None:
    fail_other(served)
    assert explained(served, ONE).verdict.result == "healed"  # what the other one has printed is in the node's log
    assert explained(served, OTHER).verdict.result == "explained"
    error = lab.run(served, INVENTORY, lambda i, emit, r: explain.of_cluster(i, emit, "org/third", runtime=r)).error
    assert isinstance(error, UsageError)
    assert error.message.endswith(": gpu1 serves org/model, org/other")


# fault: serving/explain/logs.py: _replica(log.name) in (None, *of) → True
# fault: serving/explain/logs.py: return 0 if name.startswith("ray/worker-") else None → return None
def test_the_logs_of_a_model_are_those_of_its_replicas() -> None:
    names = ("serve.log", "serve.log.1", "serve-1.log", "serve-10.log", "ray/worker-1.err", "ray/raylet.err", "dmesg")
    logs = [Log("gpu1", name, ((1, b"a\n"),)) for name in names]
    found = [source.name.removeprefix("gpu1:") for source in sources([logs], of={1})]
    assert found == ["serve-1.log", "ray/raylet.err", "dmesg"]
    assert [source.name.removeprefix("gpu1:") for source in sources([logs], of={0})] == [
        *("serve.log", "serve.log.1", "ray/worker-1.err", "ray/raylet.err", "dmesg"),
    ]


# fault: serving/serve/serve.py: order.without(failed) → order
def test_a_model_that_has_failed_makes_room_for_another(served: World) -> None:
    """Without a question: nothing that serves is stopped."""

    def serve(model: str, *hosts: str) -> lab.Outcome:
        asked = partial(lab.do_serve, model=model, hosts=hosts, confirm=lambda _: None)
        return lab.run(served, INVENTORY, asked)

    lab.succeed(served, INVENTORY, partial(lab.do_stop, name=OTHER))
    assert serve("no/such", "gpu2").error
    done = serve(OTHER)
    assert done.error is None
    assert "in place of no/such, which has failed" in [event.text for event in done.events]
    found = lab.succeed(served, INVENTORY, lab.do_status).value
    assert [(one.name, one.phase) for one in found.head.serves] == [(ONE, "ready"), (OTHER, "ready")]


# fault: serving/serve/serve.py: elif len(goes) > 1 and fits(order.without((name,))): → elif False:
# fault: serving/serve/serve.py: elif len(goes) > 1 and fits(order.without((name,))): → else:
# fault: serving/serve/serve.py: replace(asked, replicas=number, → replace(asked, replicas=asked.replicas,
# fault: serving/serve/serve.py: if fits(_shrunk(order, name, number))) → )
# fault: serving/serve/serve.py: , tp=own.tp, pp=own.pp) → )
# fault: serving/consent.py: text = f"{since}this would → text = f"this would
# fault: serving/consent.py: UsageError(text, *effects, → UsageError(text,
# fault: serving/stops.py: if len(self.replicas) > 1 else [] → if False else []
# fault: serving/serve/serve.py: for name in chosen.room.goes: → for name in ():
def test_where_no_gpu_is_free_the_refusal_has_what_stops_less(served: World) -> None:
    """`--yes` stops both."""
    third = partial(lab.do_serve, model="org/third", confirm=lambda _: None)

    def refused() -> UsageError:
        error = lab.run(served, INVENTORY, third).error
        assert isinstance(error, UsageError)
        assert error.message.startswith("no GPU is free: this would stop org/model (")
        assert error.again == ("--yes",)
        return error

    assert refused().hint == "vcluster stop org/model\nvcluster stop org/other"
    assert refused().lines[1:] == [
        "fix 1: stops org/model alone, and makes room: repeat this command then",
        "fix 2: stops org/other alone, and makes room: repeat this command then",
    ]
    lab.succeed(served, INVENTORY, partial(lab.do_stop, name=OTHER))
    lab.succeed(served, INVENTORY, partial(lab.do_serve, replicas=2))
    # One replica with the layout of the two: without it, it would take all hosts.
    assert refused().hint == "vcluster serve org/model --tp 2 --pp 1"
    keeps = "fix 1: keeps 1 of the 2 replicas of org/model, and makes room: repeat this command then"
    assert refused().lines[1:] == [keeps]
    assert "(all 2 replicas, ready for " in refused().lines[0]
    noted = [event.text for event in lab.run(served, INVENTORY, third).events if event.kind == "note"]
    assert "in place of org/model: 2 replicas on gpu1, gpu2 will stop" in noted
    # As many fewer as make room, or none where that is not enough.
    lab.succeed(served, INVENTORY, partial(lab.do_serve, replicas=4, tp=1))
    third = partial(lab.do_serve, model="org/third", replicas=2, tp=1, confirm=lambda _: None)
    assert refused().hint == "vcluster serve org/model --tp 1 --pp 1 --replicas 2"
    third = partial(lab.do_serve, model="org/third", replicas=4, tp=1, confirm=lambda _: None)
    assert not refused().hint


# fault: serving/serve/serve.py: return UsageError(beside.message, hint= → return UsageError(error.message, hint=
# fault: serving/serve/serve.py: if not last.goes or error.hint is None or beside is None: → if True:
def test_too_many_replicas_are_refused_with_how_many_fit_beside_the_others(served: World) -> None:
    """And how many where the others end: both numbers are of use, the first one costs nothing."""

    def refused() -> UsageError:
        error = lab.run(served, INVENTORY, partial(lab.do_serve, model="org/third", tp=1, replicas=5)).error
        assert isinstance(error, UsageError)
        return error

    none = refused()
    assert none.message.endswith(" do not fit: free are 2 on gpu1, 2 on gpu2")
    assert none.hint == "give at most --replicas 4"  # which asks about both
    lab.succeed(served, INVENTORY, partial(lab.do_stop, name=OTHER))
    some = refused()
    assert some.message == "5 replicas of 1 GPU each do not fit: free are 2 on gpu2"
    assert some.hint == "give at most --replicas 2\nvcluster stop org/model, then give at most --replicas 4"
    lab.succeed(served, INVENTORY, partial(lab.do_serve, model="org/third", tp=1, replicas=2, confirm=lambda _: None))


# fault: serving/serve/serve.py: if not found.room.goes and own in ([], names): → if False:
# fault: serving/serve/serve.py: own in ([], names): → True:
def test_hosts_that_need_not_be_named_are_not_a_reason_to_stop_a_model(served: World) -> None:
    """The same without --hosts stops nothing, and is the first remedy."""

    def refused(model: str, **words: Any) -> UsageError:
        asked = partial(lab.do_serve, model=model, confirm=lambda _: None, **words)
        error = lab.run(served, INVENTORY, asked).error
        assert isinstance(error, UsageError)
        assert error.again == ("--yes",)
        return error

    assert refused(ONE, hosts=("gpu2",)).hint is None
    lab.succeed(served, INVENTORY, partial(lab.do_stop, name=OTHER))
    assert refused("org/third", hosts=("gpu1",), tp=1, pp=1).hint == "vcluster serve org/third --tp 1 --pp 1"
    assert refused(ONE, hosts=("gpu2",)).hint is None  # without them it would be laid out otherwise
    lab.succeed(served, INVENTORY, partial(lab.do_serve, model=ONE))
    # What is served already is all that may be wanted.
    assert refused(ONE, hosts=("gpu1",)).hint == "vcluster serve org/model"


# fault: kernel/apply/moved_head.py: for index in (0, *further): → for index in (0,):
# fault: kernel/apply/moved_head.py: name = of_replica(TAKEN, index) → name = TAKEN
def test_a_new_head_knows_the_way_back_of_each_model() -> None:
    before, after = (make.inventory(3, backend="mp", head=name) for name in ("gpu1", "gpu2"))
    world = make.world((2, 2, 2))
    other = partial(lab.do_serve, hosts=("gpu3",), model=OTHER)
    with lab.inside(world):
        lab.succeed(world, before, lab.do_up)
        lab.succeed(world, before, partial(lab.do_serve, hosts=("gpu2",), model=ONE))
        lab.succeed(world, before, other)
        lab.succeed(world, before, partial(other, flags=("--max-model-len=64",)))
        assert lab.run(world, before, partial(other, model="no/such", name=OTHER)).error
        world.settle(30)
        lab.succeed(world, after, lab.do_up)
        world.settle(30)
        found = lab.succeed(world, after, lab.do_status).value
        assert [(one.model, one.phase) for one in found.head.serves] == [(ONE, "ready"), (OTHER, "ready")]
        assert found.head.serves[1].instead_of.name == OTHER
        lab.succeed(world, after, partial(lab.do_rollback, name=OTHER))
        rows = read_order(world.machines["gpu2"].volumes["vcluster-lab-state"].files["wanted.json"]).deployments
        assert [(one.deployment.name, one.deployment.flags) for one in rows] == [(ONE, ()), (OTHER, ())]


def ready(inventory: Inventory, name: str | None, runtime: Runtime) -> tuple[ServeStatus, str]:
    """What `vcluster bench [NAME]` measures, and the command that asks for it again."""
    with head.at_head(inventory, runtime) as connection:
        head.read_key(inventory, connection)
        found = ready_model(inventory, connection, name, "bench")
        return found, command_of(inventory, NodeHandle(connection, inventory.cluster), found)


def test_the_model_to_measure_is_named_where_there_are_two(served: World) -> None:
    def of(name: str | None) -> Any:
        done = lab.run(served, INVENTORY, lambda i, _, r: ready(i, name, r))
        return done.error or (done.value[0].name, done.value[1])

    assert of(OTHER) == (OTHER, "vcluster serve org/other --hosts gpu2")
    which, none = of(None), of("org/third")
    assert isinstance(which, UsageError)
    assert which.hint == "vcluster bench org/model\nvcluster bench org/other"
    assert isinstance(none, UsageError)
    fail_other(served)
    assert of(ONE)[0] == ONE
    assert isinstance(of(OTHER), PreflightFailed)


# fault: serving/serve/rollback.py: [*((one,) for one in names), names] if names else () → ()
# fault: serving/serve/rollback.py: [*((one,) for one in names), names] if → [names] if
def test_a_rollback_without_room_has_the_commands_that_make_it() -> None:
    """Of two models beside it one ends, and it is back on the GPUs that it had."""
    world, inventory = make.world((2, 2, 1)), make.inventory(3, backend="mp")
    with lab.inside(world):
        lab.succeed(world, inventory, lab.do_up)
        lab.succeed(world, inventory, partial(lab.do_serve, hosts=("gpu3",), model="org/third"))
        for hosts, replicas in ((("gpu1", "gpu2"), 2), (("gpu1",), 1)):
            lab.succeed(world, inventory, partial(lab.do_serve, model=ONE, hosts=hosts, replicas=replicas, tp=2, pp=1))
        lab.succeed(world, inventory, partial(lab.do_serve, hosts=("gpu2",), model=OTHER))
        back = partial(lab.do_rollback, name=ONE)
        error = lab.run(world, inventory, back).error
        assert isinstance(error, PreflightFailed)
        assert error.message.startswith(f"{ONE} cannot be served as it was before: 2 replicas of ")
        assert error.hint == f"vcluster stop {OTHER}\nvcluster rollback {ONE}"
        lab.succeed(world, inventory, partial(lab.do_stop, name=OTHER))
        lab.succeed(world, inventory, back)


# fault: serving/serve/rollback.py: elif away and (last := → elif False and (last :=
# fault: serving/serve/rollback.py: model, wanted = "", _fitted( → model, wanted = OTHER, _fitted(
# fault: kernel/node/history.py: if name in ("", line.name)] → ]
@pytest.mark.parametrize("model", [ONE, OTHER])
def test_what_was_stopped_is_served_again_by_its_name_beside_the_others(served: World, model: str) -> None:
    """It was refused as not served, though `rollback` alone brings back the only model that was stopped."""
    other = {ONE: OTHER, OTHER: ONE}[model]
    lab.succeed(served, INVENTORY, partial(lab.do_stop, name=model))
    person = lab.Person()
    back = lab.succeed(served, INVENTORY, partial(lab.do_rollback, name=model, confirm=person)).value
    assert (back.model, back.several, person.asked) == (model, True, [])
    rows = lab.succeed(served, INVENTORY, lab.do_status).value.head.serves
    assert {row.name: row.phase for row in rows} == {model: "ready", other: "ready"}
    # Where its GPUs are taken by now, the refusal has what makes room.
    lab.succeed(served, INVENTORY, partial(lab.do_stop, name=model))
    lab.succeed(served, INVENTORY, partial(lab.do_serve, hosts=(HOSTS[model],), model="org/third"))
    error = lab.run(served, INVENTORY, partial(lab.do_rollback, name=model)).error
    assert isinstance(error, PreflightFailed)
    assert error.hint == f"vcluster stop org/third\nvcluster rollback {model}"
    never = lab.run(served, INVENTORY, partial(lab.do_rollback, name="org/never")).error
    assert isinstance(never, UsageError)


# fault: serving/serve/rollback.py: _numbered(node, cluster, order, number) → number
def test_no_request_is_offered_that_has_no_room() -> None:
    """The model on gpu2 had nothing before it; the one that took both hosts before has no room beside it."""
    with lab.inside(world := make.world((2, 2))):
        lab.succeed(world, INVENTORY, lab.do_up)
        one = partial(lab.do_serve, model=ONE, tp=2, pp=1)
        lab.succeed(world, INVENTORY, partial(one, replicas=2))
        lab.succeed(world, INVENTORY, partial(one, hosts=("gpu1",), flags=("--seed=1",)))
        lab.succeed(world, INVENTORY, partial(lab.do_serve, hosts=("gpu2",), model=OTHER))
        error = lab.run(world, INVENTORY, partial(lab.do_rollback, name=OTHER)).error
        assert isinstance(error, PreflightFailed)
        assert error.message == f"gpu1: rollback: {OTHER} had no earlier request that was ready"
        assert error.hint == "vcluster status --history\nvcluster serve MODEL"
