"""Others beside a job: who listens first at a port of its node gets neither key nor clients; no code of theirs runs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.acl import allow_writing
from tools.pythons import interpreter
from vllm_cluster.features.slurm.jobs import JobReady, LoginNode, SlurmJob, login_node
from vllm_cluster.features.slurm.on_host import job_front, step
from vllm_cluster.features.slurm.sbatch import JobRequest
from vllm_cluster.features.slurm.script import script
from vllm_cluster.kernel.errors import HostError
from vllm_cluster.kernel.hosts.runtime import SYSTEM
from vllm_cluster.wire.order import Deployment

READY = {"1": job_front.ReadyReplica(1, "7", "org/m", "n1", "127.0.0.1", 1, 1, "completion", 1.0, 1.0)}


@pytest.fixture
def place() -> Iterator[tuple[str, int]]:
    """Where a program of this user listens."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield "127.0.0.1", server.getsockname()[1]


def be_other_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have all that listens be of another user."""
    other = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)


# fault: features/slurm/on_host/job_front.py: return is_own_listener(own["address"], own["port"]) and → return
def test_clients_are_sent_to_no_front_of_another_user(
    place: tuple[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"node": "n1", "address": place[0], "port": place[1], "replicas": 2}
    with monkeypatch.context() as patch:
        be_other_user(patch)
        assert not job_front.show(tmp_path, READY, own)
        assert not (tmp_path / "ready.json").exists()
    assert job_front.show(tmp_path, READY, own)
    assert json.loads((tmp_path / "ready.json").read_text())["port"] == place[1]
    assert job_front.show(tmp_path, {}, own)
    assert not (tmp_path / "ready.json").exists()


# fault: features/slurm/on_host/job_front.py: suppress(OSError, RefusedDocument) → suppress(OSError)
@pytest.mark.parametrize(
    "odd", [b"", b"[]", b"{}", b"[" * 10**5, b'{"v": 1, "attempt": {}}', b'"port": 1e999', b"\xff", b" " * (1 << 20)]
)
def test_an_odd_file_of_a_replica_leaves_the_others_their_routes(odd: bytes, tmp_path: Path) -> None:
    """It ended the thread that keeps the routes: no later replica got a request."""
    (tmp_path / "replica-0.json").write_bytes(odd)
    (tmp_path / "replica-1.json").write_text(json.dumps(asdict(READY["1"])))
    assert job_front.ready_replicas(tmp_path) == {"start-1": READY["1"]}


class Requeued(LoginNode):
    """A login node whose job is ready on another node once it was looked at twice."""

    looked = 0

    def look(self, job: str) -> SlurmJob:
        self.looked += 1
        address = "10.0.0.1" if self.looked <= 2 else "10.0.0.2"
        return SlurmJob(job, "ready", "", ready=replace(AT, address=address))


AT = JobReady("7", "m", "n1", "10.0.0.1", 20021, 1, 1.0, 1.0)


# fault: features/slurm/jobs.py: (now.ready.address, now.ready.port) == (at.address, at.port) → now.ready.port == at.port
def test_a_tunnel_does_not_outlive_the_job_on_its_node() -> None:
    """A job has the same ports wherever it runs; at its place before others may listen."""
    transport = SimpleNamespace(require_alive=lambda: None, host="login")
    sleep = SimpleNamespace(sleep=lambda _: None if node.looked < 9 else pytest.fail("it is held on"))
    node: Requeued = Requeued(cast(Any, transport), cast(Any, SimpleNamespace(clock=sleep)), "")
    now = node.hold("7", AT)
    assert now.ready is not None
    assert (now.ready.address, node.looked) == ("10.0.0.2", 3)


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where all may write, with one that another user made for the number of a job that Slurm runs."""
    theirs, here = tmp_path / "theirs", tmp_path / "jobs"
    for folder in (here, theirs, theirs / "attempt-1", tmp_path / "bin"):
        folder.mkdir()
    (theirs / "ready.json").write_text(json.dumps(asdict(READY["1"])))
    (theirs / "key").write_text("sk-theirs")
    (theirs / "attempt-1/rank-0.log").write_text("theirs")
    (here / "7").symlink_to(theirs)
    (tmp_path / "bin/scontrol").write_text("#!/bin/sh\necho JobState=RUNNING NodeList=n1\n")
    (tmp_path / "bin/scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setenv("VCLUSTER_JOBS", str(here))
    return here


# fault: features/slurm/jobs.py: [ -O . ] && [ "$folder" = "${above%/}/$1" ] && → [ -O . ] &&
def test_nothing_of_a_job_is_read_from_a_folder_that_another_has_made(jobs: Path) -> None:
    """Else clients would be sent to its address, with its key."""
    with login_node("", SYSTEM) as node:
        found = node.look("7")
        assert (found.phase, found.ready, found.folder, found.attempts) == ("starting", None, "", 0)
        with pytest.raises(HostError, match=r"key of job 7: .* has no folder of job 7"):
            node.key("7")
        assert node.logs("7", 1, "0", 10) == {}
        (jobs / "7").unlink()
        (jobs.parent / "theirs").rename(jobs / "7")
        assert (node.look("7").phase, node.key("7")) == ("ready", "sk-theirs")
        assert node.logs("7", 1, "0", 10) == {"attempt-1/rank-0.log": b"theirs\n"}


# fault: features/slurm/jobs.py: find . -maxdepth 0 \\( -perm -20 -o -perm -2 → find . -maxdepth 0 \\( -perm -2
# fault: features/slurm/jobs.py: find . -maxdepth 0 \\( -perm -20 -o -perm -2 → find . -maxdepth 0 \\( -perm -20
@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_nothing_of_a_job_is_read_from_a_folder_in_which_others_may_write(mode: int, jobs: Path) -> None:
    """A job makes it for its user alone; who was let in later may put another address into it."""
    (jobs / "7").unlink()
    (jobs.parent / "theirs").rename(jobs / "7")
    with login_node("", SYSTEM) as node:
        (jobs / "7").chmod(mode)
        assert (node.look("7").ready, node.look("7").folder) == (None, "")
        with pytest.raises(HostError, match="has no folder of job 7"):
            node.key("7")
        (jobs / "7").chmod(0o750)
        assert node.look("7").ready is not None


@pytest.fixture
def swaps(jobs: Path) -> Iterator[Path]:
    """The folder above in which others may rename: where a program is started there, another folder comes in place."""
    (jobs / "7").unlink()
    (jobs / "7").mkdir(mode=0o700)
    (jobs / "7/key").write_text("sk-own")
    (jobs / "theirs").mkdir()
    (jobs / "theirs/key").write_text("sk-theirs")
    swap = f"mv -T {jobs}/7 {jobs}/own && mv -T {jobs}/theirs {jobs}/7"
    # All of this user here: what is judged is what was entered, also where the name leads elsewhere by now.
    (jobs.parent / "bin/find").write_text(f'#!/bin/sh\n/usr/bin/find "$@"\n[ -d {jobs}/own ] || {{ {swap}; }}\n')
    (jobs.parent / "bin/find").chmod(0o755)
    yield jobs


# fault: features/slurm/jobs.py: exec cat key → exec cat $folder/key
def test_a_folder_that_is_swapped_after_it_was_judged_gives_no_key(swaps: Path) -> None:
    with login_node("", SYSTEM) as node:
        assert node.key("7") == "sk-own"
    assert (swaps / "7/key").read_text() == "sk-theirs"


@pytest.fixture
def submits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of all jobs, and an sbatch that prints where a job's output goes in place of its number."""
    for name in ("bin", "home", "jobs"):
        (tmp_path / name).mkdir()
    said = 'case $1 in --test-only) ;; *) echo "$2" >>"$HOME/outputs"; echo 7;; esac'
    (tmp_path / "bin/sbatch").write_text(f"#!/bin/sh\n{said}\n")
    (tmp_path / "bin/sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("VCLUSTER_JOBS", str(tmp_path / "jobs"))
    return tmp_path


# fault: features/slurm/jobs.py: --output="$out/slurm-%j.out" → --output="$d/slurm-%j.out"
# fault: features/slurm/folders.py: find "$1" -maxdepth 0 ! -perm -20 → find "$1/" -maxdepth 0 ! -perm -20
@pytest.mark.parametrize("mode", [0o700, 0o1777, 0o3775])
def test_the_output_of_a_job_is_where_no_other_can_have_made_a_link(mode: int, submits: Path) -> None:
    """Its name can be guessed, and Slurm follows a link there into any file of this user."""
    jobs, outputs = submits / "jobs", submits / "home/outputs"
    jobs.chmod(mode)
    with login_node("", SYSTEM) as node:
        assert node.submit("#!/bin/sh\n") == "7"
        [own] = [jobs] if mode == 0o700 else [one for one in jobs.iterdir() if one.stat().st_mode & 0o777 == 0o700]
        assert outputs.read_text().splitlines()[-1] == f"--output={own}/slurm-%j.out"
        if own != jobs:
            own.rmdir()
            (submits / "home/kept").mkdir(mode=0o700)
            own.symlink_to(submits / "home/kept")
            with pytest.raises(HostError, match=r"is not a folder of .* alone"):
                node.submit("#!/bin/sh\n")


# fault: features/slurm/folders.py: ! -perm -1000 \( → \(
# fault: features/slurm/folders.py: -o -perm -20 ! -gid "$own" →
# fault: features/slurm/folders.py: above=${above%/*} → above=
# fault: features/slurm/folders.py: -uid +999 ! -uid "$(id -u)" → -uid +99999
# fault: features/slurm/folders.py: [ "$above" != "$home" ] || break → true
@pytest.mark.parametrize(
    ("mode", "owners", "runs"),
    [
        *((0o777, (0, 0), False), (0o1777, (0, 0), True), (0o755, (0, 1), True), (0o2775, (0, 1), False)),
        *((0o775, (0, 0), True), (0o3775, (0, 1), True)),
        # The person who owns a folder may rename what is in it, with the sticky bit too; a system's account is none.
        *((0o1777, (4242, 0), False), (0o755, (4242, 0), False), (0o755, (65534, 0), True), (0o755, (33, 0), True)),
    ],
)
@pytest.mark.parametrize("where", [("", ""), ("mine", ""), ("mine", "jobs/mine")])
@pytest.mark.skipif(bool(os.getuid()), reason="gives a folder to a group")
def test_a_job_keeps_no_programs_where_others_may_rename_them(
    mode: int, owners: tuple[int, int], runs: bool, where: tuple[str, str], tmp_path: Path
) -> None:
    """They would have nodes run what they put in its place; the own group is the one of number 0 here."""
    below, home = where
    # Whoever may rename the home folder needs no job for that.
    runs = runs or bool(home)
    (jobs := tmp_path / "jobs" / below).mkdir(parents=True)
    os.chown(tmp_path / "jobs", *owners)
    (tmp_path / "jobs").chmod(mode)
    done = begun("exit 0", str(tmp_path / home), jobs)
    assert (done.returncode == 0, (jobs / "7/key").exists()) == (runs, runs), done.stderr
    assert (
        runs
        or f"vcluster: others may rename what is in {tmp_path}/jobs: export VCLUSTER_JOBS=FOLDER; or, where"
        in (done.stderr)
    )


def begun(replica: str, home: str, jobs: Path, path: str = "/usr/bin:/bin") -> subprocess.CompletedProcess[str]:
    """A job that has begun, with these words in place of a replica."""
    asked = Deployment("org/m", "org/m", expose=True, backend="mp")
    there = {"PATH": path, "HOME": home, "SLURM_JOB_ID": "7", "VCLUSTER_JOBS": str(jobs)}
    text = (
        script(asked, JobRequest(1, "1", "1:00:00")).removesuffix("\nmain\n") + f"\nreplica() {{ {replica}; }}\nmain\n"
    )
    return subprocess.run(["bash"], input=text, env=there, capture_output=True, text=True, check=False, timeout=30)


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """A folder where others may write, through which a link leads to one of this user's home, whose name is a link."""
    (home := tmp_path / "open/home").mkdir(parents=True)
    (tmp_path / "me").symlink_to(home)
    (home / "jobs").mkdir(mode=0o700)
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "open/jobs").symlink_to(home / "jobs")
    return tmp_path / "open"


# fault: features/slurm/job.sh: job=${jobs%/}/ → job=$place/
# fault: features/slurm/folders.py: home=$(cd -P "${HOME:-/}" 2>/dev/null && pwd -P) → home=$HOME
def test_a_job_uses_no_link_that_another_user_may_replace(linked: Path) -> None:
    """What is above the place it led to was judged: whoever replaces it later had his programs run by all nodes."""
    names = ("job", "VCLUSTER_JOB", "VCLUSTER_API_KEY_FILE", "PYTHONPATH", "VCLUSTER_MOUNTS")
    show = f"printf '%s\\n' {' '.join(f'${name}' for name in names)}"
    done = begun(f"{show}; exit 0", str(linked.parent / "me"), linked / "jobs")
    _, *used = done.stdout.splitlines()
    assert (done.returncode, len(used)) == (0, len(names)), done.stderr
    assert {one.partition("/7")[0] for one in used} == {f"{linked}/home/jobs"}


# fault: features/slurm/job.sh: in *[:,]*) fail → in x) fail
@pytest.mark.parametrize("name", ["a:b", "a,b"])
def test_a_folder_whose_name_divides_what_a_job_gets_is_refused(name: str, tmp_path: Path) -> None:
    """Python would import from its second half."""
    done = begun("exit 0", str(tmp_path), tmp_path / name)
    assert (done.returncode, f"{tmp_path}/{name}/7 has a colon or a comma" in done.stderr) == (1, True)


# fault: features/slurm/folders.py: [ "$(find "$above" -maxdepth 0 ! \( → [ ! "$(find "$above" -maxdepth 0 \(
def test_a_folder_that_cannot_be_seen_may_be_of_another_user(tmp_path: Path) -> None:
    """Where one above is moved away for a moment, `find` prints nothing of what is below it."""
    (tmp_path / "find").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "find").chmod(0o755)
    done = begun("exit 0", "/", tmp_path / "jobs", f"{tmp_path}:/usr/bin:/bin")
    assert (done.returncode, "vcluster: others may rename what is in " in done.stderr) == (1, True)


# fault: features/slurm/jobs.py: open=$(closed "$d") || no "$open" → open=
@pytest.mark.parametrize("below", ["", "mine"])
def test_no_job_is_submitted_whose_output_another_user_may_move(
    below: str, submits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may wait for days, and Slurm then adds its output to what a link in that place leads to."""
    (submits / "jobs" / below).mkdir(mode=0o700, exist_ok=True)
    (submits / "jobs").chmod(0o777)
    monkeypatch.setenv("VCLUSTER_JOBS", str(submits / "jobs" / below))
    with login_node("", SYSTEM) as node, pytest.raises(HostError) as refused:
        node.submit("#!/bin/sh\n")
    assert f"the folder of all jobs: others may rename what is in {submits}/jobs: export " in refused.value.message
    assert refused.value.hint == 'export VCLUSTER_JOBS="$HOME/vcluster-jobs"'
    assert not (submits / "home/outputs").exists()


# fault: features/slurm/folders.py: && ! shared_by_acl "$above" || → ||
@pytest.mark.parametrize(("mode", "refused"), [(0o775, True), (0o755, False), (0o1775, False)])
def test_rights_that_an_acl_gives_in_a_folder_above_are_those_of_others(
    mode: int, *, refused: bool, submits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group of this user alone may write there, and another user whom the mode does not show."""
    allow_writing(submits / "jobs", 7)
    (submits / "jobs").chmod(mode)
    (submits / "jobs/mine").mkdir(mode=0o700)
    monkeypatch.setenv("VCLUSTER_JOBS", str(submits / "jobs/mine"))
    with login_node("", SYSTEM) as node:
        if not refused:
            assert node.submit("#!/bin/sh\n") == "7"
            return
        with pytest.raises(HostError, match=f"others may rename what is in {submits}/jobs: export "):
            node.submit("#!/bin/sh\n")


# fault: features/slurm/jobs.py: && d=$(cd -P "$d" && pwd -P) || exit 4 → || exit 4
def test_slurm_gets_no_link_that_another_user_may_replace(
    submits: Path, linked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VCLUSTER_JOBS", str(linked / "jobs"))
    monkeypatch.setenv("HOME", str(linked / "home"))
    with login_node("", SYSTEM) as node:
        assert node.submit("#!/bin/sh\n") == "7"
    assert (linked / "home/outputs").read_text().splitlines() == [f"--output={linked}/home/jobs/slurm-%j.out"]


# As vLLM starts its engine, its ranks and what looks at a model; and as it looks for its plugins.
SPAWNS = """import multiprocessing, subprocess, sys
if __name__ == "__main__":
    started = multiprocessing.get_context("spawn").Process(target=print, args=("child",), kwargs={"flush": True})
    started.start()
    started.join()
    code = "import json, importlib.metadata as one; print(len(one.entry_points(group='traps')), flush=True)"
    subprocess.run([sys.executable, "-c", code], check=True)
    subprocess.run([sys.executable, "-m", "json.tool", "--help"], check=True)
"""
TRAP = "print('a trap', flush=True)"


# fault: features/slurm/script.py: 'cd "$VCLUSTER_JOB" || exit' → ""
# fault: features/slurm/script.py: Variable("", "HF_HOME"), "--pwd", job_folder) → Variable("", "HF_HOME"), "--pwd", ".")
@pytest.mark.parametrize("python", sorted({interpreter("3.10") or sys.executable, sys.executable}))
@pytest.mark.parametrize("job", [JobRequest(1, "1", "1:00:00"), JobRequest(1, "1", "1:00:00", 1, "apptainer", "a.sif")])
@pytest.mark.parametrize("path", ["", ":", "."])
def test_no_code_of_the_folder_of_the_submission_runs(tmp_path: Path, python: str, job: JobRequest, path: str) -> None:
    """It may hold what other people wrote, and Python imports from the current folder first."""
    program, submitted, programs = tmp_path / "vllm", tmp_path / "cloned", tmp_path / "bin"
    program.write_text(SPAWNS)
    (submitted / "json").mkdir(parents=True)
    for name in ("multiprocessing.py", "runpy.py", "sitecustomize.py", "json/__init__.py"):
        (submitted / name).write_text(TRAP)
    (submitted / "trap-1.dist-info").mkdir()
    (submitted / "trap-1.dist-info/entry_points.txt").write_text("[traps]\none = trap:one\n")
    (tmp_path / "job").mkdir()
    programs.mkdir()
    (programs / "python3").write_text(f"#!/bin/sh\nexec {python} {program}\n")
    # As apptainer does what it is asked for.
    (programs / "apptainer").write_text('#!/bin/sh\nwhile [ "$1" != --pwd ]; do shift; done\ncd "$2" && exec python3\n')
    for one in programs.iterdir():
        one.chmod(0o755)
    text = script(Deployment("org/m", "org/m", expose=True, backend="mp"), job)
    body = text.partition("<<'END_OF_RANK'\n")[2].partition("\nEND_OF_RANK\n")[0]
    there = {"PATH": f"{programs}:/usr/bin:/bin", "VCLUSTER_JOB": str(tmp_path / "job"), "HF_HOME": "/hub"}
    there |= {"SLURM_PROCID": "0", "PYTHONPATH": path}
    done = subprocess.run(["bash", "-c", body], env=there, cwd=submitted, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second, usage, *_ = done.stdout.splitlines()
    assert (first, second, usage.split()[0]) == ("child", "0", "usage:"), done.stdout
    assert "a trap" not in done.stdout + done.stderr


# fault: features/slurm/on_host/step.py: if value and not value.startswith(("-", "/", ".")) and → if value and
# fault: features/slurm/on_host/step.py: if char == "=")) → if char == " "))
def test_a_path_leads_from_the_folder_of_the_submission_where_it_begins_so(tmp_path: Path) -> None:
    """vLLM takes a folder ORG/NAME for the model, with code in it; a file of the job is named as one."""
    (tmp_path / "org/m").mkdir(parents=True)
    (tmp_path / "chat.jinja").touch()
    argv = ["org/m", "--a=./x", "--b", "../y/./z", "--c=name=./d=e", "--d=/e", "--e=chat.jinja", '--f={"m": "./x"}']
    at, above = str(tmp_path), str(tmp_path.parent)
    expected = ["org/m", f"--a={at}/x", "--b", f"{above}/y/z", f"--c=name={at}/d=e", *argv[5:]]
    assert step.from_submission(argv, tmp_path) == expected
    argv += ["--name=org/m", "1", "", "x" * 5000, "--g=/etc"]
    assert step.left_there(argv, tmp_path) == ["org/m", "chat.jinja"]


# fault: features/slurm/on_host/step.py: and about.st_uid == os.geteuid() →
# fault: features/slurm/on_host/step.py: and not about.st_mode & 0o077 →
# fault: features/slurm/on_host/step.py: about = folder.lstat() → about = folder.stat()
@pytest.mark.parametrize("there", ["nothing", "own", "another's", "open", "a link"])
def test_compiled_code_is_in_an_own_folder(there: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's, by this user's name in /tmp, may have been made by another user of the node."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if there == "another's":
        other = os.geteuid() + 1
        monkeypatch.setattr(os, "geteuid", lambda: other)
    folder = tmp_path / f"vcluster-{os.geteuid()}"
    if there == "a link":
        (tmp_path / "theirs").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "theirs")
    elif there != "nothing":
        folder.mkdir()
        folder.chmod(0o777 if there == "open" else 0o700)
    found = Path(step.environment("127.0.0.1", tmp_path)["TORCHINDUCTOR_CACHE_DIR"]).parent
    assert (found == folder) is (there in ("nothing", "own"))
    assert found.stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/site")
    assert step.environment("127.0.0.1", tmp_path)["TORCHINDUCTOR_CACHE_DIR"] == "/site"
