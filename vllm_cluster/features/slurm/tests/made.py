"""A real Slurm on this machine: munge, a controller and two nodes, and a program that is called vllm."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from getpass import getuser
from pathlib import Path
from secrets import token_bytes

from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.waiting import until
from vcluster_sandbox.names import MODEL as TINY
from vcluster_sandbox.wheels import ensure_wheels

MODEL = "org/model"
JOB = (MODEL, "--nodes", "2", "--gpus", "1", "--time", "0:10:00", "--sbatch", "cpus-per-task=1")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
SBIN = f"{os.environ['PATH']}:/usr/sbin:/sbin"
# Its python3 has what vLLM's has: the front needs an HTTP library.
PYTHON = Path(sys.executable).parent
PRETENDED = Path(__file__).parent / "slurm_vllm.py"
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldPort={port}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
GresTypes=gpu
KillWait=30
MailProg=/bin/true
SlurmdTimeout=5
# More of everything than this machine has.
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
{nodes}
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=1-00:00:00 State=UP PriorityTier=1 GraceTime=5
PartitionName=first Nodes=n1,n2 MaxTime=60 State=UP PriorityTier=2
"""
NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 Boards=1 Gres=gpu:8"


def require_slurm() -> None:
    """Name what is missing instead of passing without a test."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=SBIN) is None]
    assert not missing, f"{', '.join(missing)} not found: scripts/setup-slurm.sh installs them"


@dataclass
class Slurm:
    """One controller and its nodes, in a folder; `environment` is what its clients need."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def jobs(self) -> Path:
        """Where jobs have their folders."""
        return self.folder / "jobs"

    def run(self, *argv: str, text: str = "") -> str:
        """What a client of Slurm prints."""
        done = subprocess.run(argv, env=self.environment, input=text, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{argv}: {done.stderr}"
        return done.stdout.strip()

    def state(self, job: str) -> str:
        """The state of a job as Slurm has it."""
        return self.run("scontrol", "show", "job", "-o", job).partition("JobState=")[2].split()[0]

    def start(self, name: str, *argv: str) -> None:
        """Start a daemon in the foreground; what it prints is in a file of its name."""
        with (self.folder / f"{name}.log").open("ab") as log:
            program = shutil.which(argv[0], path=SBIN) or argv[0]
            self.daemons[name] = subprocess.Popen(
                [program, *argv[1:]], env=self.environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def end(self, name: str) -> None:
        """End a daemon."""
        daemon = self.daemons.pop(name)
        daemon.send_signal(signal.SIGTERM)
        try:
            daemon.wait(10)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


# Of the CPU image, whose vLLM it is.
OF_ENGINE = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "TORCHDYNAMO_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
}


def engine() -> tuple[Path, dict[str, str]]:
    """vLLM's CPU build in a venv of this checkout, made once, with the sandbox's model; and its environment."""
    folder, recipe = ROOT / "build" / "slurm-engine", ROOT / "docker" / "cpu"
    python, models = folder / "bin" / "python", folder / "models"
    if not models.exists():
        wheels = sorted(ensure_wheels(print).glob("*.whl"))
        install = [python, "-m", "pip", "install", "-q", "--no-deps", "--no-compile", "--no-index"]
        for argv in (
            [sys.executable, "-m", "venv", "--clear", folder],
            [*install, *wheels],
            [*install, "--no-build-isolation", recipe / "plugin"],
            [python, recipe / "trim.py"],
            [python, recipe / "make_model.py", models, TINY],
        ):
            subprocess.run([*map(str, argv)], check=True, stdout=subprocess.DEVNULL)
    return folder / "bin" / "vllm", {**OF_ENGINE, "HF_HOME": str(models)}


@contextmanager
def slurm(folder: Path, program: Path = PRETENDED, environment: Mapping[str, str] = {}) -> Iterator[Slurm]:
    """A Slurm of two nodes with eight GPUs each, on which `vllm` is this program."""
    require_slurm()
    host = socket.gethostname().partition(".")[0]
    nodes = [NODE.format(name=name, host=host, port=free_port()) for name in ("n1", "n2")]
    words = {"host": host, "user": getuser(), "folder": folder, "port": free_port(), "nodes": "\n".join(nodes)}
    for name in ("state", "spool-n1", "spool-n2", "bin", "jobs", "home"):
        (folder / name).mkdir()
    (folder / "slurm.conf").write_text(CONF.format(**words))
    (folder / "gres.conf").write_text(f"NodeName=n[1-2] Name=gpu File={folder}/gpu[0-7]\n")
    for number in range(8):
        (folder / f"gpu{number}").touch()
    key = folder / "munge.key"
    key.write_bytes(token_bytes(1024))
    key.chmod(0o400)
    (folder / "bin/vllm").symlink_to(program)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))}
    own = {"SLURM_CONF": f"{folder}/slurm.conf", "VCLUSTER_JOBS": f"{folder}/jobs", "HOME": f"{folder}/home"}
    found = Slurm(folder, {**inherited, **own, "PATH": f"{folder}/bin:{PYTHON}:{SBIN}", **environment})
    with ExitStack() as ended:
        files = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
        found.start("munged", "munged", "--foreground", "--force", f"--socket={folder}/munge.sock", *files)
        ended.callback(found.end, "munged")
        until((folder / "munge.sock").exists, every=0.05)
        found.start("slurmctld", "slurmctld", "-D")
        ended.callback(found.end, "slurmctld")
        for name in ("n1", "n2"):
            found.start(name, "slurmd", "-D", "-N", name)
            ended.callback(found.end, name)
        until(lambda: found.run("sinfo", "-h", "-p", "main", "-t", "idle", "-o", "%D") == "2")
        ended.callback(_cancel_all, found)
        yield found


def _cancel_all(found: Slurm) -> None:
    found.run("scancel", "--full", "-u", getuser())
    found.run("scancel", "-u", getuser())
    until(lambda: not found.run("squeue", "-h"), 60)


def timed(condition: Callable[[], object], seconds: float = 60) -> None:
    """Return once the condition holds, within some milliseconds."""
    until(condition, seconds, every=0.02)


def ask(place: tuple[str, int], body: dict[str, object], key: str) -> tuple[int, bytes]:
    """The status and the answer of a completion."""
    connection = http.client.HTTPConnection(*place, timeout=120)
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    with closing(connection):
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        response = connection.getresponse()
        return response.status, response.read()


def rank_of(job: str, rank: int, replica: int = 1) -> int:
    """The process of vLLM of a rank of a job."""
    own = {f"SLURM_JOB_ID={job}", f"SLURM_PROCID={rank}", f"REPLICA={replica}"}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
            where = path.with_name("environ").read_bytes().decode(errors="replace")
        except OSError:
            continue
        mine = own <= set(where.split("\0"))
        if mine and "serve" in words and not any(word.endswith("/step.py") for word in words[:3]):
            return int(path.parent.name)
    raise AssertionError(f"no rank {rank} of job {job} runs")
