"""What each node of a Slurm job runs: vLLM with what is found of this node, and what sees that it hangs.

The first node also asks it for a token.

Slurm ends all nodes when one of these programs ends with a code other than 0.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import importlib
import json
import os
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import FrameType

from vllm_cluster.serving.node.api import Api, NotServed, Question, in_order
from vllm_cluster.serving.node.engine_watch import BAD, EngineWatch, short_steps
from vllm_cluster.serving.node.parse_argv import option
from vllm_cluster.serving.node.proc import StoppedProcesses, compiler_runs, processes
from vllm_cluster.serving.node.timing import Timing

SYS = Path("/sys/class")
SIOCGIFADDR = 0x8915
PR_SET_PDEATHSIG = 1
PROBE_SECONDS, ASK_SECONDS, PAUSE_SECONDS, GRACE_SECONDS, NOT_FOUND = 2.0, 60.0, 0.2, 1.0, 127
INFINIBAND = "InfiniBand"


def own_address(leader: str, *, leads: bool) -> str:
    """The address of this node from which the leader is reached."""
    if leads:
        return leader
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((leader, 9))  # nothing is sent
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str | None:
    """The interface that holds an address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode())
            try:
                answer = fcntl.ioctl(probe, SIOCGIFADDR, request)
            except OSError:  # it has no address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None


def _line(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _gigabits(rate: str) -> float:
    number = rate.partition(" ")[0]
    return float(number) if number.replace(".", "", 1).isdecimal() else 0.0


def adapter_ports(folder: Path) -> list[Path]:
    """The ACTIVE InfiniBand and RoCE ports of one kind and the highest rate.

    Which of them is near a GPU is for NCCL, and so is their GID since 2.21, which is older than vLLM over nodes.
    """
    found = [
        (port, (_gigabits(_line(port / "rate")), _line(port / "link_layer") == INFINIBAND))
        for port in sorted(folder.glob("*/ports/*"))
        if _line(port / "state").endswith("ACTIVE") and [*port.parents[1].glob("device/infiniband_verbs/uverbs*")]
    ]
    best = max((rank for _, rank in found), default=None)
    return [port for port, rank in found if rank == best]


def environment(address: str, folder: Path) -> dict[str, str]:
    """The variables of vLLM on this node; those that the site has set stay."""
    found = {"VLLM_HOST_IP": address, "TORCHINDUCTOR_CACHE_DIR": str(node_folder() / "inductor")}
    if nic := interface_of(address):
        # Without "=" NCCL takes the name as a prefix: eth1 would also match eth10. Gloo wants the bare name.
        found |= {"NCCL_SOCKET_IFNAME": f"={nic}", "GLOO_SOCKET_IFNAME": nic}
    if ports := adapter_ports(folder):
        found["NCCL_IB_HCA"] = "=" + ",".join(f"{port.parents[1].name}:{port.name}" for port in ports)
    return {**found, **os.environ, **own_gpus(), "VLLM_HOST_IP": address}


def node_folder() -> Path:
    """A folder of this node that no other user can write: PyTorch's own, by the name of this user, may be another's."""
    folder = Path(tempfile.gettempdir()) / f"vcluster-{os.geteuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    about = folder.lstat()
    is_own = stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o077
    return folder if is_own else Path(tempfile.mkdtemp(prefix="vcluster-"))


def from_submission(argv: Sequence[str], folder: Path) -> list[str]:
    """The words of vLLM, whose paths that begin with ./ or ../ lead from the folder in which the job was submitted."""
    return [_from(folder, word) for word in argv]


def _from(folder: Path, word: str) -> str:
    # A word, or the value of an option or of a part of it.
    for at in (0, *(number for number, char in enumerate(word, 1) if char == "=")):
        if word.startswith(("./", "../"), at):
            return word[:at] + os.path.normpath(folder / word[at:])
    return word


def left_there(argv: Sequence[str], folder: Path) -> list[str]:
    """The words of vLLM that are names of that folder, and are not looked for there."""
    values = dict.fromkeys(word.rpartition("=")[2] for word in argv)
    return [value for value in values if value and not value.startswith(("-", "/", ".")) and _is_there(folder / value)]


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # no name of a file
        return False


def own_gpus() -> dict[str, str]:
    """The GPUs of this replica, of those that Slurm has given the job on a node that several replicas share."""
    if "VCLUSTER_GPUS" not in os.environ:
        return {}
    first, number = map(int, os.environ["VCLUSTER_GPUS"].split(","))
    every = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(first + number)))
    return {"CUDA_VISIBLE_DEVICES": ",".join(every.split(",")[first : first + number])}


def first_token(api: Api, model: str) -> Question:
    """Ask until the model has answered; return what it was asked."""
    kinds = in_order(())
    while True:
        if api.healthy(PROBE_SECONDS) and (kind := _answered(api, model, kinds)):
            return kind
        time.sleep(PAUSE_SECONDS)


def _answered(api: Api, model: str, kinds: Sequence[Question]) -> Question | None:
    for kind in kinds:
        try:
            api.ask(kind, model, ASK_SECONDS)
        except NotServed:
            continue
        except BAD:
            return None
        return kind
    return None


def write_ready(model: str, address: str, port: int, began: float, answered: str) -> None:
    """Write what clients need once the model has answered: whole or not at all."""
    ready = {"v": 1, "job": os.environ["SLURM_JOB_ID"], "model": model, "node": os.environ["SLURMD_NODENAME"]}
    ready |= {"address": address, "port": port, "attempt": int(os.environ["VCLUSTER_ATTEMPT"]), "answered": answered}
    ready |= {"since": time.time(), "start_seconds": round(time.time() - began, 1)}
    path = Path(os.environ["VCLUSTER_READY"])
    new = path.with_name(f".{path.name}.new")
    new.write_text(json.dumps(ready) + "\n")
    new.replace(path)
    print(f"vcluster: {model} is ready at {address}:{port}", flush=True)


def hung_engine(argv: Sequence[str], model: str, address: str, ranks: Callable[[], list[int]]) -> str:
    """Wait until the model is ready, and from then on until its engine hangs; why that is known."""
    began, port, pace = time.time(), int(os.environ["API_PORT"]), Timing()
    api = Api(address, port, os.environ["VCLUSTER_API_KEY_FILE"])
    question = first_token(api, model)
    write_ready(model, address, port, began, question.name)
    short = "generate" in question.tasks and short_steps(argv)
    watch = EngineWatch(api, question, model, pace, steps_are_short=short, compiles=lambda: compiler_runs(ranks()))
    try:
        while True:
            time.sleep(pace.health)
            watch.look()
    except TimeoutError as error:
        return str(error)


def stopped_rank(ranks: Callable[[], list[int]]) -> str:
    """Wait until a signal has stopped a process of vLLM for long; which one it is."""
    stopped = StoppedProcesses(Timing().frozen)
    while not (found := stopped.look(ranks())):
        time.sleep(1.0)
    return found


Watch = Callable[[Callable[[], list[int]]], str]


def run(argv: Sequence[str], env: dict[str, str], watches: Sequence[Watch]) -> int:
    """Run vLLM to its end, or until a watch ends it; that it ends by itself is a failure, with any exit code."""
    asked, judged = threading.Event(), threading.Event()
    # In a session of its own, so that its ranks can be ended with it; where this program is killed it is, too.
    process = subprocess.Popen(argv, env=env, start_new_session=True, preexec_fn=_die_with_parent)  # noqa: PLW1509 (no thread runs yet)

    def kill(number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)

    def end(_number: int, _frame: FrameType | None) -> None:
        asked.set()
        kill(signal.SIGTERM)
        # What waits for a rank that is gone ends by itself after minutes, or by Slurm after KillWait, 30 s.
        threading.Timer(GRACE_SECONDS, kill, (signal.SIGKILL,)).start()

    def ranks() -> list[int]:
        return [pid for pid, (_, session) in processes().items() if session == process.pid]

    def end_where(watch: Watch) -> None:
        print(f"vcluster: {watch(ranks)}", flush=True)
        judged.set()
        kill(signal.SIGKILL)

    signal.signal(signal.SIGTERM, end)
    for watch in watches:
        threading.Thread(target=end_where, args=(watch,), daemon=True).start()
    code = process.wait()
    kill(signal.SIGKILL)
    if asked.is_set():
        return 0
    if not judged.is_set():
        how = f"signal {-code} has ended vLLM" if code < 0 else f"vLLM ended by itself, with exit code {code}"
        print(f"vcluster: ERROR: {how}", flush=True)
    return 128 - code if code < 0 else code or 1


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))


def main(argv: Sequence[str]) -> int:
    """Serve on this node."""
    if not shutil.which(argv[0]):
        print(f"vcluster: {argv[0]}: command not found on {os.environ['SLURMD_NODENAME']}: {os.environ['PATH']}")
        return NOT_FOUND
    leads = os.environ["SLURM_PROCID"] == "0"
    if not os.environ["VCLUSTER_READY"].endswith("/ready.json"):
        importlib.import_module("aiohttp")  # which the front in front of several replicas needs
    submission = Path(os.environ["VCLUSTER_FROM"])
    for value in left_there(argv[2:], submission) if leads else ():
        print(f"vcluster: {value} is not taken from {submission}: write ./{value} for the one there", flush=True)
    argv = from_submission(argv, submission)
    address = own_address(os.environ["MASTER"], leads=leads)
    model = option(argv, "--served-model-name") or ""
    watches: list[Watch] = [stopped_rank, *([partial(hung_engine, argv, model, address)] if leads else [])]
    return run(argv, environment(address, SYS / "infiniband"), watches)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
