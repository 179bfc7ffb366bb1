"""How far a batch is: counts, tokens per second, and the time that is left."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

WINDOW_SECONDS = 60.0


@dataclass(frozen=True)
class Progress:
    """Requests in all, answered and without an answer, and the rates of the last minute; `seconds_left` if known."""

    total: int
    answered: int
    failed: int
    in_flight: int
    concurrency: int
    tokens_per_second: float
    seconds_left: float | None


class Meter:
    """Counts what this run has done."""

    def __init__(self, total: int, before: int, now: float) -> None:
        self.total, self.before, self.answered, self.prompt_tokens, self.tokens = total, before, 0, 0, 0
        # Those without an answer, and those of them that the same command leaves without one again.
        self.failed = self.invalid = 0
        self._began = now
        self._marks: deque[tuple[float, int, int]] = deque([(now, 0, 0)])

    def add_answer(self, usage: Mapping[str, Any]) -> None:
        """Count an answer."""
        self.answered += 1
        self.prompt_tokens += _count(usage, "prompt_tokens", "input_tokens")
        self.tokens += _count(usage, "completion_tokens", "output_tokens")

    def progress(self, now: float, in_flight: int, concurrency: int) -> Progress:
        """How far it is; the rates are of the last minute."""
        done, tokens = self.answered + self.failed, self.prompt_tokens + self.tokens
        while len(self._marks) > 1 and self._marks[1][0] <= now - WINDOW_SECONDS:
            self._marks.popleft()
        then, done_then, tokens_then = self._marks[0]
        if now > self._marks[-1][0]:
            self._marks.append((now, done, tokens))
        seconds = max(now - then, 1.0)  # the first answers come together, and have no rate yet
        rate = (done - done_then) / seconds
        left = self.total - self.before - done
        return Progress(
            total=self.total,
            answered=self.before + self.answered,
            failed=self.failed,
            in_flight=in_flight,
            concurrency=concurrency,
            tokens_per_second=(tokens - tokens_then) / seconds,
            seconds_left=left / rate if rate > 0 else None,
        )


def _count(usage: Mapping[str, Any], *names: str) -> int:
    found = next((usage[name] for name in names if name in usage), 0)
    return found if isinstance(found, int) else 0
