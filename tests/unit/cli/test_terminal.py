"""The real program on a real terminal, with hosts of the simulation: questions, answers, Ctrl-C and Ctrl-D."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.figures import record
from tests.support.paths import ROOT
from tests.support.terminal import CTRL_C, CTRL_D, Terminal

# Each case starts the program.
pytestmark = pytest.mark.slow

# A cluster of two hosts that serves a model; `up` would recreate both nodes. slow: a model never gets ready.
# hostile: its name would steer a terminal.
PROGRAM = r"""
import functools, json, sys, time
from tests.support.sim import lab, life, make
from vllm_cluster.cli import app
from vllm_cluster.kernel.terminal import session
from vllm_cluster.serving.cluster import down, up
from vllm_cluster.serving.serve import serve, stop

folder, mode, *argv = sys.argv[1:]
world, inventory = make.world((2, 2)), make.inventory(2)
with lab.inside(world):
    for verb in (lab.do_up, lab.do_serve):
        assert lab.run(world, inventory, verb).error is None
    world.requests = 2
    world.clock.sleep(3 * 3600)
    if mode == "slow":
        life.PHASES = tuple((phase, 1e9) for phase, _ in life.PHASES)
        sleep = world.clock.sleep
        world.clock.sleep = lambda seconds: (time.sleep(0.01), sleep(seconds))
    if mode == "hostile":
        files = world.machines["gpu1"].volumes["vcluster-lab-state"].files
        told = json.loads(files["status.json"])
        told["serve"]["name"] = "\x1b[2K\rnothing\n\x1b[8m"
        files["status.json"] = json.dumps(told).encode()
    if argv[0] == "up":
        inventory = make.inventory(2, environment={"A": "1"})
    bound = (up, "bring_up"), (down, "remove_cluster"), (serve, "serve_model"), (stop, "stop_serving")
    for module, name in bound:
        setattr(module, name, functools.partial(getattr(module, name), runtime=world.runtime))
    session.Session.load = lambda self: inventory
    sys.argv = ["vcluster", *argv]
    try:
        app.main()
    finally:
        with open(folder + "/end", "w") as end:
            end.write(repr([box.body["Labels"].get("io.vcluster.role") for m in world.machines.values()
                            for box in m.boxes.values() if box.state == "running"]))
            locks = [machine.lock for machine in world.machines.values() if machine.lock]
            end.write(f" locks: {len(locks)}")
"""
BOTH = "['head', 'worker'] locks: 0"


@contextmanager
def cluster(folder: Path, *argv: str, mode: str = "quick", prefix: Sequence[str] = ()) -> Iterator[Terminal]:
    """One call of the program on a terminal."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("NO_COLOR", None)
    line: list[str | Path] = [*prefix, sys.executable, "-c", PROGRAM, folder, mode, *argv]
    with Terminal(line, env=environment, cwd=folder) as terminal:
        yield terminal


def _bare(line: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line)


def quiet(shown: str) -> None:
    """No traceback, no bug, no error."""
    for word in ("Traceback", "internal error", "error:"):
        assert word not in shown


# One function asks for all verbs: CI has each key, and one more verb that is interrupted; each night has all.
SOONER = ("serve org/other", "Ctrl-C")
NO = [
    pytest.param(
        verb, keys, code, id=f"{key}-{verb}", marks=[] if verb == "up" or (verb, key) == SOONER else pytest.mark.deep
    )
    for verb in ("up", "stop", "down", "serve org/other")
    for key, keys, code in (("n", "n\n", 1), ("Enter", "\n", 1), ("Ctrl-C", CTRL_C, 130), ("Ctrl-D", CTRL_D, 130))
]


@pytest.mark.promise("P35")
@pytest.mark.parametrize(("verb", "keys", "code"), NO)
def test_a_no_changes_nothing(verb: str, keys: str, code: int, tmp_path: Path) -> None:
    with cluster(tmp_path, *verb.split()) as terminal:
        shown = terminal.until("[y/N] ")
        # What is asked for needs room: the question begins with that.
        stop = "No GPU is free: stop" if verb.startswith("serve") else "Stop"
        assert f"{stop} org/model (ready for 3 h, 2 requests running) on lab" in shown
        terminal.press(keys)
        assert terminal.end() == code, terminal.shown
        quiet(terminal.shown)
        assert terminal.shown.rstrip().endswith("Aborted. Nothing was changed.")
    assert (tmp_path / "end").read_text() == BOTH
    record("P35", f"a real terminal: {verb}, answered by {keys!r}", f"exit {code}, nothing changed", True)


@pytest.mark.promise("P35", "P23")
def test_a_question_shows_nothing_of_a_name_that_cannot_be_printed(tmp_path: Path) -> None:
    """Whoever may use the head's Docker can write the name of the model: the question names what could not be read."""
    with cluster(tmp_path, "down", mode="hostile") as terminal:
        shown = terminal.until("[y/N] ")
        assert "Stop the model of lab (unknown: " in shown
        assert "serve.name" in shown
        assert "nothing" not in shown
        assert "\x1b[8m" not in shown
        terminal.press("n\n")
        assert terminal.end() == 1, terminal.shown


# fault: kernel/terminal/session.py: self._renderer = None →
@pytest.mark.promise("P35")
@pytest.mark.parametrize("verb", ["up", "stop", pytest.param("down", marks=pytest.mark.deep)])
def test_progress_continues_after_a_yes(verb: str, tmp_path: Path) -> None:
    with cluster(tmp_path, verb) as terminal:
        before = terminal.until("[y/N] ")
        terminal.press("y\n")
        assert terminal.end() == 0, terminal.shown
        after = terminal.shown[len(before) :]
        assert {"up": "created and started", "stop": "stopping", "down": "removing"}[verb] in after
        # A live picture hides the cursor as it begins: lines alone would leave a long step without a sign of life.
        assert "\x1b[?25l" in after
        quiet(terminal.shown)


# fault: serving/ask_head.py: except KeyboardInterrupt: → except ZeroDivisionError:
# fault: serving/ask_head.py: command_line("vcluster", "stop", served) → "vcluster stop"
@pytest.mark.promise("P17")
def test_ctrl_c_in_serve_reports_that_the_start_continues(tmp_path: Path) -> None:
    with cluster(tmp_path, "serve", "org/other", "--yes", mode="slow") as terminal:
        terminal.until("importing")
        terminal.press(CTRL_C)
        assert terminal.end() == 130, terminal.shown
        quiet(terminal.shown)
        *_, text, again, status, stop = terminal.shown.rstrip().splitlines()
    words = "Interrupted. lab continues to start org/other; run the same command to follow it."
    assert _bare(text).strip() == words
    assert [line.strip() for line in map(_bare, (again, status, stop))] == [
        "follow: vcluster serve org/other --yes",
        "look: vcluster status",
        "stop: vcluster stop org/other",
    ]
    assert (tmp_path / "end").read_text() == BOTH


# fault: kernel/terminal/session.py: if not self._changes: → if self._changes is None:
@pytest.mark.promise("P17")
@pytest.mark.parametrize("verb", ["status", pytest.param("plan", marks=pytest.mark.deep)])
def test_ctrl_c_in_a_verb_that_only_reads_prints_nothing(verb: str, tmp_path: Path) -> None:
    """The host takes the connection and never sends a byte."""
    with socket.create_server(("127.0.0.1", 0)) as host:
        port = host.getsockname()[1]
        (tmp_path / "inventory.yaml").write_text(
            "version: 1\ncluster: lab\nimage: vllm/vllm-openai:v0.33.0\nmodel_cache: /data\n"
            f"hosts: {{gpu1: {{address: 10.0.0.1, ssh: {{host: 127.0.0.1, port: {port}}}}}}}\n"
        )
        line = [sys.executable, "-m", "vllm_cluster", verb]
        with Terminal(line, env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=tmp_path) as terminal:
            before = terminal.until(" 1 host")
            terminal.press(CTRL_C)
            assert terminal.end() == 130, terminal.shown
            quiet(terminal.shown)
            assert "nterrupted" not in terminal.shown[len(before) :]


# fault: kernel/terminal/edge.py: polite.append(signal.SIGHUP) → pass
@pytest.mark.promise("P17")
@pytest.mark.parametrize("how", ["closed terminal", "SIGTERM", pytest.param("SIGHUP", marks=pytest.mark.deep)])
def test_a_polite_end_is_an_orderly_one(how: str, tmp_path: Path) -> None:
    """The lease is given back, and what was begun is left as it is."""
    with cluster(tmp_path, "serve", "org/other", "--yes", mode="slow") as terminal:
        terminal.until("importing")
        if how == "closed terminal":
            terminal.close()
        else:
            terminal.process.send_signal(signal.Signals[how])
        assert terminal.process.wait(30) == 130
    assert (tmp_path / "end").read_text() == BOTH


@pytest.mark.promise("P17")
def test_nohup_means_it(tmp_path: Path) -> None:
    """SIGHUP that is ignored when the program begins stays ignored."""
    with cluster(
        tmp_path, "serve", "org/other", "--yes", mode="slow", prefix=["env", "--ignore-signal=HUP"]
    ) as terminal:
        terminal.until("importing")
        status = Path(f"/proc/{terminal.process.pid}/status").read_text()
    (ignored,) = re.findall(r"^SigIgn:\s+([0-9a-f]+)", status, re.MULTILINE)
    assert int(ignored, 16) & 1 << (signal.SIGHUP - 1)
