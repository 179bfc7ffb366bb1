"""Engines that have requests and make no token: no line states that they are stuck."""

from __future__ import annotations

import math

from vllm_cluster.kernel.explain import progress
from vllm_cluster.kernel.explain.catalogue import LogPattern
from vllm_cluster.kernel.explain.evidence import ErrorLine
from vllm_cluster.kernel.explain.failure import SignKind

# An engine that has requests is stuck when it reports no token so often, or for so many seconds.
IDLE_REPORTS, IDLE_SECONDS = 3, 60.0
MAX_ENGINES = 1024
STUCK = LogPattern("rank-stuck", progress.RATES, None, SignKind.SYMPTOM)


class IdleEngines:
    """The reports in a row of each engine with requests and no tokens."""

    def __init__(self) -> None:
        self._idle: dict[str, list[ErrorLine]] = {}

    def clear(self) -> None:
        """Forget all: vLLM starts again."""
        self._idle.clear()

    def work(self, words: str) -> bool | None:
        """Whether this report is of work; None where no engine is idle any more by it."""
        if progress.IDLE.search(words):
            return False
        return None if self._idle.pop(_engine(words), None) and not self._idle else True

    def stuck_since(self, line: ErrorLine) -> ErrorLine | None:
        """Count a report without work, and return the first of those in a row that show a stuck engine."""
        engine = _engine(line.parsed.words)
        if len(self._idle) < MAX_ENGINES or engine in self._idle:
            self._idle[engine] = [*self._idle.get(engine, ())[:IDLE_REPORTS], line]
        first, *more = self._idle.get(engine, [line])
        long = (line.time or 0.0) - (first.time or math.inf) >= IDLE_SECONDS
        return first if long or len(more) + 1 >= IDLE_REPORTS else None


def _engine(words: str) -> str:
    return found[0] if (found := progress.ENGINE.search(words)) else ""
