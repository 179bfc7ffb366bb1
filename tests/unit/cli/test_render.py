"""What is shown: data that parses, text that steers no terminal, errors that have a remedy."""

from __future__ import annotations

import gc
import json
import re
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support import world
from tests.support.waiting import until
from tools.reference import error_classes
from vllm_cluster.kernel.errors import ConnectionLost, FleetError, HostError, Unreachable, VclusterError
from vllm_cluster.kernel.events import Event
from vllm_cluster.kernel.plan.desired import desired
from vllm_cluster.kernel.plan.diff import diff
from vllm_cluster.kernel.plan.plan import Plan, PrepareImage, Stage
from vllm_cluster.kernel.shell_line import Pasted
from vllm_cluster.kernel.terminal import errors, events
from vllm_cluster.kernel.terminal.plan import plan_document, show_plan
from vllm_cluster.kernel.terminal.printable import plain
from vllm_cluster.serving.ask_head import Endpoint
from vllm_cluster.serving.endpoint.render import curl_line, show_endpoint


def a_plan() -> Plan:
    """The plan of two empty hosts."""
    facts = world.hosts()
    return diff(desired(world.inventory(), facts, world.INPUTS), facts)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07x", "x"),
        ("a\r\nb\rc", "a\nb\nc"),
        ("\x08\x7f\x9b31m", "31m"),
        ("safe\u202eelif", "safeelif"),
        ("a\u200eb\u200fc\u061cd", "abcd"),
        ("one\u2028two\u2029three\x85", "onetwothree"),
        ("pass\u200b\u200c\u200d\u2060\ufeff\u00ad\u180eword", "password"),
        ("model\U000e0068\U000e0069\U000e007f", "model"),
        ("[bold]not markup[/bold]", "[bold]not markup[/bold]"),
    ],
)
def test_remote_text_is_only_text(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_a_long_line_is_cut() -> None:
    assert len(plain("x" * 10_000_000)) < 5000


def test_events_are_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    events.json_lines(Event("plan", "", data={"plan": a_plan()}))
    events.json_lines(Event("done", "a\nb\x1b[0m", "gpu1", {"n": 1}))
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["event"] for row in rows] == ["plan", "done"]
    assert rows[0]["plan"]["gpus"] == {"10.0.0.1": 2, "10.0.0.2": 2}
    assert (rows[1]["host"], rows[1]["n"], rows[1]["v"]) == ("gpu1", 1, 1)


def test_lines_name_host_and_kind(capsys: pytest.CaptureFixture[str]) -> None:
    shown = events.LineRenderer(0).show
    shown(Event("failed", "broke", "gpu1"))
    shown(Event("start", "hidden without -v", "gpu1"))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.endswith("s  gpu1: failed: broke\n")


# fault: kernel/terminal/events.py: if event.kind == "phase" and self._held is None: → if False:
def test_a_verb_that_is_over_at_once_has_no_line_that_it_began(capsys: pytest.CaptureFixture[str]) -> None:
    shown, close = events.renderer(as_json=False, verbosity=0, color="never")
    shown(Event("phase", "connecting to 2 hosts"))
    close()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("more", [True, False], ids=["more follows", "it takes long"])
def test_the_first_line_comes_where_more_follows_or_it_takes_long(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, more: bool
) -> None:
    monkeypatch.setattr(events, "QUICK_SECONDS", 60.0 if more else 0.0)
    shown, written = events.LineRenderer(0), list[str]()
    shown.show(Event("phase", "connecting to 2 hosts"))
    if more:
        shown.show(Event("result", "up to date"))

    def read() -> list[str]:
        written.extend(capsys.readouterr().err.splitlines())
        return written

    until(read, every=0.01)
    assert [line.partition("s  ")[2] for line in written] == ["connecting to 2 hosts", *["up to date"] * more]


def a_start() -> list[Event]:
    """The events of a start, the second of which fails and is tried again."""
    told: list[tuple[str, str, int, list[tuple[str, float]], str]] = [
        ("waiting", "GPUs 2/4: 10.0.0.2 is missing", 0, [], ""),
        ("importing", "", 1, [("waiting", 12.3)], ""),
        ("joining", "ranks 1/4", 1, [("waiting", 12.3), ("importing", 8.0)], "(Worker) rank 0"),
        ("joining", "ranks 4/4", 1, [("waiting", 12.3), ("importing", 8.0)], "(Worker) rank 3"),
        ("backoff", "restarting in 2 s: it died", 1, [], ""),
        ("loading", "shards 1/2", 2, [("importing", 7.0), ("joining", 3.0)], ""),
        ("ready", "", 2, [("importing", 7.0), ("joining", 3.0), ("loading", 20.0), ("probing", 1.0)], ""),
    ]
    return [
        Event(
            "progress",
            f"{phase}: {detail}" if detail else phase,
            data={"phase": phase, "detail": detail, "attempt": n, "phases": over, "last_line": line, "progress": None},
        )
        for phase, detail, n, over, line in told
    ]


# fault: kernel/terminal/events.py: if not changed: → if False:
@pytest.mark.promise("P37")
def test_a_start_is_a_line_a_phase_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    shown = events.LineRenderer(0)
    for event in a_start():
        shown.show(event)
    assert [line.partition("s  ")[2] for line in capsys.readouterr().err.splitlines()] == [
        "waiting: GPUs 2/4: 10.0.0.2 is missing",
        "importing  (waiting took 12 s)",
        "joining: ranks 1/4  (importing took 8 s)",
        "backoff: restarting in 2 s: it died",
        "loading: shards 1/2  (joining took 3 s)",
        "ready  (probing took 1 s)",
    ]


# fault: kernel/terminal/events.py: since = now if changed else → since = now if True else
def test_a_long_phase_is_not_silent(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("vllm_cluster.kernel.terminal.events.time.monotonic", lambda: now[0])
    shown = events.LineRenderer(0)
    importing = a_start()[1]
    for now[0] in (0.0, 1.0, 5.0, 11.0, 16.0, 22.0):
        shown.show(importing)
        shown.repeat()
    assert [line.partition("s  ")[2] for line in capsys.readouterr().err.splitlines()] == [
        "importing  (waiting took 12 s)",
        "importing  (for 11 s)",
        "importing  (for 22 s)",
    ]


# fault: kernel/terminal/events.py: setdefault(event.data.get("replica"), → setdefault(None,
# fault: kernel/terminal/events.py: f"replica {event.data['replica']}" if "replica" in event.data else "" → ""
def test_replicas_that_start_have_a_line_where_they_change_and_else_their_times(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their lines took turns every 5 s, the same ones without a time."""
    now = [0.0]
    monkeypatch.setattr("vllm_cluster.kernel.terminal.events.time.monotonic", lambda: now[0])
    shown, (_, importing, joining, *_) = events.LineRenderer(0), a_start()
    for now[0] in (0.0, 5.0, 10.0):
        for number, event in ((0, joining), (1, importing)):
            text = f"replica {number}: {event.text}"
            shown.show(replace(event, text=text, data={**event.data, "replica": number}))
        shown.repeat()
    assert [line.partition("s  ")[2] for line in capsys.readouterr().err.splitlines()] == [
        "replica 0: joining: ranks 1/4  (importing took 8 s)",
        "replica 1: importing  (waiting took 12 s)",
        "replica 0: joining: ranks 1/4  (for 10 s)",
        "replica 1: importing  (for 10 s)",
    ]


# fault: kernel/terminal/events.py: event.kind in ("phase", "start", "progress") and → event.host and
# fault: kernel/terminal/events.py: at.pop("", None) → pass
def test_what_a_verb_waits_for_is_repeated_until_it_is_over(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was silent: `up` that waits for a host, a measurement, the data of a sandbox."""
    now = [0.0]
    monkeypatch.setattr("vllm_cluster.kernel.terminal.events.time.monotonic", lambda: now[0])
    shown = events.LineRenderer(0)
    for event in (
        Event("phase", "run 1 of 1"),
        Event("start", "creating it", "gpu1"),
        Event("done", "created", "gpu1"),
        Event("progress", "GPUs 2/4: waiting for gpu2"),
        Event("result", "lab is up"),
    ):
        shown.show(event)
        for _ in range(2):
            now[0] += 5
            shown.repeat()
    shown.close()
    assert [line.partition("s  ")[2] for line in capsys.readouterr().err.splitlines()] == [
        "run 1 of 1",
        "run 1 of 1  (for 10 s)",
        "  gpu1: creating it  (for 10 s)",
        "gpu1: done: created",
        "run 1 of 1  (for 30 s)",
        "GPUs 2/4: waiting for gpu2",
        "GPUs 2/4: waiting for gpu2  (for 10 s)",
        "lab is up",
    ]


# fault: kernel/terminal/events.py: if not at or now < self._shown + STILL_SECONDS: → if True:
# fault: kernel/terminal/events.py: self._under_way.pop(key, None) → pass
def test_what_hosts_are_at_is_repeated_until_it_is_over(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "STILL_SECONDS", 0.0)
    monkeypatch.setattr(events, "QUICK_SECONDS", 0.01)
    shown, written = events.LineRenderer(0), list[str]()

    def repeated(line: str) -> bool:
        written.extend(capsys.readouterr().err.splitlines())
        return any(re.sub(r"\d+", "N", one).endswith(line) for one in written)

    for host in ("gpu1", "gpu2"):
        shown.show(Event("progress", "building the image", host))
    until(lambda: repeated("s    gpuN, gpuN: building the image  (for N s)"), 10)
    shown.show(Event("done", "the image is ready", "gpu2"))
    written.clear()
    until(lambda: repeated("s    gpuN: building the image  (for N s)"), 10)
    shown.close()
    assert not any("gpu2: building" in line for line in written)


# fault: kernel/terminal/events.py: if self._repeating is None: → if not (self._repeating and self._repeating.is_alive()):
def test_hosts_that_begin_at_the_same_moment_are_repeated_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of two hosts started it, and the second start was an internal error of `up`."""
    started: list[object] = []

    def keep(renderer: weakref.ref[events.LineRenderer], _: threading.Event) -> None:
        started.append(renderer())

    monkeypatch.setattr(events, "_repeat", keep)
    shown = events.LineRenderer(0)
    together = threading.Barrier(8)

    def begin(host: str) -> None:
        together.wait(10)
        shown.show(Event("progress", "adding Ray", host))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(begin, [f"gpu{number}" for number in range(8)]))
    assert started == [shown]


# fault: kernel/terminal/events.py: weak = weakref.ref(self) → weak = lambda: self
def test_what_repeats_ends_with_its_renderer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "QUICK_SECONDS", 0.01)
    before = {*threading.enumerate()}
    events.LineRenderer(0).show(Event("progress", "adding Ray", "gpu1"))
    until(lambda: gc.collect() >= 0 and not {*threading.enumerate()} - before, 10)


# fault: kernel/terminal/events.py: for phase, seconds in over: → for phase, seconds in over[:0]:
@pytest.mark.promise("P37")
def test_a_start_leaves_a_line_for_each_phase_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    live = events.LiveRenderer()
    for event in a_start():
        live.show(event)
    live.close()
    lines = [line.split() for line in capsys.readouterr().err.splitlines() if "✓" in line]
    assert [" ".join(line[1:]) for line in lines] == [
        "waiting 12.3 s",
        "importing 8.0 s",
        "importing 7.0 s",
        "joining 3.0 s",
        "loading 20.0 s",
        "probing 1.0 s",
        "ready",
    ]


def test_errors_show_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    error = FleetError({"a": Unreachable("a", "nothing listens", hint="start sshd"), "b": Unreachable("b", "no route")})
    errors.write_error(error, Pasted, as_json=False, color="never")
    assert capsys.readouterr().err == "error: a: nothing listens\nb: no route\nfix: start sshd\n"
    errors.write_error(HostError("a", "x\nfix: touch x\r  fix: y"), Pasted, as_json=False, color="never")
    assert capsys.readouterr().err == 'error: a: x\n  | "fix": touch x\n  |   "fix": y\n'
    errors.write_error(error, Pasted, as_json=True, color="never")
    row = json.loads(capsys.readouterr().out)
    assert (row["exit_code"], row["hosts"]["b"]["code"]) == (4, "unreachable")
    assert (row["code"], row["fix"]) == ("hosts-failed", ["start sshd"])
    assert row["time"] > 0, "every JSON line has its time"


def test_each_error_has_a_code_of_its_own() -> None:
    """Several kinds share an exit code."""
    kinds = error_classes()
    assert len(kinds) > 20
    assert [kind.__name__ for kind in kinds if "code" not in vars(kind)] == []
    assert len({kind.code for kind in kinds}) == len(kinds)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", kind.code) for kind in kinds)


def test_one_cause_on_several_hosts_is_one_line() -> None:
    same = {name: Unreachable(name, "no route to host", hint="start it") for name in ("gpu1", "gpu3")}
    error = FleetError({**same, "gpu2": Unreachable("gpu2", "timed out"), "gpu4": VclusterError("broken")})
    assert error.message == "gpu1, gpu3: no route to host\ngpu2: timed out\nbroken"
    assert error.hint == "start it"
    assert {host: row["message"] for host, row in error.as_json(Pasted)["hosts"].items()} == {  # type: ignore[attr-defined]
        "gpu1": "gpu1: no route to host",
        "gpu3": "gpu3: no route to host",
        "gpu2": "gpu2: timed out",
        "gpu4": "broken",
    }


# fault: kernel/errors.py: **failure.words(), "fix": paste(failure.hint or "").each} → **failure.words()}
# fault: kernel/errors.py: "fix": paste(self.hint or "").each, **( → **(
def test_each_remedy_of_a_document_is_one_to_paste() -> None:
    error = FleetError({name: Unreachable(name, "no answer", hint="vcluster up") for name in ("gpu1", "gpu2")})
    found: dict[str, Any] = error.as_json(lambda text: Pasted(f"{text} -i a.yaml"))
    assert [found["fix"], *(row["fix"] for row in found["hosts"].values())] == [["vcluster up -i a.yaml"]] * 3


def test_mixed_failures_are_failures() -> None:
    assert FleetError({"a": Unreachable("a", "x"), "b": ConnectionLost("b", "y")}).exit_code == 1


def test_a_plan_reads_as_what_will_happen(capsys: pytest.CaptureFixture[str]) -> None:
    show_plan(a_plan(), color="never")
    out = capsys.readouterr().out
    assert "\n+ gpu1: create head vcluster-lab with 2 GPUs on 10.0.0.1: missing\n" in out
    assert "wait for: exactly the planned GPUs have joined" in out
    assert json.loads(json.dumps(plan_document(a_plan())))["empty"] is False


def test_the_same_on_several_hosts_is_one_line_of_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    images = tuple(PrepareImage(host, "vllm:1", ("ray==2.56.1",), True) for host in ("gpu1", "gpu2", "gpu3"))
    show_plan(Plan("lab", "id", (Stage("images", images),), {}, "gpu1"), color="never")
    lines = [line for line in capsys.readouterr().out.splitlines() if "pull" in line]
    assert len(lines) == 1
    assert lines[0].startswith("+ gpu1, gpu2, gpu3: pull vllm:1, then ")


def test_a_change_shows_each_field_and_the_whole_in_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    before = desired(world.inventory(), world.hosts(), world.INPUTS)
    there = world.hosts()
    for spec in before:
        there[spec.host] = replace(there[spec.host], containers=(world.running(spec),))
    changed = world.inventory(environment={"NCCL_DEBUG": "WARN"}, shm_size="32g")
    show_plan(diff(desired(changed, there, world.INPUTS), there), color="never")
    out = capsys.readouterr().out
    assert "\n    environment.NCCL_DEBUG: (unset) -> WARN\n" in out
    assert "\n    shm_size: " in out
    marks = [line[0] for line in out.splitlines() if " container vcluster-lab" in line or " with 2 GPUs on " in line]
    assert marks == ["~"] * 4
    assert out.endswith("Plan: 0 to create, 2 to recreate, 0 to remove (4 operations)\n")


# fault: serving/endpoint/render.py: host_port(host, endpoint.port) → host}:{endpoint.port
# fault: serving/endpoint/render.py: "-H", "@-", "-d", body] → "-H", key, "-d", body]
def test_the_curl_line_quotes_what_it_must() -> None:
    line = curl_line(Endpoint("it's a model", "fd00::1", "gpu1", 8000), None)
    assert "http://[fd00::1]:8000/v1/completions" in line
    assert "$(vcluster endpoint --key)" in line
    assert """it'"'"'s a model""" in line
    # Other users of the machine read command lines; echo has none.
    echo, _, curl = line.partition(" | ")
    assert echo.startswith("echo ")
    assert "Bearer" not in curl


# fault: kernel/terminal/events.py: self._rows = {host: row for host, row in self._rows.items() if row[0] == "failed"} →
def test_phases_on_a_terminal_end_with_a_mark_and_their_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host's row goes with its phase: one that waited is not left as if it still did."""
    monkeypatch.setenv("TERM", "dumb")
    live = events.LiveRenderer()
    live.show(Event("phase", "inspecting 2 hosts"))
    live.show(Event("phase", "head"))
    live.show(Event("progress", "waiting for Ray on the head", "gpu1"))
    live.show(Event("done", "created and started", "gpu1"))
    live.show(Event("progress", "waiting for Ray on the head", "gpu3"))
    live.show(Event("failed", "broke", "gpu2"))
    live.show(Event("result", "lab is up"))
    rows = dict(live._rows)
    live.close()
    shown = capsys.readouterr().err
    first, last = r"✓ inspecting 2 hosts  \d+\.\d s\n", r"✓ head  \d+\.\d s\nlab is up  \(\d+\.\d s\)"
    assert re.search(rf"{first}(.*\n)*  ✓ gpu1  created and started\n{last}", shown), shown
    assert list(rows) == ["gpu2"]


# fault: serving/endpoint/render.py: "--direct" if endpoint.exposed else "--detach" → "--direct"
@pytest.mark.parametrize(
    ("endpoint", "begin", "where"),
    [
        (
            Endpoint("m", "127.0.0.1", "gpu1", 8000),
            "vcluster endpoint --detach -i lab.yaml",
            "m answers at http://127.0.0.1:8000/v1 on gpu1 itself; from elsewhere as above",
        ),
        (
            Endpoint("m", "fd00::1", "gpu1", 8000),
            "vcluster endpoint --direct -i lab.yaml",
            "m answers at http://[fd00::1]:8000/v1",
        ),
    ],
)
def test_serve_ends_with_what_works_here_and_then_with_where_it_answers(
    endpoint: Endpoint, begin: str, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    show_endpoint(endpoint, Path("lab.yaml"), Pasted, as_json=False)
    ask, clients, last = capsys.readouterr().out.splitlines()
    assert last == where
    assert ask == "ask:     vcluster complete Hello -i lab.yaml"
    assert clients == f"clients: {begin}"


# fault: serving/endpoint/render.py: if endpoint.several else [] → if False else []
def test_where_several_are_served_the_line_that_asks_names_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    """Without it another model answers: the one that was ready first."""
    several = Endpoint("m", "127.0.0.1", "gpu1", 8000, {"m": "org/m", "n": "org/n"})
    show_endpoint(several, Path("lab.yaml"), Pasted, as_json=False)
    assert capsys.readouterr().out.splitlines()[0] == "ask:     vcluster complete Hello --set 'model=m' -i lab.yaml"
