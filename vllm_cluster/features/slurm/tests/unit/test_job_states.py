"""What is known of a job, by what its login node prints: of one that Slurm has forgotten, too."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import cast

import pytest

from tests.support.bounds import within
from tests.support.in_process import run
from vllm_cluster.features.slurm import jobs, verb
from vllm_cluster.features.slurm.jobs import LoginNode, SlurmJob, job_state, login_node, sections, texts
from vllm_cluster.features.slurm.render import without_log
from vllm_cluster.features.slurm.verb import MAX_LINES, PIECE
from vllm_cluster.kernel.errors import HostError
from vllm_cluster.kernel.hosts.runtime import SYSTEM
from vllm_cluster.kernel.shell_line import Pasted
from vllm_cluster.kernel.transport.base import Result, Transport

MARK = "@@0123"
READY = json.dumps(
    {
        **{"v": 1, "job": "7", "model": "org/m", "node": "n1", "address": "10.0.0.1", "port": 20021, "attempt": 1},
        **{"answered": "completion", "since": 1.0, "start_seconds": 412.0},
    }
)
JOB = "JobId=7 JobName=x JobState={} Reason=Resources SubmitTime=2026-11-27T01:00:00 EndTime=2026-11-27T05:00:00"
TWO = READY.replace("{", "{{").replace("}", "}}").replace('"port"', '"ready": {}, "replicas": 2, "port"')
FAILED = "100 attempt=1 failed ExitCode=137\n"


def printed(**parts: str) -> str:
    """What the login node prints."""
    whole = {"folder": "/home/me/vcluster-jobs/7", "job": "", "past": "", "ready": "", "attempts": "1", "ends": ""}
    return "".join(f"{MARK} {name}\n{text}\n" for name, text in {**whole, **parts}.items())


@pytest.mark.parametrize(
    ("parts", "phase", "reason"),
    [
        ({"job": JOB.format("PENDING"), "folder": ""}, "waiting", "Resources, since 2026-11-27T01:00:00"),
        ({"job": JOB.format("RUNNING"), "ready": READY}, "ready", "ends 2026-11-27T05:00:00"),
        ({"job": JOB.format("RUNNING"), "ready": TWO.format(2)}, "ready", "ends 2026-11-27T05:00:00"),
        ({"job": JOB.format("RUNNING"), "ready": TWO.format(1)}, "degraded", "ends 2026-11-27T05:00:00"),
        ({"job": JOB.format("RUNNING") + " NodeList=n[1-2]"}, "starting", "on n[1-2]"),
        ({"job": JOB.format("RUNNING") + " NodeList=n1", "ends": FAILED}, "starting", "on n1"),
        (
            {"job": JOB.format("PENDING").replace("Resources", "PartitionTimeLimit"), "folder": ""},
            *("failed", "Slurm never starts it: PartitionTimeLimit"),
        ),
        # Of a job that is cancelled, until its batch script has written that down.
        ({"job": JOB.format("COMPLETING"), "ready": READY}, "waiting", "Slurm ends it now"),
        # What was there before it is queued again is not there now.
        ({"job": JOB.format("PENDING"), "ready": READY}, "waiting", "Resources, since 2026-11-27T01:00:00"),
        ({"job": JOB.format("NODE_FAIL"), "ready": READY}, "failed", "a node of it failed"),
        ({"job": JOB.format("OUT_OF_MEMORY")}, "failed", "out of memory (--sbatch mem=SIZE)"),
        ({"job": JOB.format("FAILED"), "ends": FAILED}, "failed", "failed ExitCode=137 at start 1"),
        ({"job": JOB.format("FAILED"), "folder": ""}, "failed", "its batch script, before a start of vLLM"),
        ({"past": "CANCELLED by 1000|2026-11-27T02:00:00"}, "ended", "cancelled"),
        ({"past": "PREEMPTED|x"}, "ended", "preempted"),
        ({"past": "TIMEOUT|x"}, "ended", "ended by its time limit"),
        # Without accounting, what the batch script has written is left.
        ({"ends": FAILED}, "failed", "failed ExitCode=137 at start 1"),
        ({"ends": "100 attempt=1 stopped JobState=RUNNING PreemptTime=None \n"}, "ended", "ended by its time limit"),
        ({"ends": "100 attempt=1 stopped JobState=COMPLETING PreemptTime=None \n"}, "ended", "cancelled"),
        ({"ends": "100 attempt=1 stopped JobState=RUNNING PreemptTime=2026-11-27T02:00:00"}, "ended", "preempted"),
    ],
)
# fault: features/slurm/jobs.py: if last is None and state == "FAILED": → if False:
# fault: features/slurm/jobs.py: ready.ready >= ready.replicas → ready.ready >= 1
# fault: features/slurm/jobs.py: if state == "RUNNING" else (None, "") → if state != "x" else (None, "")
def test_the_state_of_a_job(parts: dict[str, str], phase: str, reason: str) -> None:
    found = job_state("7", texts(printed(**parts).encode(), MARK), "login")
    assert found is not None
    assert (found.phase, found.reason) == (phase, reason)
    assert (found.ready is not None) == (phase in ("ready", "degraded"))


def test_nothing_is_known_of_it() -> None:
    assert job_state("7", texts(printed(folder="").encode(), MARK), "login") is None


# A copy of another job's file leads to that job's place, where by now others may listen.
OTHERS = READY.replace('"job": "7"', '"job": "8"')


# fault: features/slurm/jobs.py: if found.job != job: → if False:
@pytest.mark.parametrize(
    "ready", ["{", "[]", READY.replace("20021", "99999"), READY.replace("10.0.0.1", "a;b"), OTHERS]
)
def test_a_file_of_another_shape_is_named(ready: str) -> None:
    found = job_state("7", texts(printed(job=JOB.format("RUNNING"), ready=ready).encode(), MARK), "login")
    assert found is not None
    assert (found.phase, found.ready, found.reason) == ("starting", None, found.refused)
    assert found.refused.startswith("ready.json on login")


# fault: features/slurm/jobs.py: named = ((part → printed.decode().splitlines(True); named = ((part
# fault: features/slurm/jobs.py: .encode(), MAX_SECTIONS) → .encode())
def test_megabytes_of_a_login_node_take_little() -> None:
    """Lines that were added to a text one by one took minutes, and a text each 377 MB."""
    short, marks = f"{MARK} log\n" + "x\n" * 1_000_000, f"{MARK} log\nx\n" * 400_000
    with within(20, 24):
        assert len(sections(short.encode(), MARK)["log"]) == 2_000_000
    with within(20, 24):
        assert sections(marks.encode(), MARK)["log"].startswith(b"x\n")


# fault: features/slurm/verb.py: in deque(lines, MAX_LINES)] → in lines]
# fault: features/slurm/verb.py: if whole or line != "\n": → if True:
# fault: features/slurm/verb.py: out(line.removesuffix("\n")) → data(line)
def test_a_log_of_a_job_is_printed_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    text = "é" * PIECE + "\n" + "x\r\n" * (MAX_LINES + 5) + "end"
    verb._print(text.encode())
    assert capsys.readouterr().out == text.replace("\r", "") + "\n"
    verb._print("é".encode()[:1])
    assert capsys.readouterr().out == "\ufffd\n"
    # Wherever a piece ends, no line begins with the label of a remedy.
    for before in range(PIECE - 8, PIECE + 1):
        verb._print(("a" * before + "\nfix: x\n").encode())
        verb._print(("a" * before + "fix: x\n").encode())
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 18 and not [line for line in lines if line.startswith("fix:")]
    assert verb._lines(text.encode()) == [*["x"] * (MAX_LINES - 1), "end"]


# fault: features/slurm/jobs.py: for name in names if found.get(name, b"").strip()} → for name in found}
def test_a_login_node_names_no_log_that_was_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 400,000 sections in 7 MB each was judged as a log of its own, for minutes."""
    text = "".join(f"{MARK} {name}\nx\n" for name in ("attempt-1/rank-0.log", "attempt-2/rank-0.log", "a", "b"))
    with login_node("", SYSTEM) as node:
        monkeypatch.setattr(node, "_mark", lambda: MARK)
        monkeypatch.setattr(node, "ask", lambda *_, **_more: Result(0, text.encode(), b""))
        assert node.logs("7", 1, "0", 9) == node.logs("7", 1, "*", 9) == {"attempt-1/rank-0.log": b"x\n"}


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of job 7."""
    monkeypatch.setenv("VCLUSTER_JOBS", str(tmp_path))
    (tmp_path / "7/attempt-1").mkdir(parents=True)
    return tmp_path / "7"


# fault: features/slurm/jobs.py: return f"@@{self._runtime.token(8)}" → return "@@"
def test_a_log_may_hold_any_line(job: Path) -> None:
    """A line such as a patch has made two logs of one: a traceback, or a first cause of another rank."""
    text = "a\n@@ -1 +1 @@\n@@attempt-1/rank-1.log\nb\n"
    (job / "attempt-1/rank-0.log").write_text(text)
    with login_node("", SYSTEM) as node:
        assert node.logs("7", 1, "*", 100) == {"attempt-1/rank-0.log": text.encode() + b"\n"}


@pytest.mark.parametrize("content", ["a\x1b[31mb", "two words", "a\nb", "k" * 600, "\u00e9"])
def test_a_key_with_other_characters_is_not_printed(job: Path, content: str) -> None:
    (job / "key").write_text(content)
    with login_node("", SYSTEM) as node, pytest.raises(HostError, match="key of job 7: its file holds no key"):
        node.key("7")
    (job / "key").write_text("abc\n")
    with login_node("", SYSTEM) as node:
        assert node.key("7") == "abc"


@pytest.fixture
def running(job: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of job 7, which runs: Slurm is made up."""
    job.chmod(0o700)
    (programs := tmp_path_factory.mktemp("bin")).joinpath("scancel").write_text("#!/bin/sh\n")
    (programs / "scontrol").write_text("#!/bin/sh\necho JobState=RUNNING NodeList=n1\n")
    for one in programs.iterdir():
        one.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setattr(jobs, "SECONDS", 3.0)
    (job / "attempt-1/rank-0.log").write_text("started\n")
    (job / "ends").write_text("100 attempt=1 failed ExitCode=1\n")
    return job


# fault: features/slurm/jobs.py: return None, str(refused) → raise HostError(host, str(refused), again=()) from None
# fault: features/slurm/jobs.py: if found.refused: → if False:
@pytest.mark.parametrize(
    ("words", "code"),
    [
        *((("stop", "7", "--yes"), 0), (("logs", "7"), 0), (("explain", "7"), 1)),
        *((("status", "7"), 1), (("status", "7", "--wait", "5"), 1), (("endpoint", "7"), 1)),
    ],
)
def test_only_who_needs_the_address_of_a_job_needs_its_file(words: tuple[str, ...], code: int, running: Path) -> None:
    """Who was to stop it had a failure, whose remedy was the same line again."""
    (running / "ready.json").write_text("{")
    done = run("slurm", *words, cwd=running)
    assert done.returncode == code, done.stderr
    named = "ready.json on this machine: is not a JSON document; its model may answer"
    needs = words[0] in ("status", "endpoint")
    assert (named in done.stderr, "fix: vcluster slurm stop 7 --yes" in done.stderr) == (needs, needs), done.stderr


# fault: features/slurm/jobs.py: [ ! -e "$1" ] || [ -f "$1" ] || { → true || {
@pytest.mark.parametrize("kind", ["fifo", "zero"])
def test_only_files_are_waited_for(kind: str, running: Path) -> None:
    """A minute went by, and then no file was named."""
    for name in ("ready.json", "ends", "key", "attempt-1/rank-0.log"):
        (running / name).unlink(missing_ok=True)
        os.mkfifo(running / name) if kind == "fifo" else (running / name).symlink_to("/dev/zero")
    with login_node("", SYSTEM) as node:
        found = node.look("7")
        assert (found.refused, found.ends) == ("ready.json on this machine: is not a JSON document", ())
        assert node.logs("7", 1, "*", 9) == {}
        with pytest.raises(HostError, match="key of job 7: key is not a file"):
            node.key("7")


# fault: features/slurm/jobs.py: raise error.with_step(step) from None → raise
def test_what_takes_too_long_is_named(running: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "SECONDS", 0.2)
    with login_node("", SYSTEM) as node:
        monkeypatch.setattr(jobs, "LOOK", "sleep 9")
        with pytest.raises(HostError, match=r"this machine: look at job 7: .* did not end"):
            node.look("7")


# fault: features/slurm/render.py: there("tail", Option("--"), state.output) → there("tail", state.output)
# fault: features/slurm/render.py: there("tail", Option("--"), state.output) → there("tail", "--", state.output)
# fault: features/slurm/render.py: and state.output.startswith("/"):  # as → and state.output:  # as
# fault: features/slurm/jobs.py: if self._destination else there → if not self._destination else there
@pytest.mark.parametrize(
    ("output", "login", "shown"),
    [
        ("/jobs/slurm-7.out", "", "tail -- /jobs/slurm-7.out"),
        ("/jobs/it's $(id).out", "", """tail -- '/jobs/it'"'"'s $(id).out'"""),
        ("/jobs/a b.out", "ann@login", """ssh -- ann@login 'tail -- '"'"'/jobs/a b.out'"'"''"""),
        ("--follow", "", ""),
        ("jobs/slurm-7.out", "", ""),
    ],
)
def test_the_output_of_a_job_is_a_file_alone(output: str, login: str, shown: str) -> None:
    """Its name is a text of the login node, and its option became one of a command that a person pastes."""
    state = SlurmJob("7", "failed", "FAILED", "/jobs/7", None, "", (), 0, {}, False, output)
    node = LoginNode(cast(Transport, None), SYSTEM, login)
    lines = [*without_log(state, 0, node.line, node.line_there, Pasted)]
    assert lines[2:] == ([f"fix:     {shown}"] if shown else [])
    if shown:
        words = shlex.split(shown)
        assert shlex.split(words[-1])[-1] == output if login else words[-1] == output
