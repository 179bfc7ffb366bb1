"""P46: what hosts answer is data. Each place of each answer of a good run is replaced by what a shell, a terminal or a
path would take for its own, and by other types, through the verbs as they are typed.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
import typer

from tests.support import in_process, pasted
from tests.support.attack import attack
from tests.support.depth import FULL, cases
from tests.support.sim import lab, make
from tests.support.sim.engine import Answer, FakeEngine, Request
from tests.support.sim.forging import Forger, Forgery, forgeries_in, forging
from tests.support.sim.world import World
from vllm_cluster.cli.verbs import VERBS
from vllm_cluster.features.pull.feature import MODELS
from vllm_cluster.kernel.hosts.runtime import SYSTEM
from vllm_cluster.kernel.inventory import load
from vllm_cluster.kernel.terminal import program

# All the cases take minutes.
pytestmark = [pytest.mark.timeout(2400), pytest.mark.promise("P46", "P47")]
CASES = cases(150, 400, 105_000)
MINE, THEIRS = make.inventory_of(1, 2), make.inventory_of(3, 4)
# As a person types them.
LINES = (
    "status", "status -v", "status --json", "status --history", "status --wait 5s", "plan", "plan --json",
    "up --yes", "up --yes --json", "serve org/other --yes", "stop --yes", "rollback --yes", "down --yes",
    "check --facts", "check --facts --json", "models", "models --json", "models rm org/model --yes", "image ls",
    "image prune --yes", "endpoint --key", "endpoint --direct --env", "batch --list", "batch --list --json", "explain",
    "dashboard --prometheus metrics", "image push other/image:1", "pull org/new", "pull org/new --json",
    "pull --verify org/model", "pull gpu1:/data/mine", "pull --cancel", "serve org/othre --yes",
)  # fmt: skip
# A slip in a name is refused with the call that was meant; what the hosts have of each model.
MISSPELT = "serve org/othre --yes"
CHECKED = {
    MISSPELT: {"where": "nowhere", "problem": "the hub has no such model", "near": ["org/other"]},
    "serve org/other --yes": {"where": "cache", "near": [], "carrier": "ext4", "missing": 0, "proved": "a" * 64},
}
# The others only read: of a host with another answer `up` has something to do.
CHANGE = ("up", "serve", "stop", "rollback", "down")
# Characters that steer a terminal, turn the direction of a line, or are not to be seen.
STEERS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)
# Longer than any of them takes, however busy the machine is.
SECONDS = 30.0
BATCH = {
    "key": "0123456789abcdef",
    "state": {
        "running": True,
        "sent": True,
        "phase": "running",
        "note": "the model starts",
        "error": "",
        "progress": {
            **dict.fromkeys(("total", "answered", "failed", "in_flight", "concurrency"), 3),
            **dict.fromkeys(("prompt_tokens", "completion_tokens", "seconds", "tokens_per_second"), 3),
            "seconds_left": 3.0,
        },
    },
    "asked": {"user": "ada", "time": 1.0, "source": "/home/ada/in.jsonl", "output": "/home/ada/out.jsonl"},
}


@cache
def served() -> bytes:
    """Two clusters of one name, each of which serves; beside them are containers of other people."""
    world = make.world((2, 2, 2, 2))
    for machine in world.machines.values():
        make.neighbours(machine)
        machine.models["hub/models--org--model"] = 5 << 20
    world.machines["gpu1"].take_image(make.base_image(7)).tags.append("other/image:1")
    with lab.inside(world):
        for inventory in (THEIRS, MINE):
            lab.succeed(world, inventory, lab.do_up)
            lab.succeed(world, inventory, lab.do_serve)
        lab.succeed(world, MINE, lambda *words: lab.do_serve(*words, model="org/two", expose=True))
    return world.snapshot()


@dataclass
class Ran:
    """One call of the program against hosts of which one forges an answer."""

    code: int
    out: str
    err: str
    forger: Forger
    world: World
    seconds: float


def run(line: str, folder: Path, forger: Forger, more: Sequence[str] = (), state: str = "running") -> Ran:
    """Type a line with these words more, in a world of its own in which the second node has a state."""
    world = World.again(served())
    (node,) = (box for box in world.machines["gpu2"].boxes.values() if box.name == "vcluster-lab")
    node.state = state
    world.batches = [BATCH]
    world.answers = {host: {"files": CHECKED[line], "vllm": {}} for host in MINE.hosts if line in CHECKED}
    began = time.monotonic()
    with lab.inside(world), forging(forger):
        assert world.runtime
        with patch.dict(vars(SYSTEM), vars(replace(world.runtime, run="0123abcd"))):
            done = in_process.run(
                *line.split(), *more, cwd=folder, XDG_CACHE_HOME=str(folder / "cache"), HOME=str(folder)
            )
    return Ran(done.returncode, done.stdout, done.stderr, forger, world, time.monotonic() - began)


@contextmanager
def known() -> Iterator[None]:
    """Parsers and the inventory are made once, not in each of a hundred thousand calls: no host has a part in them."""
    make_verb, verbs = program.Verbs.get_command, dict[tuple[int, str], Any]()

    def get_command(group: program.Verbs, context: Any, name: str) -> Any:
        which = (id(group.verbs), name)
        verbs[which] = verbs.get(which) or make_verb(group, context, name)
        return verbs[which]

    with (
        patch.object(typer.main, "get_command", cache(typer.main.get_command)),
        patch.object(program.Verbs, "get_command", get_command),
        patch.object(load, "load_text", cache(load.load_text)),
    ):
        yield


def prepared(folder: Path) -> Path:
    """A folder with the inventory."""
    folder.mkdir(exist_ok=True)
    hosts = {name: {"address": host.address} for name, host in MINE.hosts.items()}
    words = {"version": 1, "cluster": "lab", "image": make.IMAGE, "model_cache": "/models", "hosts": hosts}
    (folder / "inventory.yaml").write_text(json.dumps(words))
    return folder


def documented(line: str) -> set[int]:
    """The exit codes that the verb's help lists."""
    verb, *rest = line.split()
    found = MODELS["rm"] if rest[:1] == ["rm"] else MODELS["ls"] if verb == "models" else VERBS[verb]
    return {0, 1, 2, 3, 4, *found.exits}


@dataclass
class Found:
    """What some forgeries came to."""

    forged: int = 0
    wrong: list[str] = field(default_factory=list)
    lines: set[str] = field(default_factory=set)


def judge(way: Way, ran: Ran, before: dict[str, str], found: Found) -> None:
    """What must hold for any answer."""
    calls, machines = ran.world.script.calls, ran.world.machines.items()
    others = [name for name, one in machines if name != ran.forger.host and one.foreign() != before[name]]
    wrong = {
        f"ends in {ran.err[:300]}": "internal error" in ran.err + ran.out or "Traceback" in ran.err,
        f"exit code {ran.code}": ran.code not in documented(way.line),
        f"a control character in {(ran.out + ran.err)!r:.2000}": STEERS.search(ran.out + ran.err),
        f"{ran.seconds:.0f} s": ran.seconds > SECONDS,
        "led to other hosts": {call.host for call in calls} - {*MINE.hosts},
        f"changed what others own on {others}": others,
        "changes hosts, and is only for reading": ran.world.script.changing and not way.changes,
        "left a lease": [name for name, one in machines if one.lock],
    }
    found.wrong += [f"{way.line}: {ran.forger}: {what}" for what, is_so in wrong.items() if is_so]
    found.lines.update(pasted.pasteable(ran.out + "\n" + ran.err))


@dataclass
class Way:
    """A line, how long it takes with good answers, whether it changes hosts, and a forgery for each place of these."""

    line: str
    seconds: float
    changes: bool
    forgeries: list[Forgery]


def ways(folder: Path) -> list[Way]:
    """Each line, with what can be forged: a new field is among it."""
    found = []
    for line in LINES:
        ran = run(line, folder, Forger())
        every = [
            forgery
            for number, (_, content) in enumerate(ran.forger.answers)
            for forgery in forgeries_in(number, content)
        ]
        assert every and ran.code == (3 if line == MISSPELT else 0), f"{line}: {ran.err}"
        found.append(
            Way(
                line,
                ran.seconds,
                line.split()[0] in (*CHANGE, "pull") or line.split()[1:2] in (["rm"], ["prune"], ["push"]),
                every,
            )
        )
    return found


def work(number: int, of: int, count: int, folder: Path) -> Found:
    """The share of one process: every place in turn, each time with another forgery; quick lines have more of them."""
    with known():
        return attacked(number, of, count, folder)


def attacked(number: int, of: int, count: int, folder: Path) -> Found:
    """As `work`."""
    found, before = Found(), {name: one.foreign() for name, one in World.again(served()).machines.items()}
    every = ways(prepared(folder))
    whole = sum(1 / way.seconds for way in every)
    for at, way in enumerate(every):
        Random(number).shuffle(way.forgeries)
        for n in range(max(1, round(count / of / way.seconds / whole))):
            forgery = replace(way.forgeries[n % len(way.forgeries)], seed=(n * len(every) + at) * of + number)
            ran = run(way.line, folder, Forger(forgery))
            found.forged += bool(ran.forger.forged)
            judge(way, ran, before, found)
    return found


def test_no_answer_of_a_host_is_run_written_or_shown_as_it_is(tmp_path: Path) -> None:
    served()
    with attack("P46 P47", "sim: each place of each answer of hosts, through the verbs") as measured:
        results = list(shared(tmp_path))
        forged, lines = sum(one.forged for one in results), set[str]().union(*(one.lines for one in results))
        wrong = [one for result in results for one in result.wrong]
        assert not wrong, f"{len(wrong)}: " + "\n".join(wrong[:20])
        assert forged > CASES / 2
        made = pasted.run(lines, tmp_path / "shells")
        assert not made, made[:20]
        assert not [*tmp_path.rglob("RAN*"), *Path("/tmp").glob("vcluster-RAN*")]
        measured.figure = (
            f"{forged} forgeries through {len(LINES)} lines, {len(lines)} printed lines in 4 shells: 0 run"
        )


class Lying(Forger):
    """Reports another value in one field of what the head serves."""

    def __init__(self, field: str, value: object) -> None:
        super().__init__()
        self.field, self.value = field, value

    def pass_on(self, host: str, what: str, content: bytes) -> bytes:
        """As of Forger."""
        if not what.endswith(" status.json"):
            return super().pass_on(host, what, content)
        status = json.loads(content)
        return json.dumps({**status, "serve": {**status["serve"], self.field: self.value}}).encode()


# fault: wire/values.py: Annotated[str, _address] → str
# fault: wire/values.py: Port = Annotated[int, between(1, 65535)] → Port = object
@pytest.mark.parametrize(
    ("field", "value"),
    [("host", "x;touch RAN;#"), ("host", "$(touch RAN)"), ("host", "gpu3"), ("port", "1;touch RAN"), ("port", 10**400)],
)
def test_a_line_that_a_shell_evaluates_has_no_address_that_is_none(field: str, value: object, tmp_path: Path) -> None:
    """As in `eval "$(vcluster endpoint --direct --env)"`."""
    line, folder = "endpoint --direct --env", prepared(tmp_path / "work")
    assert run(line, folder, Forger()).out.startswith("export OPENAI_BASE_URL=http://10.0.0.1:8000/v1\n")
    ran = run(line, folder, Lying(field, value))
    assert (ran.out, ran.code in documented(line) - {0}) == ("", True), ran.err
    assert not pasted.run(ran.err.splitlines(), tmp_path / "shells")


class Naming(Forger):
    """Has on some hosts another name for the model that was meant."""

    def __init__(self, hosts: tuple[str, ...], name: str) -> None:
        super().__init__()
        self.hosts, self.name = hosts, name

    def pass_on(self, host: str, what: str, content: bytes) -> bytes:
        """As of Forger."""
        found = super().pass_on(host, what, content)
        near = b'"near": ' + json.dumps([self.name]).encode()
        return found.replace(b'"near": ["org/other"]', near) if host in self.hosts else found


# fault: kernel/plan/cached_model.py: for name in model_names(every) if → for name in every if
# fault: kernel/plan/cached_model.py: if every[name] > 1 or name in names.get(head, ()) → if True
@pytest.mark.parametrize(
    ("hosts", "name", "meant"),
    [
        (("gpu2",), "org/other", "org/other"),
        (("gpu2",), "org/othr", "org/other"),
        (("gpu1",), "-iorg/othre", ""),
        (("gpu2",), "--from=vllm serve org/othre --trust-remote-code", "org/other"),
        (("gpu1", "gpu2"), "--from=org/othre", ""),
        (("gpu1", "gpu2"), "~/org/othre/../../.docker", ""),
        (("gpu1", "gpu2"), "gpu1:/org/othre", ""),
        (("gpu1", "gpu2"), "./../org/othre", ""),
    ],
)
def test_a_model_that_was_meant_is_a_name(hosts: tuple[str, ...], name: str, meant: str, tmp_path: Path) -> None:
    ran = run(MISSPELT, prepared(tmp_path / "work"), Naming(hosts, name))
    fixes = [line for line in ran.err.splitlines() if line.startswith("fix: vcluster serve")]
    assert (ran.code, fixes) == (3, [f"fix: vcluster serve {meant}"] if meant else []), ran.err
    assert "did you mean -" not in ran.err


# What only shows, or asks in vain, with what is refused: each has lines to paste.
MORE = (
    "check", "check --json", "explain --json", "logs", "logs --json", "stop", "stop --json", "rollback 77",
    "down --json", "up --json", "up --forget gpu9 --yes", "stop nosuch", "exec gpu9 -- true", "fit org/model",
    "fit org/model --json", "serve org/model --hosts gpu1 --tp 9", "serve org/model --replicas 9 --yes --json",
    "status --history --json", "serve --dry-run --from serve.sh", "serve --dry-run --json --from serve.sh",
    "plan --jsn", "dwn --yes",
)  # fmt: skip


def calls_without_inventory(shown: str) -> list[str]:
    """The calls in what was printed that are of the inventory of the folder where they are pasted."""
    names = "|".join(name for name, verb in VERBS.items() if verb.inventory)
    lines = []
    for line in shown.split("\n"):
        try:
            lines += list(texts_of(json.loads(line)))
        except ValueError:
            lines.append(line)
    calls = [call for line in lines for call in re.split(rf"\b(?=vcluster (?:{names})\b)", line)[1:]]
    # What the catalogue has of a failure is of no cluster, and an error names the verb that it is of.
    other = re.compile(r".* -i \S*other\.yaml|.* --help|vcluster explain [a-z-]+\)|vcluster \w+ has no ")
    return [call for call in calls if not other.match(call)]


def texts_of(value: object) -> Iterator[str]:
    """The lines of each text in a JSON document."""
    if isinstance(value, str):
        yield from value.split("\n")
    for within in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from texts_of(within)


# fault: kernel/terminal/session.py: return replace(event, text=edge.with_inventory(event.text, self._path)) → return event
# fault: features/logs/verb.py: event = session.advising(event) → pass
# fault: features/check/render.py: "fix": paste(one.fix), → "fix": one.fix,
# fault: serving/explain/render.py: "look": None if cause else fix, → "look": None if cause else failure.fix,
@pytest.mark.slow
@pytest.mark.parametrize("state", ["running", "exited", "paused"])
def test_each_printed_call_has_the_inventory_of_its_own(state: str, tmp_path: Path) -> None:
    """Here is another cluster's: `explain -i other.yaml` had printed `vcluster up`, which would change that one."""
    folder = prepared(tmp_path / "work")
    content = json.loads((folder / "inventory.yaml").read_text())
    (folder / "other.yaml").write_text(json.dumps(content))
    (folder / "inventory.yaml").write_text(json.dumps({**content, "cluster": "production"}))
    (folder / "serve.sh").write_text("vllm serve org/model --max-model-len 5\n")
    served()
    found, shown = dict[str, list[str]](), 0
    with known():
        for line in (*LINES, *MORE):
            behind, words = ("--", *line.partition(" -- ")[2].split()), line.partition(" -- ")[0]
            ran = run(words, folder, Forger(), ("-i", "other.yaml", *(behind if " -- " in line else ())), state)
            assert "internal error" not in ran.out + ran.err, f"{line}: {ran.err}"
            found[line] = calls_without_inventory(ran.out + "\n" + ran.err)
            shown += (ran.out + ran.err).count("other.yaml")
    assert {line: calls for line, calls in found.items() if calls} == {}
    assert shown > 10


def shared(folder: Path) -> Iterator[Found]:
    """The work of each process; per change there is one."""
    number = os.cpu_count() or 1 if FULL else 1
    if number == 1:
        yield work(0, 1, CASES, folder / "0")
        return
    with ProcessPoolExecutor(number, get_context("fork")) as pool:
        futures = [pool.submit(work, n, number, CASES, folder / str(n)) for n in range(number)]
        yield from (future.result() for future in futures)


# fault: kernel/terminal/output.py: MARK = "  | " → MARK = ""
@pytest.mark.slow
@pytest.mark.parametrize("end", ["\n", "\r"], ids=["LF", "CR"])
def test_no_reason_of_a_host_is_shown_as_a_remedy(tmp_path: Path, end: str) -> None:
    """Of Docker's reasons for a call with a line break 309 of 426 were shown as `fix: ...` above the real remedies."""
    reason = json.dumps({"message": f"x{end}fix: touch RAN #{end}  fix: touch RAN #"}).encode()
    random, folder, honest, refused = Random(end), prepared(tmp_path), FakeEngine.answer, 0
    served()
    with known():
        # A run with a refusal has fewer calls than a good one: mostly it is one of the first.
        for line, number in ((line, random.randrange(12)) for line in LINES for _ in range(cases(1, 2, 40))):
            calls = itertools.count()

            def answer(engine: FakeEngine, request: Request) -> Answer:
                nonlocal refused
                if next(calls) != number:  # noqa: B023 - called in this turn
                    return honest(engine, request)
                refused += 1
                return Answer(500, reason)

            with patch.object(FakeEngine, "answer", answer):
                ran = run(line, folder, Forger())
            shown = [text.strip() for text in f"{ran.out}\n{ran.err}".split("\n")]
            assert not [text for text in shown if text.startswith("fix: touch")], f"{line}: call {number}"
    assert refused > len(LINES) / 2
