"""How far a batch is, and how many requests to have open at once, found from the server's queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_cluster.wire.metrics import Load, read_loads
from vllm_cluster.wire.values import Count, Positive

WINDOW_SECONDS = 60.0
# Of one answer; a number of thousands of digits is none that Python can turn into a rate.
MAX_TOKENS = 1 << 31
# vLLM runs 256 or 1024 at once on GPUs by default, so 128 are not too many. To double from 32
# cost three seconds of a batch of sixteen on two H200 hosts.
START, CEILING = 128, 1024


@dataclass(frozen=True)
class Progress:
    """Requests in all, answered and without an answer, the rates of the last minute, and the tokens of this run."""

    total: Count
    answered: Count
    failed: Count
    in_flight: Count
    concurrency: Count
    tokens_per_second: Positive
    seconds_left: Positive | None
    prompt_tokens: Count
    completion_tokens: Count
    seconds: Positive


class Meter:
    """Counts what this run has done."""

    def __init__(self, total: int, answered: int, failed: int, now: float) -> None:
        self.total, self.answered, self.failed = total, answered, failed
        self.prompt_tokens = self.tokens = 0
        self._began = now
        self._marks: deque[tuple[float, int, int]] = deque([(now, answered + failed, 0)])

    def add_answer(self, usage: Mapping[str, Any]) -> None:
        """Count an answer."""
        self.answered += 1
        self.prompt_tokens += _count(usage, "prompt_tokens", "input_tokens")
        self.tokens += _count(usage, "completion_tokens", "output_tokens")

    def progress(self, now: float, in_flight: int, concurrency: int) -> Progress:
        """Report how far it is; the rates are of the last minute."""
        done, tokens = self.answered + self.failed, self.prompt_tokens + self.tokens
        while len(self._marks) > 1 and self._marks[1][0] <= now - WINDOW_SECONDS:
            self._marks.popleft()
        then, done_then, tokens_then = self._marks[0]
        if now > self._marks[-1][0]:
            self._marks.append((now, done, tokens))
        seconds = max(now - then, 1.0)  # the first answers come together, and have no rate yet
        rate = (done - done_then) / seconds
        return Progress(
            total=self.total,
            answered=self.answered,
            failed=self.failed,
            in_flight=in_flight,
            concurrency=concurrency,
            tokens_per_second=(tokens - tokens_then) / seconds,
            seconds_left=(self.total - done) / rate if rate > 0 else None,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.tokens,
            seconds=now - self._began,
        )


def _count(usage: Mapping[str, Any], *names: str) -> int:
    found = next((usage[name] for name in names if name in usage), 0)
    return found if type(found) is int and 0 <= found <= MAX_TOKENS else 0


class Concurrency:
    """The level: doubled until requests wait in the server, then twice as many as run.

    So the queue is as long as what runs: answers of one length end together, and their places are filled at once. With
    a tenth the sandbox's model wrote a fifth less than with 500 open requests. A longer queue gives no token more.
    """

    def __init__(self) -> None:
        self.level = START
        self._waited = False

    def add(self, load: Load, in_flight: int) -> None:
        """Take a sample in; `in_flight` is how many requests are open from here."""
        waits, self._waited = self._waited, load.waiting >= 1
        if self._waited:
            # Requests that came together wait for one step of the server, which is not a queue: only the second counts.
            if waits:
                self.level = max(1, min(2 * self.level, 2 * round(load.running) + 2, CEILING))
        elif in_flight >= 0.9 * self.level:
            self.level = min(2 * self.level, CEILING)


def read_load(metrics: str) -> Load | None:
    """Read the load of all replicas from the text of /metrics; None where it is not there.

    A replica whose numbers can not be is left out, and requests wait once they do at each one that is at work: what one
    reports of itself holds the others neither up nor down.
    """
    loads = [load for load in read_loads(metrics).values() if load]
    if not loads:
        return None
    waiting = min((one.waiting for one in loads if one.running or one.waiting), default=0.0)
    return Load(sum(one.running for one in loads), waiting)
