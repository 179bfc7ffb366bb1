"""How far a start of vLLM is, by the lines of its log."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# In this order, and never back: ranks are not equally fast, and Ray passes on their lines seconds later.
# The weights are opened before anyone knows whether they must be downloaded first: both are "loading".
STEPS = (
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
_SHARDS = re.compile(r"Completed \| (\d+)/(\d+) \[[\d:]*(?:<([\d:]+))?")
_RANK = re.compile(r"world_size=(\d+) rank=(\d+)|rank (\d+) in world size (\d+)")
_REPEATED = re.compile(r"world_size=\d+ rank=.*\[repeated (\d+)x across cluster\]")
_TASKS = re.compile(r"[Ss]upported[_ ]tasks[:=] ?[\[(]([^\])]*)[\])]")


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
    _marker(0, r"\bversion (\d+\.\d+\S*)$", "vLLM {}"),
    _marker(0, r"Resolved architecture: (\w+)", "{}"),
    _marker(1, r"Initializing a V1 LLM engine", "connecting to Ray"),
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
    _marker(7, r"Capturing CUDA graphs?.*?\| (\d+/\d+) ", "CUDA graphs {}"),
    _marker(7, r"Graph capturing finished", "CUDA graphs"),
    _marker(8, r"init engine \(profile, create kv cache, warmup model\) took", "starting the API"),
    _marker(8, r"Starting vLLM server on", "starting the API"),
)


class Phases:
    """Which step a start is in, since when, and how long those before it took; safe to use from several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.phase, self.detail = STEPS[0], ""
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

    def timeline(self) -> list[list[Any]]:
        """Each step that is over, and the seconds that it took."""
        with self._lock:
            return [[phase, round(seconds, 1)] for phase, seconds in self.passed]

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
