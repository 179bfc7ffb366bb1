"""How many requests to have open at once, found from the server's queue and its tokens per second."""

from __future__ import annotations

from dataclasses import dataclass

# vLLM runs 256 or 1024 at once on GPUs by default, so 128 are not too many. To double from 32
# cost three seconds of a batch of sixteen on two H200 hosts.
START, CEILING = 128, 1024
# Samples at one level before it is judged: few at first, and twice as many after each doubt, as then the rate is noise.
PERIOD, PERIOD_MAX = 2, 8
# Growth: fast at first, its root after each level that proved worse, and none for so many periods after it, each time
# for twice as many.
FAST, CAREFUL, REST, REST_MAX = 2.0, 1.25, 2, 16
# With less than this part of the best rate a level is in doubt.
WORSE = 0.95
# A queue as long as what runs: answers of one length end together, and their places are filled at once also where
# this machine is slow to send. With a tenth the sandbox's model wrote a fifth less than with 500 open requests.
RESERVE = 1.0


@dataclass(frozen=True)
class Load:
    """The server at one moment: `tokens` counts all that it has read and written so far."""

    at: float
    running: float
    waiting: float
    tokens: float


@dataclass(frozen=True)
class _Measured:
    level: int
    rate: float


class Concurrency:
    """The level, and how it changes: doubled until requests wait in the server, then as many as keep its batch full.

    A level whose rate is below the best one is compared with it once more, one right after the other: what was
    measured a minute ago was of another load, or of other lines. With the last best rate alone every dip of a busy
    machine ended the growth, and the sandbox's model wrote 0.8 of what it can.
    """

    def __init__(self, start: int = START, ceiling: int = CEILING) -> None:
        self.level, self._ceiling = min(start, ceiling), ceiling
        self._samples: list[Load] = []
        self._best = _Measured(self.level, 0.0)
        self._doubted: _Measured | None = None
        self._growth, self._rest, self._next_rest, self._period = FAST, 0, REST, PERIOD

    def restart(self) -> None:
        """Forget what was measured: the server has started again."""
        self._samples = []

    def add(self, load: Load, in_flight: int) -> None:
        """Take a sample in; `in_flight` is how many requests are open from here."""
        if self._samples and load.tokens < self._samples[-1].tokens:
            self.restart()
        if in_flight > self.level * 1.1 + 2:  # requests of a higher level are still open
            self.restart()
            return
        self._samples.append(load)
        if len(self._samples) > self._period:
            self._judge(in_flight)
            self._samples = [load]

    def _judge(self, in_flight: int) -> None:
        first, last = self._samples[0], self._samples[-1]
        now = _Measured(self.level, (last.tokens - first.tokens) / max(last.at - first.at, 1e-9))
        self._rest = max(0, self._rest - 1)
        if self._doubted:
            self._decide(self._doubted, now)
        elif now.level > self._best.level and now.rate < WORSE * self._best.rate:
            self._doubted, self._period = now, min(2 * self._period, PERIOD_MAX)
            self._set(self._best.level)
        else:
            self._keep(now)
            self._change(in_flight)

    def _decide(self, doubted: _Measured, now: _Measured) -> None:
        """Stay at the level that was the best, or return to the doubted one."""
        self._doubted, self._best = None, now
        if doubted.rate < WORSE * now.rate:
            self._growth = max(CAREFUL, self._growth**0.5)
            self._rest, self._next_rest = self._next_rest, min(2 * self._next_rest, REST_MAX)
        else:
            self._keep(doubted)
            self._set(doubted.level)

    def _keep(self, now: _Measured) -> None:
        if now.level == self._best.level:
            self._best = _Measured(now.level, (now.rate + (self._best.rate or now.rate)) / 2)
        elif now.rate > self._best.rate:
            self._best = now

    def _change(self, in_flight: int) -> None:
        running = max(one.running for one in self._samples[1:])
        # What all samples have: requests that came together wait for one step of the server, which is not a queue.
        waiting = min(one.waiting for one in self._samples[1:])
        grown = self.level if self._rest else max(self.level + 1, round(self.level * self._growth))
        if waiting >= 1:
            # The server's batch is full: what waits beyond the reserve gives no token more.
            self._set(min(grown, round(running * (1 + RESERVE)) + 2))
        elif in_flight >= self.level * 0.9:
            self._set(grown)

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
