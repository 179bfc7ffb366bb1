"""What was confirmed is what runs: every verb that would stop a model asks, or is refused."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import pytest

from tests.support.figures import record
from tests.support.sim import lab, make
from tests.support.sim.faults import Call, Fault, Script
from tests.support.sim.lab import Outcome, Person
from tests.support.sim.world import World
from vllm_cluster.features.batch.on_head.progress import Progress
from vllm_cluster.kernel.docker.client import DockerApi
from vllm_cluster.kernel.errors import Aborted, PreflightFailed, TimedOut, UsageError, VclusterError
from vllm_cluster.kernel.facts.docker_objects import Container
from vllm_cluster.kernel.hosts.connection import HostConnection
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.models.listed import CachedModel
from vllm_cluster.serving.cluster import moved_cache
from vllm_cluster.serving.cluster.up import plan_cluster
from vllm_cluster.serving.consent import MAX_LOOKS, Confirm, Consent
from vllm_cluster.serving.stops import Stops
from vllm_cluster.wire.order import read_order

INVENTORY = make.inventory(2)
CHANGED = make.inventory(2, environment={"A": "1"})
SERVE_THIRD = partial(lab.do_serve, model="org/third")


def verbs(confirm: Confirm) -> dict[str, tuple[Inventory, lab.Verb]]:
    """Every verb that stops what is served, and the inventory with which it does."""

    return {
        "up": (CHANGED, partial(lab.do_up, confirm=confirm)),
        "serve": (INVENTORY, partial(lab.do_serve, model="org/other", confirm=confirm)),
        "stop": (INVENTORY, partial(lab.do_stop, confirm=confirm)),
        "down": (INVENTORY, partial(lab.do_down, confirm=confirm)),
    }


VERBS = tuple(verbs(lambda _: None))
REMOVE = "remove cluster lab with its API key and history?"
THEN = {
    "up": " and the running nodes on gpu1, gpu2?",
    "serve": " and serve org/other?",
    "stop": "?",
    "down": f" and {REMOVE}",
}


def run(world: World, verb: str, confirm: Confirm, script: Script | None = None) -> Outcome:
    """One run of a verb of that table."""
    inventory, asked = verbs(confirm)[verb]
    return lab.run(world, inventory, asked, script)


@pytest.fixture
def world() -> Iterator[World]:
    """Two hosts that have served a model for three hours, with two requests."""
    with lab.cluster(2, lab.do_up, lab.do_serve) as made:
        made.requests = 2
        made.clock.sleep(3 * 3600)
        yield made


def serves(world: World) -> str | None:
    """The model that the head serves."""
    head = world.machines["gpu1"].box("vcluster-lab")
    course = head.life.get("serve") if head else None
    return str(course["phase"]) if course else None


# fault: serving/stops.py: (f"{self._models} on {cluster}", → ("what runs",
@pytest.mark.promise("P35")
@pytest.mark.parametrize("verb", VERBS)
def test_a_question_names_model_age_and_requests(world: World, verb: str) -> None:
    person = Person(True)
    done = run(world, verb, person)
    assert done.error is None, done.story()
    stop = "No GPU is free: stop" if verb == "serve" else "Stop"
    assert person.asked == [f"{stop} org/model (ready for 3 h, 2 requests running) on lab{THEN[verb]}"]
    record("P35", f"sim: {verb} on a terminal, a model is ready", person.asked[0], True)


PROGRESS = asdict(Progress(2000, 404, 0, 0, 0, 1.0, None, 0, 0, 9.0))
BATCH = {
    "key": "a1b2c3d4e5f60718",
    "state": {"running": True, "sent": True, "phase": "running", "note": "", "progress": PROGRESS},
    "asked": {"user": "ann@laptop", "time": 1.0, "source": "/home/ann/in.jsonl", "output": "/home/ann/out.jsonl"},
}


# fault: serving/cluster/down.py: {removal.losses}{removal.places} → {removal.losses}
# fault: serving/cluster/down.py: raise removal.unfinished() → raise combine(removal.failures)
# fault: serving/cluster/down.py: self.emit(Event("note", f"deleted too: {stops.deleted}")) → pass
def test_down_without_a_worker_names_what_goes_and_what_stays(world: World) -> None:
    """The head went, with key, history and batch, and the only word was that the worker cannot be reached."""
    world.batches = [BATCH]
    world.machines["gpu2"].reachable = False
    person = lab.Person(True)
    outcome = lab.run(world, INVENTORY, partial(lab.do_down, confirm=person))
    assert person.asked[0].endswith("with its API key and history from gpu1 and not from gpu2?")
    told = [event.text for event in outcome.events if event.kind in ("note", "result")]
    assert told == [
        "the API key is removed too; the next vcluster up makes a new one",
        "deleted too: 1 unfetched batch on the head (/home/ann/out.jsonl of ann@laptop: running, 404/2000 answered)",
        "Removed cluster lab on gpu1 alone: 1 container, 2 volumes on 1 host. Its history is deleted too.",
    ]
    error = outcome.error
    assert isinstance(error, VclusterError) and error.exit_code == 4
    assert error.lines[1:] == ["not removed from gpu2: a node and volumes of it may be left there"]
    assert error.fixes[-2:] == ["once gpu2 can be reached:", "vcluster down"]


# fault: serving/cluster/down.py: history" if self._loses_head else "" → history"
def test_down_without_the_head_names_no_loss_of_what_stays_there(world: World) -> None:
    world.machines["gpu1"].reachable = False
    person = lab.Person(True)
    outcome = lab.run(world, INVENTORY, partial(lab.do_down, confirm=person))
    assert person.asked[0].endswith("and remove cluster lab from gpu2 and not from gpu1?")
    told = [event.text for event in outcome.events if event.kind in ("note", "result")]
    assert told == ["Removed cluster lab on gpu2 alone: 1 container, 2 volumes on 1 host."]


# fault: serving/stops.py: bool(stops or self.batches or self.unlisted → bool(stops or self.unlisted
@pytest.mark.parametrize("served", [True, False])
def test_down_asks_before_it_deletes_a_batch_that_is_not_fetched(world: World, served: bool) -> None:
    if not served:
        assert run(world, "stop", Person(True)).error is None
    world.batches = [BATCH]
    person = Person(None)
    refused = run(world, "down", person)
    delete = "elete 1 unfetched batch on the head (/home/ann/out.jsonl of ann@laptop: running, 404/2000 answered)"
    model = "Stop org/model (ready for 3 h, 2 requests running) on lab, d"
    assert person.asked == [f"{model if served else 'D'}{delete} and {REMOVE}"]
    assert isinstance(refused.error, UsageError)
    assert refused.error.again == ("--yes",)
    assert refused.script.changing == []
    assert run(world, "down", Person(True)).error is None
    assert world.machines["gpu1"].box("vcluster-lab") is None


# fault: serving/consent.py: elif always and first → elif first
def test_down_asks_a_person_of_an_idle_cluster_too(world: World) -> None:
    """Without a terminal that alone needs no answer; where nothing is left there is nothing to ask."""
    assert run(world, "stop", Person(True)).error is None
    person = Person(False)
    refused = run(world, "down", person)
    assert person.asked == ["Remove cluster lab with its API key and history?"]
    assert isinstance(refused.error, Aborted)
    assert refused.script.changing == []
    assert run(world, "down", Person(None)).error is None
    assert run(world, "down", Person()).error is None
    assert world.machines["gpu1"].volumes == {}


# fault: serving/cluster/down.py: return replace(stops, pulls=pulls, outside=outside, given_up=others) → return replace(stops, outside=outside)
def test_down_names_the_pull_that_it_ends(world: World) -> None:
    """One that has ended is not named, and a yes to one pull is none to another that begins before the lease."""
    assert run(world, "stop", Person(True)).error is None
    make.part_of_a_pull(world, "gpu1", "done")
    make.part_of_a_pull(world, "gpu2", "receiving")
    person = Person(None)
    refused = run(world, "down", person)
    assert person.asked == [f"End the pull of org/new@{'c' * 40} to gpu2 and {REMOVE}"]
    assert isinstance(refused.error, UsageError)
    assert (refused.error.again, refused.script.changing) == (("--yes",), [])
    machine = world.machines["gpu2"]
    pull = machine.box("vcluster-lab-pull")
    assert pull

    def hook(call: Call) -> None:
        if call.what == "lease":
            script.hook = lambda _: None
            pull.files.update({name: one.replace(b"org/new", b"org/two") for name, one in pull.files.items()})

    script = Script(hook=hook)
    person = Person(True, False)
    assert isinstance(run(world, "down", person, script).error, Aborted)
    assert "the pull of org/two" in person.asked[1]
    assert pull.id in machine.boxes
    assert run(world, "down", Person(True)).error is None
    assert pull.id not in machine.boxes


# fault: serving/consent.py: left = replace(_left_behind(plan, containers, fleet), → left = replace(Stops(),
@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("running", [True, False])
def test_a_head_that_moves_names_the_batches_that_it_leaves_behind(world: World, running: bool, there: bool) -> None:
    assert run(world, "stop", Person(True)).error is None
    machine = world.machines["gpu1"]
    if there:
        world.batches = [BATCH]
        machine.volumes["vcluster-lab-state"].files["batch/a1b2c3d4e5f60718/input"] = b"{}\n"
    head = machine.box("vcluster-lab")
    assert head
    if not running:
        world.stop(machine, head, gently=False, code=137)
    moved = make.inventory_of(2, 1)
    planned = lab.succeed(world, moved, lab.do_look).value
    person = Person(None)
    refused = lab.run(world, moved, verbs(person)["up"][1])
    assert isinstance(refused.error, UsageError), refused.story()
    which = "1 unfetched batch on the head (/home/ann/out.jsonl of ann@laptop: running, 404/2000 answered)"
    if not running:
        which = "the batches on gpu1 that cannot be listed (its container is exited)"
    assert (f"leave behind {which}" in person.asked[0]) is there
    assert planned.stops.consequence == (f"left behind: {which}" if there else "")
    assert refused.script.changing == []
    assert lab.run(world, moved, verbs(Person(True))["up"][1]).error is None


def fail_at(words: str, fault: Fault) -> Script:
    """A script in which every such call goes wrong."""
    return Script(by_words=lambda call: fault if words in call.what else None)


# fault: serving/consent.py: there else → there and not why else
@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("how", ["exited", "paused", "silent", "refused"])
def test_down_asks_where_the_batches_on_the_head_cannot_be_listed(world: World, how: str, there: bool) -> None:
    assert run(world, "stop", Person(True)).error is None
    machine = world.machines["gpu1"]
    head = machine.box("vcluster-lab")
    assert head
    why = f"its container is {how}"
    script = None
    if how == "exited":
        world.stop(machine, head, gently=False, code=137)
    elif how == "paused":
        head.state = how
    else:
        script = fail_at("output of batch_job", Fault.SILENT if how == "silent" else Fault.ERROR)
        why = "`batch_job` did not end in time" if how == "silent" else "its program does not run: "
    if there:
        machine.volumes["vcluster-lab-state"].files["batch/a1b2c3d4e5f60718/input"] = b"{}\n"
    person = Person(None)
    done = run(world, "down", person, script)
    assert done.seconds < 30
    if not there:
        assert (done.error, person.asked) == (None, [REMOVE.capitalize().replace("api", "API")])
        return
    assert isinstance(done.error, UsageError), done.story()
    (question,) = person.asked
    assert question.startswith(f"Delete the batches on gpu1 that cannot be listed ({why}"), question
    assert question.endswith(f") and {REMOVE}")
    assert done.script.changing == []
    assert run(world, "down", Person(True)).error is None
    assert machine.volumes == {}


def test_a_yes_to_batches_that_cannot_be_listed_covers_them_all(world: World) -> None:
    assert run(world, "stop", Person(True)).error is None
    world.batches = [BATCH]
    world.machines["gpu1"].volumes["vcluster-lab-state"].files["batch/a1b2c3d4e5f60718/input"] = b"{}\n"
    seen = [0]

    def decide(call: Call) -> Fault | None:
        seen[0] += call.what == "output of batch_job"
        return Fault.ERROR if call.what == "output of batch_job" and seen[0] == 1 else None

    person = Person(True)
    assert run(world, "down", person, Script(by_words=decide)).error is None
    assert (len(person.asked), seen) == (1, [2])


# fault: serving/consent.py: return Stops(tuple(served)) → return Stops()
@pytest.mark.promise("P35")
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(("answer", "code"), [(False, 1), (None, 2)])
def test_without_a_yes_nothing_changes(world: World, verb: str, answer: bool | None, code: int) -> None:
    refused = run(world, verb, Person(answer))
    assert isinstance(refused.error, VclusterError), refused.story()
    assert refused.error.exit_code == code
    assert refused.script.changing == []
    assert serves(world) == "ready"
    if answer is None:
        assert refused.error.again == ("--yes",)
        assert "org/model (ready for 3 h, 2 requests running) on lab" in refused.error.message
        record("P35", f"sim: {verb} without a terminal, a model is ready", "exit 2, 0 changing calls", True)


@pytest.mark.promise("P35")
@pytest.mark.parametrize("verb", VERBS)
def test_what_cannot_be_asked_is_called_unknown(world: World, verb: str) -> None:
    world.requests = None
    person = Person(False)
    run(world, verb, person)
    assert "(ready for 3 h, unknown number of requests running)" in person.asked[0]


# fault: serving/consent.py: silent = len(numbers) - len(known) → silent = 0
@pytest.mark.promise("P35")
def test_a_question_names_replicas_of_unknown_load() -> None:
    """What one reports of itself changes nothing of the others' number."""
    world, inventory = make.world((2, 2)), make.inventory(2, backend="mp")
    with lab.inside(world):
        lab.succeed(world, inventory, lab.do_up)
        lab.succeed(world, inventory, partial(lab.do_serve, replicas=2, tp=2, pp=1))
        world.clock.sleep(3 * 3600)
        for loads, words in (
            ({"0": 7, "1": 2}, "9 requests running"),
            ({"1": 9}, "at least 9 requests running, unknown for 1 replica"),
            ({"": 9}, "unknown number of requests running"),
        ):
            world.requests, person = loads, Person(False)
            lab.run(world, inventory, partial(lab.do_stop, confirm=person))
            assert person.asked[-1] == f"Stop org/model (all 2 replicas, ready for 3 h, {words}) on lab?"


@pytest.mark.promise("P35")
def test_a_model_that_loads_is_asked_about_too(world: World) -> None:
    """A colleague's `serve` waits for it."""
    assert lab.run(world, INVENTORY, lab.do_stop).error is None
    lab.run(world, INVENTORY, lab.do_serve, interrupt_at("status.json", 7))
    for verb in VERBS:
        person = Person(None)
        refused = run(world, verb, person)
        assert refused.script.changing == [], refused.story()
        assert any(f"org/model ({phase} for" in person.asked[0] for phase in ("waiting", "importing", "loading"))


def interrupt_at(words: str, number: int) -> Script:
    """A script in which the person presses Ctrl-C at the n-th such call."""
    script, seen = Script(), [0]

    def decide(call: Call) -> Fault | None:
        seen[0] += words in call.what
        return Fault.INTERRUPT if seen[0] == number else None

    script.by_words = decide
    return script


@pytest.mark.promise("P35")
def test_what_is_served_already_asks_nothing(world: World) -> None:
    again = partial(lab.do_serve, confirm=Person())
    assert lab.run(world, INVENTORY, again).error is None
    assert serves(world) == "ready"


def test_nothing_served_asks_nothing(world: World) -> None:
    assert lab.run(world, INVENTORY, lab.do_stop).error is None
    for verb in ("stop", "serve", "stop"):
        confirm = Person() if verb != "stop" or serves(world) is None else Person(True)
        assert run(world, verb, confirm).error is None


def meanwhile(world: World, inventory: Inventory, *others: lab.Verb) -> Script:
    """A script in which a colleague's verbs run just before the lease is asked for, once."""
    script, left = Script(), list(others)

    def decide(call: Call) -> Fault | None:
        if call.what == "lease" and left:
            mine, left[:] = list(left), []
            for verb in mine:
                lab.succeed(world, inventory, verb)
        return None

    script.by_words = decide
    return script


# fault: serving/cluster/up.py: if consent.covers(_stops(inventory, seen, fleet)): → if seen:
@pytest.mark.promise("P35")
@pytest.mark.parametrize(("answers", "code"), [((None,), 3), ((False,), 1), ((True,), 0)])
def test_up_asks_again_where_its_plan_stops_more_than_was_confirmed(
    answers: tuple[bool | None, ...], code: int
) -> None:
    """A's plan recreates a lost worker and stops nothing; meanwhile B changes the environment, and serves."""
    world = make.world((2, 2))
    with lab.inside(world):
        assert lab.run(world, INVENTORY, lab.do_up).error is None
        machine = world.machines["gpu2"]
        lost = machine.box("vcluster-lab")
        assert lost
        world.remove(machine, lost)
        person = Person(*answers)
        script = meanwhile(world, CHANGED, lab.do_up, lab.do_serve)

        outcome = lab.run(world, INVENTORY, partial(lab.do_up, confirm=person), script)
        assert len(person.asked) == 1, outcome.story()
        assert person.asked[0].startswith("Stop org/model (ready for ")
        assert person.asked[0].endswith(" on lab and the running nodes on gpu1, gpu2?")
        error = outcome.error
        assert (error.exit_code if isinstance(error, VclusterError) else 0) == code, outcome.story()
        if code:
            assert serves(world) == "ready"
            assert outcome.script.changing == []
        assert lab.run(world, CHANGED, lab.do_up).error is None, "the lease was not given back"
        record(
            "P35", f"sim: up, the cluster changes before the lease, the answer is {answers[0]}", f"exit {code}", True
        )


@pytest.mark.promise("P35")
@pytest.mark.parametrize("verb", ["serve", "stop", "down"])
def test_every_verb_asks_again_about_another_model(world: World, verb: str) -> None:
    person = Person(True, None)
    outcome = run(world, verb, person, meanwhile(world, INVENTORY, SERVE_THIRD))
    assert [question.partition("top ")[2].split()[0] for question in person.asked] == ["org/model", "org/third"]
    assert isinstance(outcome.error, VclusterError)
    assert outcome.error.exit_code == 3
    assert "the cluster has changed" in outcome.error.message
    assert serves(world) == "ready"


@pytest.mark.promise("P35")
@pytest.mark.parametrize("verb", VERBS)
def test_yes_continues_after_any_change(world: World, verb: str) -> None:
    outcome = run(world, verb, lambda _: True, meanwhile(world, INVENTORY, SERVE_THIRD))
    assert outcome.error is None, outcome.story()


@pytest.mark.promise("P35")
def test_down_without_its_head_asks_with_an_unknown_model(world: World) -> None:
    world.machines["gpu1"].reachable = False
    person = Person(None)
    refused = run(world, "down", person)
    (question,) = person.asked
    assert question.startswith("Stop the model of lab (unknown: the head gpu1 did not answer) and remove cluster lab")
    assert refused.script.changing == []


# fault: serving/consent.py: not in containers: → not in (*containers, *running[0]) and not found:
@pytest.mark.promise("P35", "P47")
def test_a_worker_that_calls_itself_the_head_takes_no_question_away() -> None:
    """Its word was that nothing is served: the node of another, on which the model ran, was removed unasked."""
    with lab.cluster(3, lab.do_up, lab.do_serve) as world:
        world.machines["gpu1"].reachable = False
        liar = world.machines["gpu2"].box("vcluster-lab")
        assert liar
        liar.labels["io.vcluster.role"] = "head"
        person = Person(None)
        refused = lab.run(world, make.inventory(3), partial(lab.do_down, confirm=person))
        assert "Stop the model of lab (unknown: the head gpu1 did not answer)" in person.asked[0]
        assert refused.script.changing == [], refused.story()


# fault: serving/consent.py: if self._left < 0: → if False:
def test_a_head_that_shows_something_else_at_each_look_ends_the_verb() -> None:
    """Each yes was about something else by then, and the verb began again, without end."""
    consent, asked = Consent(lambda _: True, "lab"), itertools.count()
    with pytest.raises(PreflightFailed, match="lab was another at each of 8 looks"):
        for number in asked:
            consent.ask(Stops(unknown=f"model {number}"))
            assert number < 99
    assert next(asked) == MAX_LOOKS + 1


def test_a_host_that_shows_another_pull_at_each_look_is_named() -> None:
    consent = Consent(lambda _: True, "lab")
    with pytest.raises(PreflightFailed, match=r"gpu2: its pull was org/m7, then org/m8$"):
        for number in range(99):
            consent.ask(Stops(pulls={"gpu2": f"org/m{number}", "gpu3": "org/m"}))


def changing_worker(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    """From now on this host shows its containers under another id each time."""
    number, listed = itertools.count(), DockerApi.containers

    def show(self: DockerApi, *words: Any, **more: Any) -> list[Container]:
        found = list(listed(self, *words, **more))
        mine = self._calls.host == host
        return [replace(one, id=f"{next(number):064x}") for one in found] if mine else found

    monkeypatch.setattr(DockerApi, "containers", show)


# fault: serving/changing.py: if before.get(host) != now.get(host): → if False:
# fault: kernel/hosts/connection.py: if self.runtime.clock.monotonic() - began > SLOW_SECONDS: → if False:
def test_a_worker_that_is_another_at_each_look_is_named_and_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is silent about its cache too: 18 looks of 30 s each, 8 of them with the lease, and no host in the refusal."""
    looks = []

    def slow(_inventory: Inventory, connection: HostConnection, seconds: float = 300.0) -> tuple[CachedModel, ...]:
        if connection.name == "gpu2":
            looks.append(seconds)
            connection.runtime.clock.sleep(seconds)
            raise TimedOut("gpu2", "models: no answer")
        return ()

    with lab.cluster(3, lab.do_up, lab.do_serve) as world:
        changing_worker(monkeypatch, "gpu2")
        monkeypatch.setattr(moved_cache, "cached", slow)
        outcome = lab.run(world, make.inventory(3, model_cache="/data/new"), lab.do_up)
    assert (len(looks), outcome.seconds < 60) == (1, True)
    error = outcome.error
    assert isinstance(error, PreflightFailed)
    first, line = error.lines
    assert first == "lab was another at each of 8 looks"
    assert re.fullmatch("gpu2: its node was [0-9a-f]{64}, then [0-9a-f]{64}", line)
    assert error.fixes == [
        "on gpu2: docker ps -a --filter=name=vcluster-lab",
        "where it stays so, take gpu2 out of the inventory",
    ]


@pytest.mark.promise("P35")
@pytest.mark.parametrize("verb", ["up", "down"])
def test_workers_of_a_head_outside_the_inventory_do_not_stop_unasked(verb: str) -> None:
    """A person has set the cluster's id, as for a head that was lost, and that head still serves."""
    world = make.world((2, 2, 2))
    with lab.inside(world):
        assert lab.run(world, make.inventory(3), lab.do_up).error is None
        assert lab.run(world, make.inventory(3), lab.do_serve).error is None
        node = world.machines["gpu2"].box("vcluster-lab")
        assert node
        without = make.inventory_of(2, 3, id=node.labels["io.vcluster.id"])
        person = Person(None)
        refused = lab.run(world, without, verbs(person)[verb][1])
        assert "Stop the model of lab (unknown: the head at 10.0.0.1 did not answer)" in person.asked[0]
        assert refused.script.changing == [], refused.story()
        assert serves(world) == "ready"


# fault: serving/ask_head.py: _require_same(node, gpus) → pass
@pytest.mark.parametrize("verb", ["serve", "rollback"])
def test_hosts_that_leave_while_a_question_is_open_are_not_served_on(verb: str) -> None:
    first, second = (partial(lab.do_serve, model=model) for model in ("org/a", "org/b"))
    with lab.cluster(2, lab.do_up, first, second) as world:
        mine = lab.do_rollback if verb == "rollback" else SERVE_THIRD
        refused = lab.run(world, INVENTORY, mine, meanwhile(world, make.inventory(1), lab.do_up))
        assert isinstance(refused.error, VclusterError)
        assert refused.error.message.endswith("have changed since they were looked at; nothing was changed")
        wanted = read_order(world.machines["gpu1"].volumes["vcluster-lab-state"].files["wanted.json"]).wanted
        assert wanted and wanted.deployment.model == "org/b"


def test_a_rollback_asks_again_about_another_model() -> None:
    first, second = (partial(lab.do_serve, model=model) for model in ("org/a", "org/b"))
    with lab.cluster(2, lab.do_up, first, second) as world:
        person = Person(True, None)
        back = partial(lab.do_rollback, confirm=person)
        refused = lab.run(world, INVENTORY, back, meanwhile(world, INVENTORY, SERVE_THIRD))
        assert [question.split()[1] for question in person.asked] == ["org/b", "org/third"]
        assert isinstance(refused.error, VclusterError)
        assert refused.error.message.startswith("the cluster has changed")


# fault: serving/cluster/up.py: if stops.again else stops → if False else stops
# fault: serving/cluster/moved_cache.py: if one.model not in names and → if
@pytest.mark.parametrize("there", [True, False])
def test_a_cache_that_moves_is_looked_into_for_what_is_served(world: World, there: bool) -> None:
    """Without a word the model was stopped for a start that had to fail."""
    if there:
        for machine in world.machines.values():
            machine.models["hub/models--org--model"] = 1 << 30
    moved = make.inventory(2, model_cache="/data/new")
    lacks = "org/model is not in /data/new of gpu1, gpu2: first vcluster pull org/model"
    planned = lab.succeed(world, moved, lab.verb(plan_cluster)).value
    assert (lacks in planned.stops.consequence) is not there
    person = lab.Person(False)
    refused = lab.run(world, moved, partial(lab.do_up, confirm=person))
    assert isinstance(refused.error, Aborted) and (f"({lacks})" in person.asked[0]) is not there
    told = [event.text for event in refused.events if event.kind == "note"]
    assert any(lacks in text for text in told) is not there


# fault: kernel/plan/cached_model.py: if REPOSITORY.fullmatch(model) else "" → if model else ""
@pytest.mark.promise("P46", "P47")
@pytest.mark.parametrize("model", ["./secrets", "../.ssh", "~/.ssh", "C/../../.ssh", "gpu1:/data/mine", "/data/x"])
def test_no_remedy_for_a_moved_cache_brings_what_a_head_has_chosen(model: str) -> None:
    """Pasted, it was a folder of the laptop, or of another host."""
    assert moved_cache._remedy(model) == "bring it there"
    assert moved_cache._remedy("org/model") == "vcluster pull org/model"


# fault: serving/cluster/moved_cache.py: cached(inventory, connection, LOOK_SECONDS)) → cached(inventory, connection))
def test_a_slow_cache_holds_up_no_plan(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(_inventory: Inventory, _connection: object, seconds: float = 300.0) -> tuple[CachedModel, ...]:
        world.clock.sleep(seconds)
        raise TimedOut("gpu1", "models: no answer")

    monkeypatch.setattr(moved_cache, "cached", slow)
    planned = lab.succeed(world, make.inventory(2, model_cache="/data/new"), lab.verb(plan_cluster))
    assert planned.seconds < 100
