"""How many requests to have open at once, found from the server's queue and its tokens per second."""

from __future__ import annotations

from dataclasses import dataclass

START, CEILING = 32, 1024
# Samples at one level before it is judged: with fewer the rate of a busy server is noise.
PERIOD = 3
# Growth while nothing waits: fast up to the first queue, careful after it.
FAST, CAREFUL = 2.0, 1.25
# A level whose rate is below this part of the best one is left again, and growth rests for so many periods.
WORSE, REST = 0.96, 6
# Where the server's batch is full more requests cannot help: then a little less than the best is worse.
WORSE_FULL = 0.99
# A queue as long as what runs: answers of one length end together, and their places are filled at once also where
# this machine is slow to send. With a tenth the sandbox's model wrote a fifth less than with 500 open requests.
RESERVE = 1.0
# The best rate fades, since later lines may be of another kind.
FADE = 0.99


@dataclass(frozen=True)
class Load:
    """The server at one moment: `tokens` counts all that it has read and written so far."""

    at: float
    running: float
    waiting: float
    tokens: float


class Concurrency:
    """The level, and how it changes: doubled until requests wait in the server, then as many as keep its batch full."""

    def __init__(self, start: int = START, ceiling: int = CEILING) -> None:
        self.level, self._ceiling = min(start, ceiling), ceiling
        self._samples: list[Load] = []
        self._best_level, self._best_rate = self.level, 0.0
        self._growth, self._rest = FAST, 0

    def restart(self) -> None:
        """Forget what was measured: the server has started again."""
        self._samples = []

    def add(self, load: Load, in_flight: int) -> None:
        """Take a sample in; `in_flight` is how many requests are open from here."""
        if self._samples and load.tokens < self._samples[-1].tokens:
            self.restart()
        self._samples.append(load)
        if len(self._samples) > PERIOD:
            self._judge(in_flight)
            self._samples = [load]

    def _judge(self, in_flight: int) -> None:
        first, last = self._samples[0], self._samples[-1]
        rate = (last.tokens - first.tokens) / max(last.at - first.at, 1e-9)
        running = max(one.running for one in self._samples[1:])
        # What all samples have: requests that came together wait for one step of the server, and are no queue.
        waiting = min(one.waiting for one in self._samples[1:])
        self._best_rate *= FADE
        self._rest = max(0, self._rest - 1)
        part = WORSE_FULL if waiting >= 1 else WORSE
        worse = rate < part * self._best_rate and self.level > self._best_level
        if rate > self._best_rate:
            self._best_level, self._best_rate = self.level, rate
        if worse:
            self._growth, self._rest = CAREFUL, REST
            self._set(self._best_level)
        elif waiting >= 1:
            # The server's batch is full: what waits beyond the reserve gives no token more.
            self._growth = CAREFUL
            self._set(min(round(self.level * CAREFUL) + 1, round(running * (1 + RESERVE)) + 2))
        elif not self._rest and in_flight >= self.level * 0.9:
            self._set(max(self.level + 1, round(self.level * self._growth)))

    def _set(self, level: int) -> None:
        self.level = max(1, min(level, self._ceiling))


def read_load(metrics: str, at: float) -> Load | None:
    """The load in the text of vLLM's /metrics, summed over its engines; None where it is not there."""
    sums = dict.fromkeys(
        (
            "vllm:num_requests_running",
            "vllm:num_requests_waiting",
            "vllm:prompt_tokens_total",
            "vllm:generation_tokens_total",
        ),
        0.0,
    )
    seen = set()
    for line in metrics.splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name in sums:
            try:
                sums[name] += float(line.rpartition(" ")[2])
            except ValueError:
                return None
            seen.add(name)
    if len(seen) < len(sums):
        return None
    running, waiting, prompt, generated = sums.values()
    return Load(at, running, waiting, prompt + generated)
