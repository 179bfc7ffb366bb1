"""Reading a real cluster: its logs over cuts, restarts and a moved head, commands in its nodes, and waiting for it."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.breaks import HOSTS, black_hole, direct
from tests.support.hosts import Sandbox
from tests.support.json_schemas import validator
from tests.support.paths import ROOT
from tests.support.terminal import CTRL_C, Terminal
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.deep]

NODE = "vcluster-sandbox"
# Two minutes without a word, as a switch that restarts.
CUT_SECONDS = 120


def rows(sandbox: Sandbox, *argv: str) -> list[dict[str, Any]]:
    """The lines of logs."""
    return sandbox.vcluster("logs", "--json", *argv).ok().events()


@pytest.mark.cluster("served")
def test_the_lines_of_all_ranks_come_in_the_order_of_time_each_once(sandbox: Sandbox) -> None:
    every = rows(sandbox)
    assert [row["time"] for row in every] == sorted(row["time"] for row in every)
    assert {(row["host"], row["rank"]) for row in every if row["rank"] is not None} == {
        ("gpu1", 0),
        ("gpu1", 1),
        ("gpu2", 2),
        ("gpu2", 3),
    }
    # Ray's copies of what a rank prints are left out: each rank's line is there from its own file.
    assert not [row["message"] for row in every if row["message"].startswith("(RayWorker")]
    loaded = [row for row in every if "Starting to load model" in row["message"]]
    starts = len(loaded) // 4  # a cluster that was served before has the lines of each start
    assert sorted(row["rank"] for row in loaded) == sorted([0, 1, 2, 3] * starts)
    assert {row["source"] for row in every} >= {"node", "ray", "vllm"}
    third = rows(sandbox, "--only", "rank=3")
    assert {(row["host"], row["rank"]) for row in third} == {("gpu2", 3)}
    assert [row["message"] for row in third] == [row["message"] for row in every if row["rank"] == 3]
    assert rows(sandbox, "gpu2", "--grep", "Ray runtime started")[0]["host"] == "gpu2"
    assert rows(sandbox, "--only", "ray", "--since", "0.001") == []
    assert sandbox.vcluster("logs", "--only", "rank=99").code == 1
    nothing = sandbox.vcluster("logs", "--grep", "what no log has").ok()
    assert (nothing.out, nothing.err) == ("", "No line of the logs matches.\n")


@pytest.mark.cluster("up")
def test_commands_have_their_own_exit_code_input_and_signals(sandbox: Sandbox) -> None:
    ended = sandbox.vcluster("exec", "gpu1", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (ended.code, ended.out, ended.err) == (7, "out\n", "err\n")
    everywhere = sandbox.vcluster("exec", "--all", "--", "sh", "-c", 'hostname; [ "$(hostname)" = gpu1 ] || exit 5')
    assert (everywhere.code, sorted(everywhere.out.splitlines())) == (5, ["gpu1 | gpu1", "gpu2 | gpu2"])
    assert sandbox.vcluster("exec", "gpu1", "-it", "--", "no-such-command").code == 127
    assert sandbox.vcluster("exec", "gpu2", "--ssh", "--", "hostname; exit 9").out == "gpu2\n"
    assert sandbox.vcluster("status", "--wait", "60s").code == 1
    script = 'trap "echo got it; exit 42" TERM; echo ready; while :; do sleep 0.1; done'
    with sandbox.start("exec", "gpu1", "--", "sh", "-c", script) as running:
        assert running.stdout
        assert running.stdout.readline() == "ready\n"
        running.send_signal(signal.SIGTERM)
        assert running.communicate(timeout=90)[0] == "got it\n"
        assert running.returncode == 42


@pytest.mark.cluster("up")
@pytest.mark.parametrize("end", ["killed", "closed", "terminal", "cleared"])
def test_a_command_ends_with_vcluster_however_that_ends(sandbox: Sandbox, end: str) -> None:
    # It ignores what a terminal or sshd sends, and has left its group.
    script = 'trap "" HUP INT TERM PIPE; setsid sleep 4711 & echo ready; while :; do echo; sleep 0.2; done 2>/dev/null'
    argv = ["exec", "gpu1", "--", "sh", "-c", script]
    if end == "cleared":  # nothing marks it any more
        argv[3:] = ["env", "-i", "sh", "-c", script.replace("setsid ", "")]
    if end == "terminal":
        where = {"VCLUSTER_INVENTORY": str(sandbox.inventory), "PYTHONPATH": str(ROOT)}
        environment = {**os.environ, **sandbox.environment, **where}
        with Terminal([sys.executable, "-m", "vllm_cluster", *argv], env=environment) as at:
            at.until("ready", 90)
    else:
        with sandbox.start(*argv) as running:
            assert running.stdout
            assert running.stdout.readline() == "ready\n"
            if end in ("killed", "cleared"):
                running.kill()
            running.stdout.close()
            running.wait(timeout=90)
    until(lambda: not processes(sandbox, "sleep 4711") and not processes(sandbox, "trap "))


@pytest.mark.cluster("up")
def test_what_a_command_leaves_on_purpose_stays(sandbox: Sandbox) -> None:
    sandbox.vcluster("exec", "gpu1", "--", "sh", "-c", "nohup sleep 4712 >/dev/null 2>&1 &").ok()
    # Its end was noticed long before another command has run.
    sandbox.vcluster("exec", "gpu1", "--", "true").ok()
    assert processes(sandbox, "sleep 4712")
    sandbox.on("gpu1", "docker", "exec", NODE, "pkill", "-f", "^sleep 4712", root=True)


def processes(sandbox: Sandbox, begin: str) -> str:
    """The processes of the head's node whose command holds these words."""
    script = f"ps -eo pid,args | grep -F {begin!r} | grep -v -e grep -e VCLUSTER_EXEC || true"
    return sandbox.on("gpu1", "docker", "exec", NODE, "sh", "-c", script, root=True)


@pytest.mark.cluster("up")
def test_a_command_gets_the_terminal_and_the_lines_are_coloured_on_one(sandbox: Sandbox) -> None:
    where = {"VCLUSTER_INVENTORY": str(sandbox.inventory), "PYTHONPATH": str(ROOT)}
    environment = {**os.environ, **sandbox.environment, **where}
    program = [sys.executable, "-m", "vllm_cluster"]
    # Docker has a size for a terminal only once its command runs.
    script = 'until stty size | grep -v "^0 "; do sleep 0.1; done; read x; sleep 60'
    with Terminal([*program, "exec", "gpu1", "--", "sh", "-c", script], env=environment) as at:
        at.until("50 200", 90)
        at.press("go\n")
        # In raw mode a key: the terminal of the command makes it a signal there.
        at.press(CTRL_C)
        assert at.end(90) == 130, at.shown
    with Terminal([*program, "logs", "-f", "--grep", "Ray runtime started"], env=environment) as at:
        at.until("gpu2 ray    | \x1b[0m", 90)
        at.press(CTRL_C)
        assert at.end(90) == 130, at.shown
        assert "Traceback" not in at.shown


class Follower:
    """`logs -f --json` in the background, and the numbered lines that it has shown of each host."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.process = sandbox.start("logs", "-f", "--json")
        self.ticks: dict[str, list[int]] = {host: [] for host in HOSTS}
        self.notices: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            row = json.loads(line)
            assert not list(validator("events").iter_errors(row)), line
            if row["event"] != "log":
                self.notices.append(f"{row['event']} {row.get('host')}: {row['message']}")
            elif found := re.fullmatch(r"tick (\d+)", row["message"]):
                self.ticks[row["host"]].append(int(found[1]))

    def end(self) -> None:
        """Stop it as a person does."""
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(90) == 130

    def close(self) -> None:
        """End it and its reader."""
        self.process.kill()
        self._reader.join(30)
        with self.process:
            pass


def tick(sandbox: Sandbox, host: str, numbers: Sequence[int]) -> None:
    """Let a node print these numbers into its container's log, some tens a second, in the background."""
    script = f"for i in $(seq {numbers[0]} {numbers[-1]}); do echo tick $i > /proc/1/fd/1; sleep 0.02; done"
    sandbox.on(host, "docker", "exec", "-d", NODE, "sh", "-c", script, root=True)


def printed(sandbox: Sandbox, host: str) -> list[int]:
    """The numbers that are in a container's log."""
    text = sandbox.on(host, "sh", "-c", f"docker logs {NODE} 2>&1 | grep -a '^tick '", root=True)
    return [int(line.split()[1]) for line in text.splitlines()]


@contextmanager
def following(sandbox: Sandbox) -> Iterator[Follower]:
    """A follower that has shown the first lines of all hosts."""
    follower = Follower(sandbox)
    try:
        for host in HOSTS:
            tick(sandbox, host, range(1, 11))
        until(lambda: all(follower.ticks[host][-1:] == [10] for host in HOSTS))
        yield follower
        follower.end()
    finally:
        follower.close()


@pytest.mark.cluster("up")
def test_a_node_that_restarts_loses_no_line_and_repeats_none(sandbox: Sandbox) -> None:
    with following(sandbox) as follower:
        tick(sandbox, "gpu2", range(11, 2000))
        until(lambda: follower.ticks["gpu2"][-1] > 50)
        sandbox.on("gpu2", "docker", "restart", "-t", "0", NODE, root=True)
        last = printed(sandbox, "gpu2")[-1]
        tick(sandbox, "gpu2", range(last + 1, last + 50))
        until(lambda: follower.ticks["gpu2"][-1] == last + 49)
        assert follower.ticks["gpu2"] == printed(sandbox, "gpu2")
        previous = rows(sandbox, "gpu2", "--previous", "--grep", "tick ")
        assert previous[-1]["message"] == f"tick {last}"
    sandbox.vcluster("up", "--yes", "--wait", "30").ok()


@pytest.mark.parametrize("transport", ["fabric", "openssh"])
@pytest.mark.cluster("up", leaves="own")
def test_a_cut_of_two_minutes_and_a_moved_head_lose_no_line_and_repeat_none(sandbox: Sandbox, transport: str) -> None:
    at = direct(sandbox, transport)
    with following(at) as follower:
        for host in HOSTS:
            tick(sandbox, host, range(11, 8000))
        until(lambda: all(follower.ticks[host][-1] > 50 for host in HOSTS))
        with black_hole(sandbox, "gpu2"):
            began, before = time.monotonic(), follower.ticks["gpu1"][-1]
            until(lambda: time.monotonic() - began > CUT_SECONDS, CUT_SECONDS + 60)
            assert follower.ticks["gpu1"][-1] > before
            assert follower.ticks["gpu2"][-1] < follower.ticks["gpu1"][-1] - 1000
        until(lambda: all(len(follower.ticks[host]) == 7999 for host in HOSTS), 600)
        assert {host: follower.ticks[host] for host in HOSTS} == {host: list(range(1, 8000)) for host in HOSTS}
        assert any("its log continues after " in notice for notice in follower.notices), follower.notices
        moved = at.by(at.rewrite(Path("moved.yaml"), add="head: gpu2\n"))
        moved.vcluster("up", "--yes", "--wait", "30").ok()
        for host in HOSTS:
            tick(sandbox, host, range(9000, 9050))
        until(lambda: all(follower.ticks[host][-1] == 9049 for host in HOSTS))
        for host in HOSTS:
            assert follower.ticks[host] == [*range(1, 8000), *range(9000, 9050)]
    moved.vcluster("down", "--yes", "--wait", "30").ok()


@pytest.mark.cluster("up")
def test_binary_bytes_and_a_line_of_100_mb(sandbox: Sandbox) -> None:
    script = r"printf 'begin \000\377\033[2J\n'; head -c 100000000 /dev/zero | tr '\0' x; printf '\nend of it\n'"
    sandbox.on("gpu2", "docker", "exec", NODE, "sh", "-c", f"{{ {script}; }} > /proc/1/fd/1", root=True)
    shown = sandbox.vcluster("logs", "gpu2").ok().out
    assert re.search(r"gpu2 node   \| x{1000,65536} \.\.\. \[\d+ bytes cut\]\n", shown)
    assert "begin \\x00\ufffd" in shown
    assert "\x1b" not in shown
    assert "end of it" in shown
