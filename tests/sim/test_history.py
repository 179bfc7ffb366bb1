"""What was served can be read later and gone back to, and the same request twice changes nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial

import pytest

from tests.support.json_schemas import validate
from tests.support.sim import lab, life, make
from tests.support.sim.faults import Call, Fault, Script
from tests.support.sim.lab import Outcome
from tests.support.sim.world import World
from vllm_cluster.kernel.errors import PreflightFailed, UsageError
from vllm_cluster.kernel.plan.history import Entry
from vllm_cluster.kernel.shell_line import Pasted
from vllm_cluster.kernel.terminal.output import MARK
from vllm_cluster.serving.explain import explain
from vllm_cluster.serving.explain.render import explain_document, show_explained
from vllm_cluster.serving.status import history
from vllm_cluster.serving.status import render_history as render
from vllm_cluster.serving.status.render_history import history_document, show_history
from vllm_cluster.wire.order import Order, read_order
from vllm_cluster.wire.parts import MAX_REPLACING, REPLACING, Replacing
from vllm_cluster.wire.reading import read

INVENTORY = make.inventory(2)


@pytest.fixture
def world() -> Iterator[World]:
    """A cluster of two hosts that is up."""
    with lab.cluster(2, lab.do_up) as made:
        yield made


def serve(world: World, model: str, script: Script | None = None) -> Outcome:
    """`vcluster serve --yes MODEL`."""
    return lab.run(world, INVENTORY, partial(lab.do_serve, model=model), script)


def go_back(world: World, answer: bool | None = True) -> tuple[Outcome, list[str]]:
    """`vcluster rollback`, and what it asked."""
    person = lab.Person(answer)
    return lab.run(world, INVENTORY, partial(lab.do_rollback, confirm=person)), person.asked


def entries(world: World) -> list[Entry]:
    """`vcluster status --history`."""
    outcome = lab.succeed(world, INVENTORY, lambda i, _, runtime: history.history(i, runtime=runtime))
    return list(outcome.value)


def wanted(world: World) -> Order:
    """The order as the head has it."""
    box = world.machines["gpu1"].box("vcluster-lab")
    assert box
    return read_order(world.machines["gpu1"].read(box, f"{life.STATE}/wanted.json") or b"{}")


def asked_for(world: World) -> str:
    """The model that the head is asked for."""
    asked = wanted(world).wanted
    assert asked
    return asked.deployment.model


# fault: serving/serve/rollback.py: known = _is_now(found, now, asked) or → known = not _is_now(found, now, asked) or
def test_rollback_serves_what_was_ready_before_and_back_again(world: World) -> None:
    for model in ("org/a", "org/b"):
        assert serve(world, model).error is None
    outcome, asked = go_back(world)
    assert outcome.error is None, outcome.story()
    assert [question.partition(" (")[0] for question in asked] == ["Stop org/b"]
    assert re.search(r" and serve org/a \(ready after \d+ s the last time\)\?$", asked[0])
    assert asked_for(world) == "org/a"
    assert go_back(world)[0].error is None
    assert asked_for(world) == "org/b"


# fault: kernel/node/history.py: (line.name, line.model, line.result) == which] → (line.model, line.result) == which[1:]]
def test_how_long_it_took_is_of_the_same_name(world: World) -> None:
    """A model under another name has other GPUs and flags."""
    for model, name in (("org/a", "a"), ("org/b", "b")):
        lab.succeed(world, INVENTORY, partial(lab.do_serve, model=model, name=name))

    def question(model: str, name: str) -> str:
        person = lab.Person(False)
        lab.run(world, INVENTORY, partial(lab.do_serve, model=model, name=name, confirm=person))
        return person.asked[0]

    assert "the last time" in question("org/a", "a")
    assert "the last time" not in question("org/a", "other")
    assert "the last time" not in question("org/c", "a")


# fault: serving/serve/rollback.py: if found is None: → if found is not None:
# fault: kernel/node/history.py: if (one.generation, one.deployment.replicas) == asked), None), end → ), None), end
def test_rollback_takes_the_number_of_a_request_in_the_history(world: World) -> None:
    for model in ("org/a", "org/b", "org/c"):
        assert serve(world, model).error is None
    numbers = {entry.operations[0].split()[1]: entry.request for entry in entries(world)[1:]}

    def to(number: int | None) -> Outcome:
        return lab.run(world, INVENTORY, partial(lab.do_rollback, name=str(number)))

    assert to(numbers["org/a"]).error is None
    assert asked_for(world) == "org/a"
    again = to(numbers["org/a"]).error
    assert isinstance(again, PreflightFailed)
    assert again.message.endswith(f"request {numbers['org/a']} is what is served now: org/a")
    assert to(numbers["org/c"]).error is None
    assert asked_for(world) == "org/c"


def test_rollback_refuses_a_number_that_cannot_be_served(world: World) -> None:
    for model in ("org/a", "org/b"):
        assert serve(world, model).error is None
    assert serve(world, "no/such").error is not None
    failed = entries(world)[-1].request
    for number, why in ((failed, "never was ready (back)"), (99, "is not in the history")):
        error = lab.run(world, INVENTORY, partial(lab.do_rollback, name=str(number))).error
        assert isinstance(error, PreflightFailed)
        assert error.message.endswith(f"request {number} {why}")
        assert error.hint == "vcluster status --history"
    for number in range(6):
        lab.succeed(
            world, INVENTORY, partial(lab.do_serve, model="org/b", flags=("--max-model-len", f"{number + 512}"))
        )
    first = entries(world)[1].request
    error = lab.run(world, INVENTORY, partial(lab.do_rollback, name=str(first))).error
    assert isinstance(error, PreflightFailed)
    assert (error.message.partition(" is kept")[0], error.hint) == (
        f"gpu1: rollback: request {first}",
        "vcluster serve org/a",
    )
    assert asked_for(world) == "org/b"


# fault: serving/serve/rollback.py: end.model if REPOSITORY.fullmatch(end.model) else "MODEL" → end.model
@pytest.mark.parametrize("model", ["/srv/other", "laptop:/home/me", "--config=x", "a b; rm -rf ~"])
def test_a_line_of_the_head_is_in_no_command_unless_it_is_of_the_hub(world: World, model: str) -> None:
    assert serve(world, "org/a").error is None
    line = {"request": 90, "result": "ready", "model": model, "generation": "gone"}
    world.machines["gpu1"].volumes["vcluster-lab-state"].files["results.jsonl"] += json.dumps(line).encode() + b"\n"
    error = lab.run(world, INVENTORY, partial(lab.do_rollback, name="90")).error
    assert isinstance(error, PreflightFailed)
    assert error.hint == "vcluster serve MODEL"


# fault: kernel/node/handle.py: whoami(), wanted, drain=drain) → whoami(), wanted)
def test_an_order_has_how_long_open_requests_may_take(world: World) -> None:
    assert serve(world, "org/a").error is None
    assert wanted(world).drain is None
    for verb in (partial(lab.do_serve, model="org/b"), lab.do_stop):
        before = wanted(world).epoch
        lab.succeed(world, INVENTORY, partial(verb, drain=12.5))
        assert (wanted(world).epoch, wanted(world).drain) == (before + 1, 12.5)
    assert serve(world, "org/b").error is None
    assert wanted(world).drain is None


@pytest.mark.parametrize("answer", [None, False])
def test_rollback_stops_nothing_unasked(world: World, answer: bool | None) -> None:
    for model in ("org/a", "org/b"):
        assert serve(world, model).error is None
    before = wanted(world)
    outcome, _ = go_back(world, answer)
    assert isinstance(outcome.error, UsageError) if answer is None else outcome.error is not None
    assert wanted(world) == before


def test_without_anything_before_there_is_nothing_to_go_back_to(world: World) -> None:
    assert isinstance(go_back(world)[0].error, PreflightFailed)
    assert serve(world, "org/a").error is None
    error = go_back(world)[0].error
    assert isinstance(error, PreflightFailed)
    assert error.message == "gpu1: rollback: org/a had no earlier request that was ready"
    assert lab.run(world, INVENTORY, lab.do_stop).error is None
    assert go_back(world)[0].error is None
    assert asked_for(world) == "org/a"


# fault: kernel/node/history.py: reversed(lines) if line.generation not in served] → reversed(lines)]
# fault: serving/serve/rollback.py: if last: → if False:
def test_a_model_without_an_earlier_request_is_refused_with_what_was_ready_last() -> None:
    """Another model was ready before it: a number of the history goes back to that."""
    inventory = make.inventory(2, backend="mp")
    with lab.cluster(2) as world:
        lab.succeed(world, inventory, lab.do_up)
        lab.succeed(world, inventory, partial(lab.do_serve, model="org/a", hosts=("gpu1",)))
        number = entries(world)[-1].request
        for model, host in (("org/b", "gpu1"), ("org/c", "gpu2")):
            lab.succeed(world, inventory, partial(lab.do_serve, model=model, hosts=(host,)))
        error = lab.run(world, inventory, partial(lab.do_rollback, name="org/c")).error
        assert isinstance(error, PreflightFailed)
        last = f"the last one of any model is {number}: vcluster serve org/a --hosts gpu1"
        assert error.message == f"gpu1: rollback: org/c had no earlier request that was ready; {last}"
        assert error.hint == f"vcluster rollback {number}\nvcluster status --history\nvcluster serve MODEL"
        lab.succeed(world, inventory, partial(lab.do_rollback, name=str(number)))
        assert {one.deployment.model for one in wanted(world).deployments} == {"org/a", "org/c"}


# fault: kernel/plan/placement.py: name = name_of(deployment, replica) → name = __import__('secrets').token_hex(4)
def test_the_same_request_twice_changes_nothing_despite_events_between(world: World) -> None:
    """A retry after a failure has no other name: what is healthy afterwards is left alone."""
    assert serve(world, "no/such").error is not None
    first = wanted(world)
    assert serve(world, "no/such").error is not None
    again = wanted(world)
    assert (again.wanted, again.epoch) == (first.wanted, first.epoch + 1)
    assert serve(world, "org/a").error is None
    served = wanted(world)
    for _ in range(2):
        outcome = serve(world, "org/a")
        assert outcome.error is None
        assert not [call for call in outcome.script.changing if "archive" in call.what or "exec" in call.what]
    assert wanted(world) == served


def test_the_history_shows_who_did_what_with_which_result(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(world, "org/a").error is None
    assert serve(world, "no/such").error is not None
    assert serve(world, "org/b").error is None
    assert go_back(world)[0].error is None
    assert lab.run(world, INVENTORY, lab.do_stop).error is None
    found = entries(world)
    assert [(entry.verb, entry.result) for entry in found] == [
        ("up", None),
        ("serve", "ready"),
        ("serve", "back"),
        ("serve", "ready"),
        ("rollback", "ready"),
        ("stop", None),
    ]
    assert found[2].failure == "no such model"
    assert all(entry.user for entry in found)
    document = json.dumps(history_document("lab", found))
    validate(["status", "--history"], document)
    show_history("lab", found, color="never")
    shown = capsys.readouterr().out
    title, *lines = shown.splitlines()
    assert title.split() == ["#", "WHEN", "USER", "RESULT", "WHAT"]
    at = title.index("RESULT")
    numbers = [str(entry.request) for entry in found[1:5]]
    assert [line[: title.index("WHEN")].strip() for line in lines] == ["", *numbers, ""]
    assert [" ".join(line[at:].split()) for line in lines[1:]] == [
        "ready after 1 s serve org/a (TP=2 × PP=2)",
        "rolled back serve no/such (TP=2 × PP=2): no such model; the previous model is served again after 1 s",
        "ready after 1 s serve org/b (TP=2 × PP=2)",
        "ready after 1 s rollback to org/a (TP=2 × PP=2)",
        "done stop",
    ]


def test_a_line_of_the_history_that_cannot_be_written_is_a_warning(world: World) -> None:
    """The head has the request all the same, and its own line names who asked."""
    script = Script(by_words=lambda call: Fault.ERROR if call.what == "docker exec append_line" else None)
    outcome = serve(world, "org/a", script)
    assert outcome.error is None
    assert script.met, "nothing was appended"
    assert any(event.kind == "warning" and "history" in event.text for event in outcome.events)
    last = entries(world)[-1]
    assert (last.operations, last.result, last.user) == (("serve org/a",), "ready", "ada@laptop")


def test_requests_are_distinct_and_an_up_lists_its_hosts(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """Five requests for one model differ in their names, layouts and flags; a rollback names the one that it took."""
    for given in ({"name": "long", "flags": ("--max-model-len", "8192")}, {"tp": 1, "pp": 4}):
        lab.succeed(world, INVENTORY, partial(lab.do_serve, model="org/a", **given))
    assert go_back(world)[0].error is None
    up, *requests = entries(world)
    long = "org/a --name long -- --max-model-len 8192 (TP=2 × PP=2)"
    assert [one.operations for one in requests] == [
        (f"serve {long}",),
        ("serve org/a --tp 1 --pp 4 (TP=1 × PP=4)",),
        (f"rollback to {long}",),
    ]
    assert up.operations[1] == "gpu2: prepare image, create container vcluster-lab"
    assert up.seconds is not None
    show_history("lab", [up], color="never")
    assert re.search(r"\n\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \S+  \S+  done after \d+ s  up: ", capsys.readouterr().out)


@pytest.mark.parametrize("width", [40, 80])
def test_on_a_terminal_no_word_of_an_entry_is_broken(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(render, "columns", lambda: width)
    what = ("serve org/model --name long -- --max-model-len 8192 (TP=2 × PP=2)",)
    show_history("lab", [Entry(0.0, "ada@laptop", "serve", what, 1, "ready", 61.0)], color="never")
    _, first, *more = capsys.readouterr().out.splitlines()
    assert first.startswith("1  ") and more
    assert all(len(line) <= width for line in (first, *more))
    assert all(line.startswith(MARK) for line in more)
    shown = " ".join((first, *(line.removeprefix(MARK) for line in more)))
    assert shown.split()[-len(what[0].split()) :] == what[0].split()


def test_a_long_failure_is_cut_between_words(capsys: pytest.CaptureFixture[str]) -> None:
    show_history("lab", [Entry(0.0, "ada", "serve", (), 1, "failed", None, "word " * 100)], color="never")
    assert capsys.readouterr().out.endswith("word word …\n")


def test_what_a_request_came_to_is_not_overwritten_by_a_later_start(world: World) -> None:
    """A head that moved starts the same request again, and writes how long that took."""
    assert serve(world, "org/a").error is None
    files = world.machines["gpu1"].volumes["vcluster-lab-state"].files
    again = {**json.loads(files["results.jsonl"].splitlines()[-1]), "seconds": 51.0}
    files["results.jsonl"] += json.dumps(again).encode() + b"\n"
    assert entries(world)[-1].seconds == 0.9


def test_after_down_there_is_no_history(world: World) -> None:
    assert lab.run(world, INVENTORY, lab.do_down).error is None
    error = lab.run(world, INVENTORY, lambda i, _, runtime: history.history(i, runtime=runtime)).error
    assert str(error) == "gpu1: the node is missing"


def test_restarts_by_vcluster_itself_are_in_the_history_and_in_explain(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the time and the reason that the head wrote; those of an earlier request explain nothing of this one."""
    assert serve(world, "org/a").error is None
    files = world.machines["gpu1"].volumes["vcluster-lab-state"].files
    ready = json.loads(files["results.jsonl"].splitlines()[-1])
    stalled, lost = "no token for 120 s, though /health returns 200", "Ray has lost 10.0.0.2"
    for at, result, what, seconds in (
        (10, "restarted", stalled, None),
        (71, "ready again", "", 61.0),
        (90, "restarted", lost, None),
        (100, "gave up", f"{lost}; started 6 times within 60 min: no further attempts", None),
    ):
        row = {**ready, "time": ready["time"] + at, "result": result, "summary": what, "seconds": seconds}
        files["results.jsonl"] += json.dumps(row).encode() + b"\n"
    found = entries(world)
    validate(["status", "--history"], json.dumps(history_document("lab", found)))
    assert [(one.verb, one.user, one.result, one.failure, one.seconds) for one in found[2:]] == [
        ("restart", "vcluster", "ready", stalled, 61.0),
        ("restart", "vcluster", None, lost, None),
        ("restart", "vcluster", "gave up", f"{lost}; started 6 times within 60 min: no further attempts", None),
    ]
    assert found[1].result == "ready"
    show_history("lab", found, color="never")
    shown = capsys.readouterr().out
    assert re.search(rf"vcluster +ready again after 61 s +restart org/a: {stalled}\n", shown)
    explained = lab.run(world, INVENTORY, lambda i, emit, runtime: explain.of_cluster(i, emit, runtime=runtime)).value
    assert [one.failure for one in explained.restarts] == [one.failure for one in found[2:]]
    validate(["explain"], json.dumps(explain_document(explained.verdict, {}, Pasted, None, explained.restarts)))
    show_explained(explained.verdict, Pasted, color="never", restarts=explained.restarts)
    assert re.search(f"^restarted by vcluster at .*: {stalled}; ready again after 61 s$", capsys.readouterr().out, re.M)
    assert serve(world, "org/b").error is None
    later = lab.run(world, INVENTORY, lambda i, emit, runtime: explain.of_cluster(i, emit, runtime=runtime)).value
    assert later.restarts == []


def test_a_broken_line_hides_no_other(world: World) -> None:
    assert serve(world, "org/a").error is None
    files = world.machines["gpu1"].volumes["vcluster-lab-state"].files
    for name in ("audit.jsonl", "results.jsonl"):
        files[name] = b'{"half\n[]\n{"time": "x"}\n' + files[name] + b"\0\xff\n"
    assert [entry.verb for entry in entries(world)] == ["up", "serve"]
    files["ready.json"] = b"{"
    assert isinstance(go_back(world)[0].error, PreflightFailed)


# fault: kernel/node/history.py: for part in (f"{name}.1", name) → for part in (name,)
def test_a_long_history_ends_with_what_was_done_last(world: World) -> None:
    """5 MiB, as an earlier version left them: the last line was behind what is read of a file."""
    files = world.machines["gpu1"].volumes["vcluster-lab-state"].files
    (line,) = files["audit.jsonl"].splitlines(keepends=True)
    files["audit.jsonl"] = line * ((5 << 20) // len(line))
    assert serve(world, "org/a").error is None
    assert [entry.verb for entry in entries(world)[-2:]] == ["up", "serve"]
    changed = lab.succeed(world, INVENTORY, lab.do_status).value.changed
    assert changed.verb == "serve"
    assert len(files["audit.jsonl"]) < 10_000


# fault: serving/cluster/down.py: history = " Its history is deleted too." if → history = "" if
def test_down_lists_what_is_deleted_with_it() -> None:
    """The key that clients have, and the history: both are gone for good."""
    world, words = make.world((2, 2)), make.inventory(2)
    with lab.inside(world):
        assert lab.run(world, words, lab.do_up).error is None
        told = [event.text for event in lab.run(world, words, lab.do_down).events]
    assert "the API key is removed too; the next vcluster up makes a new one" in told
    assert told[-1] == "Removed cluster lab: 2 containers, 4 volumes on 2 hosts. Its history is deleted too."


# fault: kernel/apply/execute.py: head.write(REPLACING, note.document) → pass
# fault: kernel/apply/execute.py: head.write(REPLACING, replace(note, addresses=()).document) → pass
@pytest.mark.parametrize("served", [True, False])
def test_the_head_learns_which_nodes_up_makes_again_before_they_end(world: World, served: bool) -> None:
    """What it serves there is then not counted as failed; once all are back the note names none."""
    if served:
        assert serve(world, "org/model").error is None
    volume, notes = world.machines["gpu1"].volumes["vcluster-lab-state"], list[tuple[str, tuple[str, ...]]]()

    def hook(call: Call) -> None:
        raw = volume.files.get(REPLACING)
        if call.host == "gpu2" and call.changes:
            notes.append((call.what, read(Replacing, raw, "gpu1", MAX_REPLACING).addresses if raw else ()))

    changed = make.inventory(2, {"gpu2": {"gpus": 1}})
    outcome = lab.run(world, changed, lab.do_up, Script(hook=hook))
    assert outcome.error is None, outcome.story()
    ended = [addresses for what, addresses in notes if "/stop " in what]
    assert {*ended} == {("10.0.0.2",) if served else ()}
    raw = volume.files.get(REPLACING)
    assert (raw and read(Replacing, raw, "gpu1", MAX_REPLACING).addresses) == (() if served else None)
