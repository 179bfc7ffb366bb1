"""The script of a Slurm job: what a shell makes of it, beside what `serve` derives, and that names stay names."""

from __future__ import annotations

import ast
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import tree
from tests.support.depth import cases
from tests.support.in_process import run
from tests.support.json_schemas import validate
from tests.support.ports import free_port
from vllm_cluster.features.slurm.on_host import step
from vllm_cluster.features.slurm.sbatch import JobRequest
from vllm_cluster.features.slurm.script import CARRIED, OF_FRONT, laid_out, script
from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.inventory.model import Host
from vllm_cluster.kernel.node.program import node_program
from vllm_cluster.kernel.plan import adapters
from vllm_cluster.wire.order import Deployment

JOB = JobRequest(2, "8", "4:00:00")
ASKED = Deployment("org/model", "org/model", ("--max-model-len", "4096"), expose=True, backend="mp")
IN_JOB = {"MASTER": "10.0.0.1", "API_PORT": "21", "MASTER_PORT": "22", "ENGINES_PORT": "23"}
# Prints its words, a NUL behind each, and where its program would be.
PRINT = '#!/bin/sh\necho "$VCLUSTER_GPUS" >share\nprintf "%s\\0" "$@"\n'


def as_run(text: str, folder: Path, rank: int, program: str = "python3", **environment: str) -> list[str]:
    """The words that a rank of the job runs: what a shell makes of the part of the script that is for the nodes."""
    body = text.partition("<<'END_OF_RANK'\n")[2].partition("\nEND_OF_RANK\n")[0]
    (folder / program).write_text(PRINT)
    (folder / program).chmod(0o755)
    there = {**IN_JOB, "PATH": f"{folder}:/usr/bin:/bin", "SLURM_PROCID": str(rank), "HF_HOME": "/hub"}
    there |= {"VCLUSTER_JOB": str(folder), **environment}
    done = subprocess.run(["bash", "-c", body], env=there, capture_output=True, text=True, check=True, cwd=folder)
    return done.stdout.replace(str(folder), "/job").split("\0")[:-1]


def expected(asked: Deployment, job: JobRequest, rank: int) -> Sequence[str]:
    """What `serve` derives for the node, with the addresses and ports of the job."""
    found: Mapping[str, str] = {
        **{"--host": "10.0.0.1", "--port": "21", "--master-addr": "10.0.0.1"},
        **{"--master-port": "22", "--data-parallel-rpc-port": "23"},
    }
    words = (word.partition("=") for word in laid_out(asked, job).parts[rank].argv)
    return [f"{name}={found[name]}" if name in found else f"{name}{equals}{value}" for name, equals, value in words]


@pytest.mark.parametrize("nodes", [1, 2, 5])
@pytest.mark.parametrize("more", [{}, {"dp": 8, "tp": 1}, {"tp": 8, "pp": 1, "expert_parallel": True}])
# fault: features/slurm/script.py: last = len(set(ends[number:])) == 1 → last = number == 0
def test_each_node_runs_what_serve_derives(tmp_path: Path, nodes: int, more: dict[str, int]) -> None:
    asked, job = replace(ASKED, **more), replace(JOB, nodes=nodes)  # type: ignore[arg-type]
    if more.get("dp"):
        asked = replace(asked, dp=8 * nodes)
    if more.get("pp") == 1:
        asked = replace(asked, tp=8 * nodes)
    text = script(asked, job)
    for rank in range(nodes):
        assert as_run(text, tmp_path, rank) == ["/job/program/step.py", *expected(asked, job, rank)]


HALVES = ("a,b,c,d", "e,f,g,h")


# fault: features/slurm/script.py: nodes, gpus = job.of_replica → nodes, gpus = job.nodes, job.gpu_count
# fault: features/slurm/on_host/step.py: every.split(",")[first : first + number] → every.split(",")[:number]
@pytest.mark.parametrize(
    ("job", "alone", "places"),
    [
        (JobRequest(4, "8", "1:00:00", 2), JobRequest(2, "8", "1:00:00"), ["0 a,b,c,d,e,f,g,h", "2 a,b,c,d,e,f,g,h"]),
        (JobRequest(2, "8", "1:00:00", 2), JobRequest(1, "8", "1:00:00"), ["0 a,b,c,d,e,f,g,h", "1 a,b,c,d,e,f,g,h"]),
        (JobRequest(2, "8", "1:00:00", 4), JobRequest(1, "4", "1:00:00"), [f"{n} {g}" for n in "01" for g in HALVES]),
        (JobRequest(1, "8", "1:00:00", 8), JobRequest(1, "1", "1:00:00"), [f"0 {gpu}" for gpu in "abcdefgh"]),
    ],
)
def test_replicas_share_nodes_and_gpus(
    job: JobRequest, alone: JobRequest, places: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each runs what a job of its own would, on its nodes, with its GPUs of those that Slurm has given the job."""
    text = script(ASKED, job)
    where = text.partition(" first=$((")[2].partition("))\n")[0]
    for at in range(job.replicas):
        done = subprocess.run(["bash", "-c", f"REPLICA={at + 1}; echo $(({where}))"], capture_output=True, check=True)
        first = done.stdout.decode().strip()
        assert as_run(text, tmp_path, 0, REPLICA=str(at + 1)) == ["/job/program/step.py", *expected(ASKED, alone, 0)]
        share = (tmp_path / "share").read_text().strip()
        with monkeypatch.context() as patch:
            patch.setenv("CUDA_VISIBLE_DEVICES", "a,b,c,d,e,f,g,h")
            if share:
                patch.setenv("VCLUSTER_GPUS", share)
            found = {**os.environ, **step.own_gpus()}["CUDA_VISIBLE_DEVICES"]
        assert f"{first} {found}" == places[at]


def test_the_front_runs_in_the_container_of_a_replica(tmp_path: Path) -> None:
    text = script(ASKED, replace(JOB, replicas=2, container="apptainer", image="a.sif"))
    words = as_run(text, tmp_path, 0, "apptainer", REPLICA="front")
    assert words[6:] == ["--pwd", "/job", "a.sif", "python3", "/job/program/job_front.py", "org/model", "2"]


NAMES = st.text(st.characters(min_codepoint=32, exclude_categories=["Cs"]), min_size=1, max_size=30)


@settings(max_examples=cases(20, 100, 1000), deadline=None)
@given(NAMES.map("a".__add__), st.lists(NAMES, max_size=3), NAMES)
def test_a_name_stays_a_name(
    tmp_path_factory: pytest.TempPathFactory, model: str, flags: list[str], image: str
) -> None:
    """With anything in a name, a flag or an image: the shell reads the words that were given, or nothing is printed."""
    asked = replace(ASKED, name=model, model=model, flags=tuple(f"--x={one}" for one in flags))
    job = replace(JOB, container="apptainer", image=image)
    try:
        text = script(asked, job)
    except UsageError:
        return
    folder = tmp_path_factory.mktemp("rank")
    words = as_run(text, folder, 1, "apptainer")
    assert words[:6] == ["exec", "--nv", "--bind", "/job", "--bind", "/hub"]
    assert words[6:] == ["--pwd", "/job", image, "python3", "/job/program/step.py", *expected(asked, job, 1)]
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    for line in text.splitlines():
        assert line.startswith("#SBATCH --") or "#SBATCH" not in line[:7]


@pytest.mark.parametrize(
    ("job", "asked"),
    [
        (replace(JOB, time="4 hours"), ASKED),
        (replace(JOB, gpus="all"), ASKED),
        (replace(JOB, gpus="0"), ASKED),
        (replace(JOB, others={"partition": "gpu --wrap=x"}), ASKED),
        (replace(JOB, container="pyxis"), ASKED),
        (replace(JOB, container="apptainer", image="--writable"), ASKED),
        (JOB, replace(ASKED, name="a\nEND_OF_RANK\ntouch x")),
        (JOB, replace(ASKED, flags=("--x=a\nb",))),
        (JOB, replace(ASKED, flags=("--port=9",))),
        (JOB, replace(ASKED, flags=("--api-key", "sk-1"))),
        (JOB, replace(ASKED, tp=3)),
        # It would leave a node idle.
        (JOB, replace(ASKED, tp=8, pp=1)),
        (replace(JOB, replicas=3), ASKED),
        (replace(JOB, replicas=32), ASKED),
    ],
)
def test_what_cannot_be_a_job_is_refused(job: JobRequest, asked: Deployment) -> None:
    with pytest.raises(UsageError):
        script(asked, job)


def test_what_slurm_is_asked_for() -> None:
    """The step ends with its first rank, and the batch script is asked to end before the limit."""
    given = {"partition": "gpu", "account": "lab", "constraint": "a100&ib"}
    text = script(ASKED, replace(JOB, gpus="h100:8", others=given))
    lines = [line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH")]
    assert lines == [
        *("job-name=vcluster-model", "nodes=2", "ntasks-per-node=1", "gpus-per-node=h100:8", "time=4:00:00"),
        *("exclusive", "mem=0", "requeue", "open-mode=append", "signal=B:TERM@60"),
        *("partition=gpu", "account=lab", "constraint=a100&ib"),
    ]
    assert text.count("\n  srun --kill-on-bad-exit=1 --wait=30 --cpu-bind=none ") == 1
    part = script(ASKED, replace(JOB, others={"cpus-per-task": "16", "mem": "200G"}))
    assert "#SBATCH --cpus-per-task=16\n" in part
    assert "#SBATCH --mem=200G\n" in part
    assert "exclusive" not in part
    assert " --cpus-per-task=16 " in part


def test_pyxis_starts_the_container_of_the_step() -> None:
    text = script(ASKED, replace(JOB, container="pyxis", image="vllm/vllm-openai:v0.32.0"))
    assert '--container-image=vllm/vllm-openai:v0.32.0 --container-mounts="$VCLUSTER_MOUNTS" ' in text


# fault: kernel/terminal/program.py: if self.words_of_default and args → if False and args
def test_the_verb_prints_the_script(tmp_path: Path) -> None:
    done = run("slurm", "org/model", "--nodes", "2", "--gpus", "8", "--time", "4:00:00", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == script(replace(ASKED, flags=()), JOB)
    same = run("slurm", "--json", "org/model", "-N", "2", "--gpus", "8", "-t", "4:00:00", cwd=tmp_path)
    assert json.loads(same.stdout) == {"v": 1, "script": done.stdout}
    validate(["slurm", "job"], same.stdout)


# fault: features/slurm/script.py: options.setdefault("mail-type", "BEGIN,END,FAIL,REQUEUE") → pass
# fault: features/slurm/sbatch.py: "1" if "mem" in self.others else "" → ""
def test_any_option_of_sbatch_is_handed_on(tmp_path: Path) -> None:
    given = ("partition=gpu", "mem=200G", "mail-user=me@example.org", "cpus-per-task=16", "constraint=a=b")
    done = run("slurm", "org/model", *(word for one in given for word in ("--sbatch", one)), cwd=tmp_path)
    lines = [line.removeprefix("#SBATCH --") for line in done.stdout.splitlines() if line.startswith("#SBATCH")]
    assert {*given, "mail-type=BEGIN,END,FAIL,REQUEUE"} < {*lines}
    # A part of each node, with one CPU where none are given.
    part = run("slurm", "org/model", "--sbatch", "mem=200G", cwd=tmp_path).stdout
    assert "#SBATCH --cpus-per-task=1\n" in part
    assert "exclusive" not in part


# fault: features/slurm/sbatch.py: if name in _TAKEN: → if name in ():
@pytest.mark.parametrize(
    ("word", "fix"),
    [
        ("partition", "--sbatch partition=gpu"),
        ("--partition=gpu", "--sbatch partition=gpu"),
        ("nodes=2", "use --nodes NUMBER"),
        ("gres=gpu:8", "use --gpus NUMBER"),
        ("cpus-per-task=all", "--sbatch cpus-per-task=16"),
    ],
)
def test_an_option_that_the_script_sets_is_refused(word: str, fix: str, tmp_path: Path) -> None:
    done = run("slurm", "org/model", "--sbatch", word, cwd=tmp_path)
    assert (done.returncode, f"fix: {fix}" in done.stderr) == (2, True), done.stderr


# fault: features/slurm/verb.py: ("slurm", *own.words) → ("slurm",)
def test_a_command_line_of_vllm_becomes_a_job(tmp_path: Path) -> None:
    line = "srun vllm serve org/model --tensor-parallel-size 8 --nnodes 2 --node-rank 0 --seed 1"
    done = run("slurm", "--from", line, "--nodes", "2", "--gpus", "4", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "the same: vcluster slurm --nodes 2 --gpus 4 org/model --tp 8 --pp 1 -- --seed 1" in done.stderr
    assert " vllm serve org/model --seed 1 --served-model-name=org/model --tensor-parallel-size=8 " in done.stdout


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_files_of_the_job_import_alone(tmp_path: Path, replicas: int) -> None:
    """With the standard library, but for the front, and nothing of a laptop; what guards vLLM has its name there."""
    text = script(ASKED, replace(JOB, replicas=replicas))
    files = text.partition("\nfiles() {\n")[2].partition("\n}\n\nmain\n")[0]
    # More than one argument may hold.
    (tmp_path / "files.sh").write_text('put() { cat >"$1" || exit; }\n' + files)
    subprocess.run(["bash", "files.sh"], check=True, cwd=tmp_path)
    program, words = ("python3", ["-S"]) if replicas == 1 else (sys.executable, ["-P"])
    done = subprocess.run(
        [program, *words, "-c", f"import {'step' if replicas == 1 else 'job_front'}, vcluster_auth as one; print(one)"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, f"{tmp_path}/vcluster_auth.py" in done.stdout) == (0, True), done.stderr


# fault: features/slurm/job.sh: closed_to_others "$job" || fail → true || fail
def test_a_folder_that_another_has_made_gets_no_key(tmp_path: Path) -> None:
    """Where all may write, as on scratch, another user can make the folder of a job's number before it begins."""
    theirs, jobs = tmp_path / "theirs", tmp_path / "jobs"
    theirs.mkdir()
    jobs.mkdir()
    (jobs / "7").symlink_to(theirs)
    there = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "SLURM_JOB_ID": "7", "VCLUSTER_JOBS": str(jobs)}
    done = subprocess.run(
        ["bash"], input=script(ASKED, JOB), env=there, capture_output=True, text=True, check=False, timeout=30
    )
    assert done.returncode == 1
    assert f"vcluster: {jobs}/7 is not a folder of " in done.stderr
    assert not [one for one in theirs.rglob("*") if one.is_file()]


def functions(*names: str) -> str:
    """The functions of the job's script of these names."""
    whole = script(ASKED, JOB)
    bodies = {name: whole.partition(f"\n{name}() {{\n")[2].partition("\n}\n")[0] for name in names}
    return "\n".join(f"{name}() {{\n{body}\n}}" for name, body in bodies.items())


# fault: features/slurm/folders.py: || chmod 700 "$1"; → || true;
# fault: features/slurm/job.sh: && chmod 600 "$job/$1" && → &&
# fault: features/slurm/folders.py: ! -perm /077)" → ! -perm -22)"
@pytest.mark.parametrize("there", [False, True])
def test_what_the_folder_above_gives_others_does_not_reach_the_key(there: bool, tmp_path: Path) -> None:
    """With a default ACL there the kernel leaves the umask out, as this shell does."""
    job = tmp_path / "7"
    if there:
        job.mkdir()
        job.chmod(0o755)
    text = functions("own_folder", "key") + '\numask 0\njob=$1\nown_folder "$job" && key key'
    subprocess.run(["bash", "-c", text, "bash", str(job)], check=True)
    assert [one.stat().st_mode & 0o777 for one in (job, job / "key")] == [0o700, 0o600]
    assert len((job / "key").read_text()) > 30
    judge = next(line for line in script(ASKED, JOB).splitlines() if line.startswith("closed_to_others() "))
    for mode, closed in ((0o700, True), (0o750, False), (0o701, False)):
        job.chmod(mode)
        found = subprocess.run(["bash", "-c", f'{judge}\nclosed_to_others "$1"', "bash", str(job)], check=False)
        assert (found.returncode == 0) is closed


# fault: features/slurm/job.sh: one.bind(("", port)) → pass
def test_a_port_that_another_program_holds_is_not_taken(tmp_path: Path) -> None:
    """One that answered nothing was taken; at one with a full queue it was 270 s until it was."""
    with ExitStack() as stack:
        bound, asleep, shared = (stack.enter_context(socket.socket()) for _ in range(3))
        begin = free_port()
        held = []
        for one, at in ((bound, "127.0.0.1"), (asleep, "127.0.0.1"), (shared, "0.0.0.0")):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, one is shared)
            one.bind((at, 0))
            held.append(one.getsockname()[1])
        asleep.listen(0)
        shared.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.1", held[1]))
        for port in (begin, *held):
            done = subprocess.run(
                ["bash", "-c", functions("free") + '\nthere=()\nfree "$1" 3', "bash", str(port)],
                capture_output=True,
                text=True,
                check=True,
                cwd=tmp_path,
                timeout=30,
            )
            found = [int(one) for one in done.stdout.split()]
            assert len({*found}) == 3 and not {*found} & {*held} and min(found) >= port


# fault: features/slurm/job.sh: python3 -Ic → python3 -c
def test_the_ports_are_found_without_what_is_in_the_folder_of_the_job(tmp_path: Path) -> None:
    """It may be anybody's."""
    (tmp_path / "socket.py").write_text("print('theirs')\n")
    text = functions("free") + "\nthere=()\nfree 30000 1"
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip().isdigit()


# What the script of a job runs, but for Slurm's programs and Python.
TOOLS = (
    *(
        "awk",
        "base64",
        "bash",
        "cat",
        "chmod",
        "date",
        "find",
        "getent",
        "head",
        "hostname",
        "id",
        "ln",
        "ls",
        "mkdir",
        "mv",
    ),
    *("rm", "sed", "seq", "sleep", "tr", "wc"),
)


# fault: features/slurm/job.sh: 3 % 12000)) 3) || exit → 3 % 12000)) 3)
# fault: features/slurm/job.sh: "$begin" 1) || exit → "$begin" 1)
# fault: features/slurm/job.sh: || exit 127; → || exit 2;
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_node_without_python_is_named_before_anything_starts(replicas: int, tmp_path: Path) -> None:
    """In a container there may be one; its ports were called unknown."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in TOOLS:
        (programs / name).symlink_to(shutil.which(name) or "/missing")
    for name, text in (("scontrol", "echo n1"), ("srun", f"echo >>{tmp_path}/started")):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    (tmp_path / "job.sh").write_text(script(ASKED, replace(JOB, replicas=replicas)))
    there = {"PATH": str(programs), "HOME": str(tmp_path), "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1"}
    done = subprocess.run(
        ["/bin/bash", "job.sh"], env=there, capture_output=True, text=True, check=False, timeout=30, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (1, "vcluster: no python3 on n1\n")
    assert not (tmp_path / "started").exists()


# fault: features/slurm/job.sh: sys.exit(1) → pass
def test_too_few_ports_are_none(tmp_path: Path) -> None:
    """A step began without one."""
    failing = next(line for line in script(ASKED, JOB).splitlines() if line.startswith("fail() "))
    text = f"{failing}\n{functions('free')}\nthere=() node=n1\nfree 65534 3"
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "vcluster: no free ports of n1 are known\n")


def used(facts: HostFacts) -> list[str]:
    """The adapters by the rules of a cluster, for GPUs of which nothing is known."""
    return [f"{one.device}:{one.port}" for one in adapters.used(Host(address="10.0.0.1"), facts, ())]


PORTS = st.lists(
    st.tuples(
        st.sampled_from(["4: ACTIVE", "1: DOWN", "2: INIT"]),
        st.sampled_from(["400 Gb/sec (4X NDR)", "200 Gb/sec (4X HDR)", "25 Gb/sec (1X EDR)", ""]),
        st.sampled_from(["InfiniBand", "Ethernet"]),
        st.booleans(),
    ),
    max_size=4,
)


@settings(max_examples=cases(20, 60, 500), deadline=None)
@given(PORTS)
# fault: features/slurm/on_host/step.py: if rank == best → if True
def test_the_adapters_of_a_node_are_those_of_a_host(
    tmp_path_factory: pytest.TempPathFactory, ports: list[tuple[str, str, str, bool]]
) -> None:
    """The step finds what a cluster would use on the same host, whose facts are read another way."""
    machine = tree.bare(tmp_path_factory.mktemp("node"))
    for number, (state, rate, kind, usable) in enumerate(ports):
        below = f"/sys/class/infiniband/mlx5_{number}"
        for name, text in (("state", state), ("rate", rate), ("link_layer", kind)):
            machine.file(f"{below}/ports/1/{name}", f"{text}\n")
        if usable:
            machine.file(f"{below}/device/infiniband_verbs/uverbs{number}/dev", "")
            machine.file(f"/dev/infiniband/uverbs{number}", "")
    facts = machine.facts()
    found = step.adapter_ports(machine.root / "sys/class/infiniband")
    assert [f"{port.parents[1].name}:{port.name}" for port in found] == used(facts)


# fault: features/slurm/script.py: if job.container not in get_args(Container): → if not job.container:
# fault: features/slurm/script.py: if job.image and job.container == "none": → if job.image == "none":
# fault: features/slurm/script.py: if degrees > nodes * gpus: → if not degrees:
@pytest.mark.parametrize(
    ("words", "text", "fix"),
    [
        (
            ("--container", "singularity", "--image", "vllm.sif"),
            "none, pyxis or apptainer, got 'singularity'",
            "apptainer",
        ),
        (("--image", "vllm.sif"), "--image needs a --container", "--container apptainer"),
        (("--tp", "8"), "takes 8 GPUs; this job asks for 1 node × 1", "use --nodes 1 --gpus 8"),
    ],
)
def test_what_the_script_would_leave_out_is_refused(
    words: tuple[str, ...], text: str, fix: str, tmp_path: Path
) -> None:
    done = run("slurm", "org/m", *words, cwd=tmp_path)
    assert (done.returncode, text in done.stderr, fix in done.stderr) == (2, True, True), done.stderr


# fault: kernel/terminal/program.py: hint = guessed(*ctx.command_path.split(), near → hint = guessed(near
# fault: kernel/terminal/words.py: return same if same in known else _nearest → return _nearest
# fault: features/slurm/verb.py: _ensure_no_slip(asked.model) → pass
@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (("sttus", "1"), "vcluster slurm status 1"),
        (("cancel", "1"), "vcluster slurm stop 1"),
        (("7",), "vcluster slurm status 7"),
        (("--submit", "job.sh"), "sbatch job.sh"),
    ],
)
def test_a_slip_serves_no_model_of_that_name(words: tuple[str, ...], fix: str, tmp_path: Path) -> None:
    done = run("slurm", *words, cwd=tmp_path)
    assert (done.returncode, f"fix: {fix}\n" in done.stderr) == (2, True), done.stderr


# fault: features/slurm/script.py: "processes", "proxy" → "proxy"
@pytest.mark.parametrize("names", [CARRIED, (*CARRIED, *OF_FRONT)], ids=["one replica", "several"])
def test_what_a_carried_file_imports_is_carried(names: tuple[str, ...]) -> None:
    """A front that lacks a module of its own ends as it starts."""
    carried = node_program()
    for name in names:
        for found in ast.walk(ast.parse(carried[name])):
            if isinstance(found, ast.ImportFrom) and (found.module or "").startswith("vllm_cluster."):
                path = f"{found.module}".replace(".", "/")
                assert {f"{path}.py", f"{path}/__init__.py"} & {*names}, f"{name} imports {found.module}"
