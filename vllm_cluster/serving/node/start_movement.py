"""What moves while a model starts: a start has no time limit, a start without movement has."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from vllm_cluster.serving.node.backends import backend
from vllm_cluster.serving.node.proc import read_proc
from vllm_cluster.serving.node.process import descendants
from vllm_cluster.serving.node.timing import Timing
from vllm_cluster.wire.status import Phase

# In this order, and never back: ranks are not equally fast, and Ray passes on their lines seconds later.
# The weights are opened before anyone knows whether they must be downloaded first: both are "loading".
STEPS: tuple[Phase, ...] = (
    "importing",
    "joining",
    "loading",
    "downloading",
    "loading",
    "compiling",
    "profiling",
    "capturing",
    "probing",
    "ready",
)
_OPENING, DOWNLOADING, _LOADING = 2, 3, 4
# Python takes no number of more than 4,300 digits, and the head no count of more than 16.
_SHARDS = re.compile(r"Completed \| (\d{1,9})/(\d{1,9}) \[[\d:]*(?:<([\d:]+))?")
_RANK = re.compile(r"world_size=(\d{1,9}) rank=(\d{1,9})\b|rank (\d{1,9}) in world size (\d{1,9})\b")
_REPEATED = re.compile(r"world_size=\d{1,9} rank=.{0,400}\[repeated (\d{1,9})x across cluster\]")
_TASKS = re.compile(r"[Ss]upported[_ ]tasks[:=] ?[\[(]([^\])]{0,1000})[\])]")


@dataclass(frozen=True)
class _Marker:
    """A wording of vLLM's log, the step that it begins or belongs to, and its detail."""

    step: int
    pattern: re.Pattern[str]
    detail: str


def _marker(step: int, pattern: str, detail: str) -> _Marker:
    return _Marker(step, re.compile(pattern), detail)


# As vLLM 0.20 to 0.33 writes them; a line that is not known changes nothing.
_MARKERS = (
    _marker(0, r"\bversion (\d{1,9}\.\d{1,9}\S{0,80})$", "vLLM {}"),
    _marker(0, r"Resolved architecture: (\w+)", "{}"),
    _marker(1, r"Initializing a V1 LLM engine", "starting the ranks"),
    _marker(1, r"Creating a new placement group", "Ray starts the ranks"),
    _marker(1, r"Waiting for creating a placement group", "waiting for Ray to give the GPUs"),
    _marker(_OPENING, r"Starting to load model|Loading model from scratch", "opening the weights"),
    _marker(_LOADING, r"Time spent downloading weights", "downloaded"),
    _marker(_LOADING, r"Prefetching checkpoint files: (\d+%)", "prefetching {}"),
    _marker(_LOADING, r"Loading weights took|Model loading took", "weights loaded"),
    _marker(5, r"Dynamo bytecode|[Cc]ompiling a graph|[Cc]ache the graph", "torch.compile"),
    _marker(5, r"torch\.compile takes|torch\.compile took", "compiled"),
    _marker(6, r"Initial profiling/warmup|Available KV cache memory", "KV cache"),
    _marker(6, r"KV cache size: ([\d,]+ tokens)", "KV cache of {}"),
    _marker(7, r"Capturing CUDA graphs?.{0,200}?\| (\d{1,9}/\d{1,9}) ", "CUDA graphs {}"),
    _marker(7, r"Graph capturing finished", "CUDA graphs"),
    _marker(8, r"init engine \(profile, create kv cache, warmup model\) took", "starting the API"),
    _marker(8, r"Starting vLLM server on", "starting the API"),
)


class Phases:
    """Which step a start is in, since when, and how long those before it took; safe to use from several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.phase: Phase = STEPS[0]
        self.detail = ""
        self.progress: tuple[int, int] | None = None
        self.tasks: tuple[str, ...] = ()
        self.passed: list[tuple[str, float]] = []
        self._step, self._clock = 0, clock
        self._began = clock()
        self._ranks: set[int] = set()
        self._more_ranks = 0
        self._lock = threading.Lock()

    def see(self, line: str) -> None:
        """Take a line of the log."""
        with self._lock:
            if found := _TASKS.search(line):
                self.tasks = tuple(re.findall(r"\w[\w&]*", found[1]))
            self._see_rank(line)
            self._see_shards(line)
            for marker in _MARKERS:
                if marker.step >= self._step and (match := marker.pattern.search(line)):
                    self._turn(marker.step, marker.detail.format(*match.groups()))

    def downloading(self, detail: str) -> None:
        """The weights are coming from the hub."""
        with self._lock:
            if self._step <= DOWNLOADING:
                self._turn(DOWNLOADING, detail)

    def turn(self, phase: str, detail: str = "") -> None:
        """Be in a step that no line announces."""
        with self._lock:
            self._turn(STEPS.index(phase), detail)

    def timeline(self) -> tuple[tuple[str, float], ...]:
        """Each step that is over, and the seconds that it took."""
        with self._lock:
            return tuple((phase, round(seconds, 1)) for phase, seconds in self.passed)

    def _turn(self, step: int, detail: str) -> None:
        if STEPS[step] != self.phase:
            now = self._clock()
            self.passed.append((self.phase, now - self._began))
            self._began = now
        self._step, self.phase, self.detail = step, STEPS[step], detail

    def _see_rank(self, line: str) -> None:
        """Count the ranks that join; Ray folds equal lines of several ranks into one with their number."""
        found = _RANK.search(line)
        if found is None or self._step > 1:
            return
        size, rank = (int(found[1]), int(found[2])) if found[1] else (int(found[4]), int(found[3]))
        if repeated := _REPEATED.search(line):
            self._more_ranks += int(repeated[1]) - 1
        self._ranks.add(rank)
        count = min(size, len(self._ranks) + self._more_ranks)
        self._turn(1, f"ranks {count}/{size}")

    def _see_shards(self, line: str) -> None:
        found = _SHARDS.search(line)
        if found is None or self._step > _LOADING:
            return
        self.progress = int(found[1]), int(found[2])
        left = f", {found[3]} left" if found[3] and found[1] != found[2] and found[1] != "0" else ""
        self._turn(_LOADING, f"shards {found[1]}/{found[2]}{left}")


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
    return [*session(), *(pid for pid in descendants() if read_proc(pid, "comm").startswith(backend.RANK_PROCESS))]


def cpu_seconds(pids: Sequence[int]) -> float:
    """The CPU time of processes."""
    fields = [read_proc(pid, "stat").rpartition(")")[2].split() for pid in pids]
    return sum(int(row[11]) + int(row[12]) for row in fields if len(row) > 12) / _TICKS


def read_bytes(pids: Sequence[int]) -> int:
    """What processes have read from disks and network file systems."""
    found = (re.search(r"^read_bytes: (\d+)", read_proc(pid, "io"), re.MULTILINE) for pid in pids)
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
