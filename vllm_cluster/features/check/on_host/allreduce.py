"""All-reduce over every rank, before any weight is loaded. Needs torch alone.

It takes orders as JSON lines until its input ends, and forks ranks for each: torch is imported once.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
import select
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

# Between ranks nothing waits longer; who gave the order gives up earlier.
WAIT_SECONDS = 120.0
MAX_ERROR = 600
MAX_LINES = 64
MAX_LINE = 300
MAX_LOG = 4 << 20
# Lines of NCCL's log that name which way the bytes go, or why not.
TRANSPORT_LINES = re.compile(r" via |NET/|GPU Direct|GDR|Using network|Bootstrap|NVLS|NCCL WARN|NCCL version")

Send = Callable[..., None]


def run_rank(order: Mapping[str, Any], rank: int, send: Send) -> None:
    """One rank, from the rendezvous to the last size; every step is reported once it is done."""
    import torch  # noqa: PLC0415 - the parent has it already
    import torch.distributed as dist  # noqa: PLC0415

    send(step="started")
    address, _, port = order["master"].rpartition(":")
    wait = datetime.timedelta(seconds=WAIT_SECONDS)
    store = dist.TCPStore(address.strip("[]"), int(port), order["world"], rank == 0, wait, wait_for_workers=False)
    send(step="store", port=store.port)
    cuda = order["device"] == "cuda"
    device = torch.device("cuda", int(order["ranks"][str(rank)])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    known = {"store": store, "rank": rank, "world_size": order["world"], "timeout": wait}
    # With its device NCCL connects at once, instead of in the first all-reduce.
    dist.init_process_group("nccl" if cuda else "gloo", **known, **({"device_id": device} if cuda else {}))
    send(step="joined")
    measure(order, device, send)
    dist.barrier()
    send(step="done")


def measure(order: Mapping[str, Any], device: Any, send: Send) -> None:
    """Each size in turn: is the sum right, and how long does one all-reduce take on the slowest rank?"""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    world, spent = order["world"], 0.0
    sync = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    for size in order["sizes"]:
        values = torch.full((max(size // 4, 1),), float(dist.get_rank() + 1), device=device)
        dist.all_reduce(values)
        right = bool((values == world * (world + 1) / 2).all())
        values.zero_()
        again = 20 if size <= 1 << 20 else 5
        sync()
        began = time.monotonic()
        for _ in range(again):
            dist.all_reduce(values)
        sync()
        taken = torch.tensor([(time.monotonic() - began) / again], dtype=torch.float64, device=device)
        dist.all_reduce(taken, dist.ReduceOp.MAX)
        send(step="size", bytes=size, seconds=float(taken), right=right)
        # All ranks see the same time, so all of them stop here, or none.
        spent += float(taken) * (again + 1)
        if spent + float(taken) * 16 * (again + 1) > order["seconds"]:
            break


class RankProcesses:
    """The ranks that run on this host for the trials under way."""

    def __init__(self, out: int) -> None:
        self._out = out
        self._logs = tempfile.mkdtemp(prefix="vcluster-nccl-")
        self._running: dict[int, tuple[int, int]] = {}

    def send(self, **row: Any) -> None:
        """One JSON line, short enough to stay whole between those of the ranks."""
        os.write(self._out, json.dumps(row).encode() + b"\n")

    def start(self, order: Mapping[str, Any]) -> None:
        """Fork a process for every rank of the order; no GPU was touched here, so that is safe."""
        for rank in map(int, order["ranks"]):
            pid = os.fork()
            if not pid:
                self._become(order, rank)
            self._running[pid] = (order["trial"], rank)

    def _become(self, order: Mapping[str, Any], rank: int) -> None:
        def send(**row: Any) -> None:
            self.send(trial=order["trial"], rank=rank, **row)

        os.environ.update(order["environment"])
        log_to(self._log(order["trial"], rank))
        code = 1
        try:
            run_rank(order, rank, send)
            code = 0
        except Exception as error:
            send(step="failed", error=f"{type(error).__name__}: {error}"[:MAX_ERROR])
        finally:
            # Without the interpreter's end: destroying a communicator of which a rank is gone may hang.
            os._exit(code)

    def stop(self, trial: int | None = None) -> None:
        """Kill what a trial left, or all; the end of each is reported by `reap`."""
        for pid, (number, _) in self._running.items():
            if trial in (None, number):
                os.kill(pid, signal.SIGKILL)

    def reap(self) -> None:
        """Report the ranks that have ended, and what their NCCL logged."""
        while self._running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            trial, rank = self._running.pop(pid)
            for line in transport_lines(self._log(trial, rank)):
                self.send(trial=trial, rank=rank, log=line)
            self.send(trial=trial, rank=rank, step="ended", code=os.waitstatus_to_exitcode(status))

    def _log(self, trial: int, rank: int) -> Path:
        return Path(self._logs) / f"{trial}-{rank}"


def log_to(path: Path) -> None:
    """Have NCCL write down which way it sends bytes."""
    os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET,ENV", NCCL_DEBUG_FILE=str(path))


def transport_lines(log: Path) -> Sequence[str]:
    """The lines of NCCL's log that name the transport, each once however many channels print it."""
    with contextlib.suppress(OSError), log.open("rb") as file:
        text = file.read(MAX_LOG).decode("utf-8", "replace")
        lines = (re.sub(r"^.*?NCCL (?=INFO|WARN)", "NCCL ", line) for line in text.splitlines())
        kept = (re.sub(r"Channel \d+/\d+", "Channel", line) for line in lines if TRANSPORT_LINES.search(line))
        return list(dict.fromkeys(line[:MAX_LINE] for line in kept))[:MAX_LINES]
    return []


def speed() -> int | None:
    """What the interface between the hosts can carry, in Mbit/s; None where the kernel does not know."""
    name = os.environ.get("GLOO_SOCKET_IFNAME", "")
    with contextlib.suppress(OSError, ValueError):
        value = int(Path(f"/sys/class/net/{name}/speed").read_text())
        return value if value > 0 else None
    return None


def serve_commands() -> None:
    """Take orders until the input ends, which kills every rank."""
    # What libraries print must not get between our lines.
    out = os.dup(1)
    os.dup2(2, 1)
    began = time.monotonic()
    import torch  # noqa: PLC0415
    import torch.distributed  # noqa: PLC0415

    ranks, rest = RankProcesses(out), b""
    took = round(time.monotonic() - began, 1)
    ranks.send(ready=True, torch=torch.__version__, seconds=took, speed=speed())
    try:
        while True:
            if select.select([0], [], [], 0.05)[0]:
                data = os.read(0, 65536)
                if not data:
                    return
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    order = json.loads(line)
                    ranks.stop(order["stop"]) if "stop" in order else ranks.start(order)
            ranks.reap()
    finally:
        ranks.stop()


if __name__ == "__main__":
    serve_commands()
