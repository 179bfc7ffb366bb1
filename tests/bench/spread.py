"""Brings files from one host to eight on slowed links: `python -m tests.bench.spread [ROUNDS]`, as root.

Each host is a network namespace. Prints every run, and writes its table into docs/performance.md.
"""

from __future__ import annotations

import json
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
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median

from tests.bench.networks import Network, network
from tests.bench.page import write_section
from tests.support.spread import folder_plan, of_host, random_files, written
from vllm_cluster.remote.pull.plan import ChainHost, PulledFile
from vllm_cluster.remote.pull.store import Store

RATE, SLOW_RATE = "20mbit", "5mbit"
RECEIVERS = 8
FILES, FILE_BYTES = 4, 16 << 20
PORT = 7411
LIMIT = 400.0
STRUCK = 4
PAGE = """Written by `python -m tests.bench.spread`. Every host is a network namespace on this one machine,
behind a link of 20 Mbit/s both ways. One transfer brings {size} MiB in four files to one host in {one:.1f} s;
the ratios are times ÷ that time, medians of {rounds} rounds. "Others" are all but the host that the fault strikes.
A dead host and a slow one are not waited for. Sent is in times the size. The other ways bring half or a quarter
as much, at the same time, over links of their own.

| way | all complete | others complete | sent by the source | sent by the busiest receiver | promise |
|---|---|---|---|---|---|
{rows}

Over one link without a limit, {ours:.2f} GB/s where iperf3 has {link:.2f} GB/s: both hosts share {cores} cores,
and the receiver hashes. The load of the machine was {load:.0f} in the last quarter of an hour of this.
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

    def __init__(self, net: Network, root: Path, files: Sequence[PulledFile]) -> None:
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


def printed(argv: Sequence[str]) -> str:
    """What a command prints."""
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60).stdout


def rsync(made: Hosts, index: int, sender: int, name: str = "") -> None:
    """Fetch a file or all of them from another host by rsync."""
    source = f"rsync://{made.net.address(sender)}:{PORT}/w/{name}"
    argv = ["rsync", "-aW", source, str(made.root / f"h{index}/")]
    subprocess.run(made.net.argv(index, argv), check=True, capture_output=True, timeout=LIMIT)


def rsync_daemons(made: Hosts, senders: Sequence[int]) -> None:
    """Start an rsync daemon on hosts, and wait until each listens."""
    for index in senders:
        config = made.root / f"h{index}.conf"
        config.write_text(f"use chroot = no\nuid = 0\ngid = 0\n[w]\npath = {made.root}/h{index}\n")
        argv = ["rsync", "--daemon", "--no-detach", f"--config={config}", f"--port={PORT}"]
        made.start(index, [*argv, f"--address={made.net.address(index)}"])
        listening = made.net.argv(index, ["ss", "-Hltn", f"sport = {PORT}"])
        made.wait(partial(printed, listening))


def each(made: Hosts, act: Callable[[int], None]) -> None:
    """Do it on all receivers beside each other."""
    threads = [threading.Thread(target=act, args=(index,)) for index in range(1, made.net.count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)


def parallel(made: Hosts) -> Callable[[], None]:
    """The source gives to all at once."""
    rsync_daemons(made, [0])
    return lambda: each(made, lambda index: rsync(made, index, 0))


def in_turn(made: Hosts) -> Callable[[], None]:
    """The source gives to one after another."""
    rsync_daemons(made, [0])

    def act() -> None:
        for index in range(1, made.net.count):
            rsync(made, index, 0)

    return act


def rsync_chain(made: Hosts) -> Callable[[], None]:
    """Each gives a file to the next once it is complete."""
    rsync_daemons(made, range(made.net.count))

    def fetch(index: int) -> None:
        for file in made.files:
            before = made.root / f"h{index - 1}" / file.path
            made.wait(before.exists)
            rsync(made, index, index - 1, file.path)

    return lambda: each(made, fetch)


def torrent(made: Hosts) -> Callable[[], None]:
    """libtorrent: every host knows all others from the beginning."""
    from tests.bench import torrent as swarm

    described = made.root / "torrent"
    swarm.make(made.root / "h0", described)
    addresses = [made.net.address(index) for index in range(made.net.count)]
    begin = threading.Barrier(made.net.count)

    def host(index: int) -> None:
        folder = made.root / f"h{index}" / "h0"
        others = [address for address in addresses if address != addresses[index]]
        argv = [sys.executable, "-m", "tests.bench.torrent", str(described), str(folder if index else made.root / "h0")]
        begin.wait(LIMIT)
        process = made.start(index, [*argv, addresses[index], *others])
        assert process.stdout
        process.stdout.readline()
        for path in folder.iterdir() if index else ():
            # Not moved: a host that cannot open its files again gives no more to the others.
            (made.root / f"h{index}" / path.name).hardlink_to(path)

    def act() -> None:
        threading.Thread(target=host, args=(0,), daemon=True).start()
        each(made, host)

    return act


def beside(tag: str, prepare: Callable[[Hosts], Callable[[], None]], size: int) -> Run:
    """One of the ways to compare with."""
    with hosts(tag, size=size) as made:
        return timed(made, range(1, made.net.count), prepare(made))


def flat_out() -> tuple[float, float]:
    """Bytes a second over one link without a limit: our way with files of 256 MiB, and iperf3 with as many streams."""
    with hosts("flat", 1, 256 << 20, None) as made:
        server = made.start(0, ["iperf3", "--server", "--one-off"])
        listening = made.net.argv(0, ["ss", "-Hltn", "sport = 5201"])
        made.wait(partial(printed, listening))
        argv = ["iperf3", "--client", made.net.address(0), "--parallel", str(FILES), "--time", "5", "--json"]
        found = json.loads(printed(made.net.argv(1, argv)))
        server.communicate(timeout=60)
        link = found["end"]["sum_received"]["bits_per_second"] / 8
        for index in (0, 1):
            made.spread(index)
        made.wait(lambda: made.have(1))
        started = time.monotonic()
        made.wait(lambda: made.whole(1))
        return made.total / (time.monotonic() - started), link


FAULTS = {
    "none": "no fault",
    "killed": "a host's process killed at half, back after 3 s",
    "dead": "a host dead at half",
    "cut": "a host's link cut at half for 10 s",
    "slow": "a host with a quarter of the rate from the beginning",
    "slows": "a host that falls to a quarter of the rate at half",
}
WAYS = {
    "the source to all at once, rsync": parallel,
    "the source to one after another, rsync": in_turn,
    "a chain of rsync, file by file": rsync_chain,
    "libtorrent": torrent,
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
TOOLS = ("ip", "tc", "bridge", "ss", "iperf3", "rsync")


def compare(ratios: Ratios, number: int, ways: dict[str, Callable[[Hosts], Callable[[], None]]]) -> None:
    """The other ways, with half of the bytes."""
    half = FILE_BYTES // 2
    # Where the source's link decides, the size does not matter.
    ones = {size: spread(f"o{number}", receivers=1, size=size).last() for size in (half // 2, half)}
    for place, (name, prepare) in enumerate(ways.items()):
        size = half // 2 if prepare in (parallel, in_turn) else half
        try:
            ratios.add(name, beside(f"w{number}{place}", prepare, size), ones[size])
        except Exception as error:
            # What others' programs do must not end the measurement of vcluster; their row is of the other rounds.
            print(f"{name}: failed: {error}", flush=True)


def measure(number: int, ratios: Ratios) -> float:
    """All ways once; the seconds of one transfer."""
    others = threading.Thread(target=compare, args=(ratios, number, WAYS))
    one = spread(f"a{number}", receivers=1).last()
    print(f"round {number + 1}: one transfer {one:.1f} s", flush=True)
    others.start()
    for fault, name in FAULTS.items():
        struck = {"none": None, "slow": 3, "slows": 3}.get(fault, STRUCK)
        ratios.add(name, spread(f"s{number}", fault), one, struck)
    others.join()
    return one


def write(ratios: Ratios, ones: list[float], flat: list[tuple[float, float]]) -> None:
    """Write the section, of the rounds so far."""
    memory = max(run.memory for name in FAULTS.values() for _, _, run in ratios.rows[name])
    promises = {fault: f"{who} at most {limit}" for fault, (who, limit) in PROMISES.items()}
    lines = [ratios.line(name, promises[fault]) for fault, name in FAULTS.items()]
    lines += [ratios.line(name, "") for name in WAYS if name in ratios.rows]
    text = PAGE.format(
        rows="\n".join(lines),
        size=FILES * FILE_BYTES >> 20,
        one=median(ones),
        rounds=len(ones),
        ours=median(ours for ours, _ in flat) / 1e9,
        link=median(link for _, link in flat) / 1e9,
        memory=memory >> 20,
        cores=os.cpu_count(),
        load=os.getloadavg()[2],
    )
    write_section(SECTION, text)


def main() -> int:
    """Measure, and write the section."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing or os.geteuid():
        print(f"needs root and {', '.join(TOOLS)}: apt-get install iproute2 iperf3 rsync", file=sys.stderr)
        return 2
    if find_spec("libtorrent") is None:
        print("libtorrent is not installed: that row is left out", file=sys.stderr)
        del WAYS["libtorrent"]
    flat = [flat_out() for _ in range(rounds)]
    print("flat out:", [f"{ours / 1e9:.2f} of {link / 1e9:.2f} GB/s" for ours, link in flat], flush=True)
    ratios, ones = Ratios(), []
    for number in range(rounds):
        ones.append(measure(number, ratios))
        write(ratios, ones, flat)
    return 0 if ratios.kept() else 1


if __name__ == "__main__":
    sys.exit(main())
