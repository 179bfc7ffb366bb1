"""P49: the current folder is data. Nothing that lies there is imported or run, whichever verb runs there."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.support.depth import FULL
from tests.support.figures import record
from tests.support.paths import VCLUSTER
from vcluster_sandbox import wheels as sandbox_wheels
from vllm_cluster.cli.verbs import VERBS
from vllm_cluster.features.pull.feature import MODELS
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import VclusterError
from vllm_cluster.kernel.images import wheels
from vllm_cluster.kernel.images.contents import read_contents
from vllm_cluster.kernel.transport.base import Target
from vllm_cluster.kernel.transport.local import LocalTransport
from vllm_cluster.serving.endpoint.detached import State

pytestmark = pytest.mark.promise("P49")

NOWHERE = "http://127.0.0.1:1"
# All that a Python could import, and what it imports by itself where it finds it.
IMPORTS = sorted({*sys.stdlib_module_names, *packages_distributions(), "sitecustomize", "usercustomize"})
PROGRAMS = ("bash", "docker", "env", "git", "pip", "ps", "python3", "scp", "sh", "ssh", "timeout", "uname", "vcluster")
# Names that a shell would run, or a program would take for an option.
NAMES = ("$(touch RAN)", "`touch RAN`", ";touch RAN;", "|touch RAN|", "-oProxyCommand=touch RAN", "--help;touch RAN")
HOSTS = """version: 1
cluster: lab
image: vllm/vllm-openai:v0.33.0
model_cache: /data
hosts:
"""
AWAY = f"{HOSTS}  gpu1: {{address: 10.0.0.1, ssh: {{host: 127.0.0.1, port: 1}}}}\n"
HERE = f"{HOSTS}  gpu1: {{address: 10.0.0.1, ssh: local}}\n"
# Of each verb the calls that get the furthest without a host, and those that are given a file of the folder.
CALLS = {
    "init": ("init --host gpu1=10.0.0.11 -o TRAP.new", "init --schema"),
    "check": ("check", "check --facts gpu1", "check -i TRAP"),
    "plan": ("plan",),
    "up": ("up --yes",),
    "serve": ("serve org/model --yes", "serve ./TRAP --yes -- --config TRAP"),
    "status": ("status", "status --history", "status --watch --count 1"),
    "logs": ("logs",),
    "endpoint": ("endpoint --detach", "endpoint --close", "endpoint --tunnel 0"),
    "down": ("down --yes",),
    "fit": ("fit ./TRAP --gpus 1 --gpu-memory 80GB", "fit ./folder --gpus 1 --gpu-memory 80GB"),
    "pull": ("pull org/model", "pull ./TRAP --as model"),
    "image": ("image ls", "image prune --yes", "image push TRAP"),
    "stop": ("stop --yes",),
    "rollback": ("rollback --yes",),
    "chat": ("chat hello --json-schema TRAP",),
    "complete": ("complete hello",),
    "batch": ("batch TRAP -o out.jsonl", "batch --list"),
    "bench": ("bench --output TRAP", "bench --compare TRAP folder"),
    "dashboard": ("dashboard --port 0 -i TRAP", "dashboard --prometheus TRAP"),
    "explain": ("explain TRAP", "explain --bundle TRAP.tar.gz"),
    "exec": ("exec gpu1 -- ls", "exec gpu1 --ssh -- ls"),
    "slurm": ("slurm org/model --gpus 1", "slurm --from TRAP", "slurm status 1"),
    "sandbox": ("sandbox up --dir TRAP",),
    "models": ("models ls", "models rm ./TRAP --yes"),
}
# They start alike. CI has those that start most programs, or are given most of the folder.
SOONER = ("check", "up", "serve", "pull", "image", "explain", "exec", "slurm", "sandbox")


def set_traps(folder: Path, ran: Path) -> None:
    """Fill a folder with modules, programs and names; what runs of them is noted in the file RAN."""
    folder.mkdir()
    for name in IMPORTS:
        (folder / f"{name}.py").write_text(f"open({str(ran)!r}, 'a').write({name!r} + ' ')\n")
    for name in PROGRAMS:
        (folder / name).write_text(f"#!/bin/sh\necho {name} >>'{ran}'\n")
        (folder / name).chmod(0o755)
    for name in NAMES:
        (folder / name).write_text("hosts: [\n")
    (folder / "folder").mkdir()


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that a trap writes; the current folder is full of them, and Python's variables point there."""
    found, folder = tmp_path / "ran", tmp_path / "traps"
    set_traps(folder, found)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", ".")
    monkeypatch.setenv("PYTHONSTARTUP", "json.py")
    monkeypatch.setenv("PIP_INDEX_URL", NOWHERE)
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    return found


# fault: kernel/transport/local.py: _FOLDER = "/" → _FOLDER = None
@pytest.mark.parametrize("way", ["run", "open_stream"])
def test_a_host_that_is_this_machine(ran: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.delenv("PYTHONPATH")
    host, argv = LocalTransport(Target("gpu1", "local")), [sys.executable, "-c", "import json, os; print(os.getcwd())"]
    host.connect(Deadline.after(20))
    if way == "run":
        printed = host.run(argv, Deadline.after(20)).stdout
    else:
        with closing(host.open_stream(argv, Deadline.after(20))) as stream:
            printed = stream.recv(100)
    assert printed.rstrip() == b"/"
    assert not ran.exists(), ran.read_text()


def test_pip_of_an_image_without_ray(ran: Path, tmp_path: Path) -> None:
    image = read_contents([{"python": "3.12.3", "machine": "x86_64", "glibc": "2.39", "have": {"vllm": "0.33.0"}}])[0]
    with pytest.raises(VclusterError, match=r"cannot download the wheels of Ray .*No matching distribution"):
        wheels.wheels(image, "ray==2.56.1", tmp_path / "cache")
    assert not ran.exists(), ran.read_text()


def test_pip_of_the_sandbox(ran: Path, tmp_path: Path) -> None:
    wanted = tmp_path / "requirements.txt"
    wanted.write_text("torch==1.0\n")
    with pytest.raises(VclusterError):
        sandbox_wheels._download(wanted, tmp_path, lambda _: None)
    assert not ran.exists(), ran.read_text()


# fault: kernel/laptop.py: "-E", "-P", *words], cwd="/", env={**environment, **settings}, → *words],
def test_the_tunnel_in_the_background(ran: Path, tmp_path: Path) -> None:
    state = State(tmp_path / "tunnels", "k")
    with state.locked(), pytest.raises(VclusterError, match=r"missing\.yaml"):
        state.start(["-m", "vllm_cluster", "status", "-i", str(tmp_path / "missing.yaml")])
    assert not ran.exists(), ran.read_text()


def test_there_is_a_call_for_every_verb() -> None:
    assert set(CALLS) == set(VERBS)
    assert {line.split()[1] for line in CALLS["models"]} == set(MODELS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "hosts"),
    [("this machine as the host", HERE), pytest.param("unreachable hosts", AWAY, marks=pytest.mark.deep)],
)
def test_no_verb_runs_what_lies_in_the_folder(where: str, hosts: str, tmp_path: Path) -> None:
    """A `docker` that refuses is first in PATH: a host named `local` would use this machine's own."""
    folder, ran, tools = tmp_path / "traps", tmp_path / "ran", tmp_path / "bin"
    set_traps(folder, ran)
    (folder / "inventory.yaml").write_text(hosts)
    tools.mkdir()
    (tools / "docker").write_text("#!/bin/sh\necho 'no Docker here' >&2; exit 1\n")
    (tools / "docker").chmod(0o755)
    environment = {"PATH": f"{tools}:{os.environ['PATH']}", "HOME": str(tmp_path), "DOCKER_HOST": "tcp://127.0.0.1:1"}

    def run(words: list[str]) -> tuple[list[str], str]:
        argv = [str(VCLUSTER), *words]
        done = subprocess.run(
            argv, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=120
        )
        return words, done.stderr.decode()

    with ThreadPoolExecutor(4) as pool:
        ended = list(pool.map(run, calls()))
    assert not ran.exists(), ran.read_text()
    assert not list(tmp_path.rglob("RAN"))
    assert [(words, told) for words, told in ended if "Traceback" in told] == []
    traps = len(IMPORTS) + len(PROGRAMS) + len(NAMES)
    figure = f"0 executed in {len(ended)} calls of {len(CALLS if FULL else SOONER)} verbs"
    record("P49", f"every verb in a folder of {traps} traps, {where}", figure, True)


def calls() -> list[list[str]]:
    """In CI the first of some verbs with one name in turn, and in full depth all of them, with each name."""
    found, number = [], 0
    some = CALLS.values() if FULL else [CALLS[verb][:1] for verb in SOONER]
    for line in (line for lines in some for line in lines):
        names = NAMES if FULL and "TRAP" in line else (NAMES[number % len(NAMES)],)
        number += "TRAP" in line
        found += [[word.replace("TRAP", name) for word in line.split()] for name in names]
    return found
