"""Brings files from one host to eight on slowed links: `python -m tests.bench.spread [ROUNDS]`, as root.

Each host is a network namespace. Prints every run, and writes its table into docs/performance.md.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.bench.networks import Network, network
from tests.bench.page import write_section
from tests.support.spread import folder_plan, of_host, random_files, written
from vllm_cluster.kernel.spread.store import Store
from vllm_cluster.wire.pull import ChainHost, ModelFile

RATE, SLOW_RATE = "20mbit", "5mbit"
RECEIVERS = 8
FILES, FILE_BYTES = 4, 16 << 20
PORT = 7411
LIMIT = 400.0
STRUCK = 4
PAGE = """Written by `python -m tests.bench.spread`. Every host is a network namespace on this one machine,
behind a link of 20 Mbit/s both ways. One transfer brings {size} MiB in four files to one host in {one:.1f} s;
the ratios are times ÷ that time, medians of {rounds} rounds. "Others" are all but the host that the fault strikes.
A dead host and a slow one are not waited for. Sent is in times the size.

| way | all complete | others complete | sent by the source | sent by the busiest receiver | promise |
|---|---|---|---|---|---|
{rows}

The load of the machine, of {cores} cores, was {load:.0f} in the last quarter of an hour of this.
A host's program took at most {memory} MiB of memory.
"""


@dataclass(frozen=True)
class Run:
    """The seconds until each receiver was complete, and the bytes sent by the source and the busiest receiver."""

    seconds: dict[int, float]
    sent: float
    busiest: float
    memory: int = 0

    def last(self, without: int | None = None) -> float:
        """The seconds until all were complete, or all but one."""
        return max(seconds for index, seconds in self.seconds.items() if index != without)


class Hosts:
    """A folder and a process a host, in a network."""

    def __init__(self, net: Network, root: Path, files: Sequence[ModelFile]) -> None:
        self.net, self.root, self.files = net, root, files
        self.processes: dict[int, subprocess.Popen[str]] = {}
        hosts = [ChainHost(f"h{index}", net.address(index), PORT) for index in range(net.count)]
        self.plan = folder_plan(root, files, folder="h0", me="h0", hosts=hosts)
        for index in range(1, net.count):
            (root / f"h{index}").mkdir()

    @property
    def total(self) -> int:
        return sum(file.size for file in self.files)

    def start(self, index: int, argv: Sequence[str]) -> subprocess.Popen[str]:
        """Start a program on a host."""
        pipe = subprocess.PIPE
        process = subprocess.Popen(self.net.argv(index, argv), stdin=pipe, stdout=pipe, text=True)
        self.processes[index] = process
        return process

    def spread(self, index: int) -> subprocess.Popen[str]:
        """Start our program on a host."""
        plan = written(of_host(self.plan, f"h{index}"), self.root / f"h{index}.json")
        argv = [sys.executable, "-m", "tests.support.spread_host", str(plan)]
        return self.start(index, argv)

    def have(self, index: int) -> int:
        """The bytes that a host has."""
        store = Store(of_host(self.plan, f"h{index}"))
        return sum(map(store.have, self.files))

    def whole(self, index: int) -> bool:
        """Whether a host has every file in its place."""
        store = Store(of_host(self.plan, f"h{index}"))
        return all(map(store.complete, self.files))

    def wait(self, condition: Callable[[], object]) -> None:
        """Wait until it holds."""
        end = time.monotonic() + LIMIT
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError(f"have: {[self.have(index) for index in range(self.net.count)]}")
            time.sleep(0.02)

    def same(self, index: int) -> bool:
        """Whether a host has exactly what the source has."""
        names = [file.path for file in self.files]
        return all(
            (self.root / f"h{index}" / name).read_bytes() == (self.root / "h0" / name).read_bytes() for name in names
        )

    def memory(self) -> int:
        """The most memory that a host's program had, in bytes."""
        peaks = [0]
        for process in self.processes.values():
            if process.poll() is None:
                rows = Path(f"/proc/{process.pid}/status").read_text().splitlines()
                peaks += [int(row.split()[1]) << 10 for row in rows if row.startswith("VmHWM")]
        return max(peaks)

    def close(self) -> None:
        """End all programs."""
        for process in self.processes.values():
            process.kill()
            process.communicate()


@contextmanager
def hosts(tag: str, receivers: int = RECEIVERS, size: int = FILE_BYTES, rate: str | None = RATE) -> Iterator[Hosts]:
    """A source with files and empty receivers; data are in memory, so that no disk is measured."""
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
        net = stack.enter_context(network(tag, receivers + 1, rate))
        made = Hosts(net, root, random_files(root / "h0", FILES, size))
        stack.callback(made.close)
        yield made


def timed(made: Hosts, expected: Sequence[int], act: Callable[[], None]) -> Run:
    """Act, and note when each of the expected receivers is complete."""
    started, done = time.monotonic(), {}

    def noted() -> bool:
        done.update(
            {index: time.monotonic() - started for index in expected if index not in done and made.whole(index)}
        )
        return len(done) == len(expected)

    acting = threading.Thread(target=act)
    acting.start()
    made.wait(noted)
    acting.join(LIMIT)
    sent = [made.net.sent(index) / made.total for index in range(made.net.count)]
    wrong = [index for index in expected if not made.same(index)]
    if wrong:
        raise ValueError(f"wrong content on {wrong}")
    return Run(done, sent[0], max(sent[1:]), made.memory())


def spread(tag: str, fault: str = "none", receivers: int = RECEIVERS, size: int = FILE_BYTES) -> Run:
    """Our own way, with a fault that strikes host 4 once it has half of the bytes, or host 3 from the beginning."""
    with hosts(tag, receivers, size) as made:

        def act() -> None:
            if fault == "slow":
                made.net.shape(3, SLOW_RATE)
            for index in range(made.net.count):
                made.spread(index)
            if fault in ("none", "slow"):
                return
            made.wait(lambda: made.have(STRUCK) >= made.total / 2)
            strike(made, fault)

        # The dead host is never complete, and the slow one only when its own link allows.
        without = {"dead": STRUCK, "slow": 3, "slows": 3}.get(fault)
        expected = [index for index in range(1, made.net.count) if index != without]
        return timed(made, expected, act)


def strike(made: Hosts, fault: str) -> None:
    """Do to host 4, or where it slows down to host 3, what the fault is."""
    if fault in ("killed", "dead"):
        # `ip netns exec` becomes the program: the signal strikes the program itself.
        made.processes[STRUCK].send_signal(signal.SIGKILL)
        made.processes[STRUCK].communicate()
    if fault == "killed":
        time.sleep(3)
        made.spread(STRUCK)
    elif fault == "cut":
        made.net.cut(STRUCK)
        time.sleep(10)
        made.net.heal(STRUCK)
    elif fault == "slows":
        made.net.shape(3, SLOW_RATE)


FAULTS = {
    "none": "no fault",
    "killed": "a host's process killed at half, back after 3 s",
    "dead": "a host dead at half",
    "cut": "a host's link cut at half for 10 s",
    "slow": "a host with a quarter of the rate from the beginning",
    "slows": "a host that falls to a quarter of the rate at half",
}
SECTION = "Files from one host to eight"


class Ratios:
    """The ratios of all rounds, by row."""

    def __init__(self) -> None:
        self.rows: dict[str, list[tuple[float, float, Run]]] = {}

    def add(self, name: str, run: Run, one: float, struck: int | None = None) -> None:
        """Note a run; `one` is the seconds of one transfer of as many bytes."""
        all_, others = run.last() / one, run.last(struck) / one
        self.rows.setdefault(name, []).append((all_, others, run))
        print(f"{name}: all {all_:.2f}, others {others:.2f}, sent {run.sent:.2f}, {run.busiest:.2f}", flush=True)

    def medians(self, name: str) -> dict[str, float]:
        """The median ratios of a row, of all receivers and of the others."""
        found = self.rows[name]
        return {"all": median(row[0] for row in found), "others": median(row[1] for row in found)}

    def kept(self) -> bool:
        """Whether every promise holds."""
        return all(self.medians(FAULTS[fault])[who] <= limit for fault, (who, limit) in PROMISES.items())

    def line(self, name: str, promise: str) -> str:
        """The row of the table: medians."""
        found, ratios = self.rows[name], self.medians(name)
        sent = [median(getattr(row[2], what) for row in found) for what in ("sent", "busiest")]
        return f"| {name} | {ratios['all']:.2f} | {ratios['others']:.2f} | {sent[0]:.2f} | {sent[1]:.2f} | {promise} |"


# Of all receivers after a fault that passes, of all but the slow one beside it.
PROMISES = {
    "none": ("all", 1.2),
    "killed": ("all", 1.5),
    "dead": ("all", 1.5),
    "cut": ("all", 1.5),
    "slow": ("others", 1.2),
    "slows": ("others", 1.2),
}


def measure(number: int, ratios: Ratios) -> float:
    """All faults once; the seconds of one transfer."""
    one = spread(f"a{number}", receivers=1).last()
    print(f"round {number + 1}: one transfer {one:.1f} s", flush=True)
    for fault, name in FAULTS.items():
        struck = {"none": None, "slow": 3, "slows": 3}.get(fault, STRUCK)
        ratios.add(name, spread(f"s{number}", fault), one, struck)
    return one


def write(ratios: Ratios, ones: list[float]) -> None:
    """Write the section, of the rounds so far."""
    memory = max(run.memory for name in FAULTS.values() for _, _, run in ratios.rows[name])
    promises = {fault: f"{who} at most {limit}" for fault, (who, limit) in PROMISES.items()}
    text = PAGE.format(
        rows="\n".join(ratios.line(name, promises[fault]) for fault, name in FAULTS.items()),
        size=FILES * FILE_BYTES >> 20,
        one=median(ones),
        rounds=len(ones),
        memory=memory >> 20,
        cores=os.cpu_count(),
        load=os.getloadavg()[2],
    )
    write_section(SECTION, text)


def main() -> int:
    """Measure, and write the section."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    missing = [tool for tool in ("ip", "tc", "bridge") if shutil.which(tool) is None]
    if missing or os.geteuid():
        print(f"needs root and {', '.join(missing) or 'iproute2'}", file=sys.stderr)
        return 2
    ratios, ones = Ratios(), []
    for number in range(rounds):
        ones.append(measure(number, ratios))
        write(ratios, ones)
    return 0 if ratios.kept() else 1


if __name__ == "__main__":
    sys.exit(main())
