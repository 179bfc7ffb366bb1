"""Measures the front beside nothing, and beside smg where one is named: `python -m tests.bench.front [SMG]`.

A made-up server gives every open stream a token at each step, as an engine does. It, what is measured and the client
share the cores of this machine; each figure is the median of rounds that take turns.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import uvloop

from tests.support.fronted import KEY, REPLICA_KEY, Fronted
from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.waiting import until

PACE, STREAMS, ROUNDS, WINDOW, ASKED = 50.0, (16, 256, 512), 3, 5.0, 60
MANY, SLOW_PACE = 4096, 4.0
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Target:
    """Where requests go: a port, the key that it wants, and the process between."""

    name: str
    port: int
    key: str
    pid: int | None = None

    def rss_mb(self, what: str = "VmRSS") -> float:
        """Its memory."""
        if self.pid is None:
            return 0.0
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(what)) / 1024

    def cpu(self) -> float:
        """Its seconds of processor so far."""
        if self.pid is None:
            return 0.0
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS


class Stream(asyncio.Protocol):
    """One request: counts its tokens, and when the first came."""

    def __init__(self, target: Target, tokens: int) -> None:
        body = json.dumps({"model": "m", "prompt": f"x {id(self)}", "stream": True, "max_tokens": tokens}).encode()
        self._request = (
            f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {target.key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode() + body
        self.tokens, self.asked, self.first = 0, 0.0, 0.0
        self.began, self.lost, self.over = asyncio.Event(), asyncio.Event(), False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.asked = time.perf_counter()
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        found = data.count(b"data: {")
        if found and not self.tokens:
            self.first = time.perf_counter()
            self.began.set()
        self.tokens += found
        if data.endswith(b"0\r\n\r\n"):
            self.over = True
            self.lost.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set()
        self.began.set()


async def open_stream(target: Target, tokens: int = 1 << 30) -> Stream:
    """Ask for a stream."""
    loop = asyncio.get_running_loop()
    _, made = await loop.create_connection(lambda: Stream(target, tokens), "127.0.0.1", target.port)
    return made


@dataclass
class Figures:
    """What was measured of one target at one width."""

    tokens: list[float] = field(default_factory=list)
    first_ms: list[float] = field(default_factory=list)
    rss: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    lost: int = 0


async def measure(target: Target, width: int, found: Figures) -> None:
    """Hold so many streams open: their tokens a second, and the time to the first token of others meanwhile."""
    streams = [await open_stream(target) for _ in range(width)]
    await asyncio.gather(*(asyncio.wait_for(one.began.wait(), 30) for one in streams))
    before, cpu, began = sum(one.tokens for one in streams), target.cpu(), time.perf_counter()
    for _ in range(ASKED):
        one = await open_stream(target, 1)
        await asyncio.wait_for(one.began.wait(), 30)
        found.first_ms.append((one.first - one.asked) * 1000)
        if one.transport:
            one.transport.close()
        await asyncio.sleep(WINDOW / ASKED)
    seconds = time.perf_counter() - began
    found.tokens.append((sum(one.tokens for one in streams) - before) / seconds)
    found.cpu.append((target.cpu() - cpu) / seconds)
    found.rss.append(target.rss_mb())
    found.lost += sum(one.lost.is_set() for one in streams)
    for one in streams:
        if one.transport:
            one.transport.abort()


@contextmanager
def smg(command: str, port: int, replica: int, folder: Path) -> Iterator[Target]:
    """The router to compare with."""
    workers = folder / "workers.json"
    workers.write_text(json.dumps({"version": 1, "workers": [{"url": f"http://127.0.0.1:{replica}"}]}))
    argv = [command, "launch", "--host=127.0.0.1", f"--port={port}", "--discovery-provider=file"]
    argv += [f"--discovery-file={workers}", "--policy=cache_aware", "--health-check-interval-secs=5"]
    argv += ["--prometheus-host=127.0.0.1", f"--prometheus-port={free_port()}", "--worker-startup-check-interval=2"]
    argv += ["--request-timeout-secs=86400", "--shutdown-grace-period-secs=3", f"--api-key={REPLICA_KEY}"]
    with (folder / "smg.log").open("w") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=subprocess.STDOUT)
        try:
            target = Target("smg", port, REPLICA_KEY, process.pid)
            until(lambda: _answers(target), 60)
            yield target
        finally:
            process.kill()
            process.wait(10)


def _answers(target: Target) -> bool:
    request = urllib.request.Request(
        f"http://127.0.0.1:{target.port}/v1/completions",
        json.dumps({"model": "m", "prompt": "x"}).encode(),
        {"Authorization": f"Bearer {target.key}", "Content-Type": "application/json"},
    )
    with suppress(OSError), urllib.request.urlopen(request, timeout=5) as reply:
        return bool(reply.status == 200)
    return False


def report(targets: list[Target], figures: dict[tuple[str, int], Figures]) -> None:
    """Print the table."""
    print("| open streams | what | tok/s | of none | TTFT p50 ms | p99 ms | RSS MB | CPU cores | lost |")
    print("|--:|---|--:|--:|--:|--:|--:|--:|--:|")
    for width in STREAMS:
        base = statistics.median(figures["none", width].tokens)
        for target in targets:
            one = figures[target.name, width]
            first = sorted(one.first_ms)
            rate = statistics.median(one.tokens)
            p50, p99 = statistics.median(first), first[int(len(first) * 0.99)]
            print(
                f"| {width} | {target.name} | {rate:.0f} | {rate / base:.3f} | {p50:.2f} | {p99:.1f}"
                f" | {max(one.rss):.0f} | {statistics.median(one.cpu):.2f} | {one.lost} |",
                flush=True,
            )


async def many(made: Fronted, target: Target) -> None:
    """Open 4,096 streams, close all at once, and look at what is left."""
    idle = target.rss_mb()
    streams: list[Stream] = []
    began = time.perf_counter()
    for _ in range(MANY // 128):
        streams += await asyncio.gather(*(open_stream(target) for _ in range(128)))
    await asyncio.gather(*(asyncio.wait_for(one.began.wait(), 60) for one in streams))
    opened = time.perf_counter() - began
    before = [one.tokens for one in streams]
    await asyncio.sleep(5)
    grown = sum(one.tokens > was for one, was in zip(streams, before, strict=True))
    rate = (sum(one.tokens for one in streams) - sum(before)) / 5
    lost, at_most = sum(one.lost.is_set() for one in streams), target.rss_mb()
    began = time.perf_counter()
    for one in streams:
        if one.transport:
            one.transport.abort()
    replica = next(iter(made.replicas.values()))
    loop = asyncio.get_running_loop()
    while (await loop.run_in_executor(None, replica.seen))["streams"]:
        await asyncio.sleep(0.02)
    closed = time.perf_counter() - began
    await asyncio.sleep(5)
    status = made.status()
    print(
        f"{MANY} streams at {SLOW_PACE:g} tok/s each: opened in {opened:.1f} s, {rate:.0f} tok/s, {grown} grew, "
        f"{lost} lost; closed at once: the replica had none {closed:.2f} s later; open at the front {status.open}; "
        f"RSS {idle:.0f} MB idle, {at_most:.0f} MB open, {target.rss_mb():.0f} MB after",
        flush=True,
    )


async def run(folder: Path, command: str | None) -> None:
    """Measure all."""
    made = Fronted(folder)
    try:
        port = made.replica("a", pace=PACE).route.port
        made.write({"m": ["a"]})
        made.start()
        assert made.process
        targets = [Target("none", port, REPLICA_KEY), Target("front", made.port, KEY, made.process.pid)]
        with smg(command, free_port(), port, folder) if command else nullcontext() as third:
            targets += [third] if third else []
            figures = {(one.name, width): Figures() for one in targets for width in STREAMS}
            for width in STREAMS:
                for _ in range(ROUNDS):
                    for target in targets:
                        sys.stderr.write(f"{width} streams: {target.name}\n")
                        await measure(target, width, figures[target.name, width])
        report(targets, figures)
    finally:
        made.close()
    (folder / "many").mkdir()
    made = Fronted(folder / "many")
    try:
        made.replica("a", pace=SLOW_PACE)
        made.write({"m": ["a"]})
        made.start()
        assert made.process
        await many(made, Target("front", made.port, KEY, made.process.pid))
    finally:
        made.close()


def main() -> None:
    """Measure, with smg where its command is given."""
    with tempfile.TemporaryDirectory() as folder:
        loop = uvloop.new_event_loop()
        loop.run_until_complete(run(Path(folder), sys.argv[1] if len(sys.argv) > 1 else None))


if __name__ == "__main__":
    assert ROOT.exists()
    main()
