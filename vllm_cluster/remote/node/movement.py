"""What moves while a model starts: a start has no time limit, a start without movement has."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from vllm_cluster.remote.node.backends import backend
from vllm_cluster.remote.node.process import descendants
from vllm_cluster.remote.node.timing import Timing

_TICKS = os.sysconf("SC_CLK_TCK")
# Less than this proves nothing: daemons read and write a little all the time.
MIN_BYTES = 1 << 20
MIN_CPU = 0.2
# Endless loops word their warnings alike but for the numbers; a log has at most this many wordings.
MAX_WORDINGS = 20_000
_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+")


def download_folder(model: str, argv: Sequence[str], environment: dict[str, str]) -> Path | None:
    """Where the hub's library puts a model's files; None for a folder, which is not downloaded."""
    if model.count("/") != 1 or model.startswith(("/", ".")):
        return None
    given = next((word.partition("=")[2] for word in reversed(argv) if word.startswith("--download-dir=")), None)
    home = environment.get("HF_HOME") or f"{environment.get('HOME', '/root')}/.cache/huggingface"
    cache = given or environment.get("HF_HUB_CACHE") or f"{home}/hub"
    return Path(cache) / f"models--{model.replace('/', '--')}"


def folder_bytes(folder: Path) -> int:
    """What a model's files take on the disk; a file that goes meanwhile counts nothing."""
    total = 0
    for path in (folder / "blobs").glob("*"):
        try:
            stat = path.stat()
        except OSError:
            continue
        total += stat.st_blocks * 512 or stat.st_size
    return total


def vllm_processes(session: Callable[[], list[int]]) -> list[int]:
    """The processes of vLLM on this host: its own session, and its ranks, which Ray starts."""
    return [*session(), *(pid for pid in descendants() if _read(pid, "comm").startswith(backend.RANK_PROCESS))]


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""


def cpu_seconds(pids: Sequence[int]) -> float:
    """The CPU time of processes."""
    fields = [_read(pid, "stat").rpartition(")")[2].split() for pid in pids]
    return sum(int(row[11]) + int(row[12]) for row in fields if len(row) > 12) / _TICKS


def read_bytes(pids: Sequence[int]) -> int:
    """What processes have read from disks and network file systems."""
    found = (re.search(r"^read_bytes: (\d+)", _read(pid, "io"), re.MULTILINE) for pid in pids)
    return sum(int(match[1]) for match in found if match)


class Movement:
    """When something last moved, by the kind of evidence."""

    def __init__(self, pids: Callable[[], list[int]], folder: Path | None, pace: Timing) -> None:
        self._pids, self._folder, self._pace = pids, folder, pace
        self._wordings: set[str] = set()
        self._hard = self._soft = self._looked = time.monotonic()
        self._bytes = folder_bytes(folder) if folder else 0
        self._began_with = self._bytes
        self._read = 0
        self._cpu = 0.0

    def line(self, text: str) -> None:
        """A line of the log moves when its wording is new; one that differs in numbers alone may come without end."""
        wording = _NUMBERS.sub("#", text)[:300]
        if wording not in self._wordings and len(self._wordings) < MAX_WORDINGS:
            self._wordings.add(wording)
            self.moved()

    def moved(self) -> None:
        """Something moved that a start that hangs does not move."""
        self._hard = time.monotonic()

    def look(self) -> str | None:
        """Look at files and processes when that is due; what is being downloaded, for people."""
        now = time.monotonic()
        seconds = now - self._looked
        if seconds < self._pace.movement:
            return None
        self._looked = now
        pids = self._pids()
        read, cpu = read_bytes(pids), cpu_seconds(pids)
        if read - self._read >= MIN_BYTES:
            self.moved()
        if cpu - self._cpu >= MIN_CPU * seconds:
            self._soft = now
        self._read, self._cpu = read, cpu
        return self._download(seconds)

    def _download(self, seconds: float) -> str | None:
        if self._folder is None:
            return None
        before, self._bytes = self._bytes, folder_bytes(self._folder)
        if self._bytes - before < MIN_BYTES:
            return None
        self.moved()
        rate = (self._bytes - before) / seconds
        return f"{(self._bytes - self._began_with) / 1e9:.1f} GB, {rate / 1e6:.0f} MB/s"

    def stalled(self, *, unseen: bool = False) -> str | None:
        """Why the start is given up: what has not moved, and for how long; `unseen`: another host may download."""
        now = time.monotonic()
        if unseen and now - self._hard <= self._pace.unseen:
            return None
        none = "no new line in the log, no shard, nothing downloaded or read"
        if now - max(self._hard, self._soft) > self._pace.still:
            return f"nothing has moved for {span(self._pace.still)}: {none}, no CPU time used"
        if now - self._hard > self._pace.busy:
            return f"only CPU time was used for {span(self._pace.busy)}: {none}"
        return None


def span(seconds: float) -> str:
    """A time for people."""
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:g} s"
