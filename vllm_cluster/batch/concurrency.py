"""How many requests to have open at once, found from the server's queue."""

from __future__ import annotations

from dataclasses import dataclass

# vLLM runs 256 or 1024 at once on GPUs by default, so 128 are not too many. To double from 32
# cost three seconds of a batch of sixteen on two H200 hosts.
START, CEILING = 128, 1024


@dataclass(frozen=True)
class Load:
    """The server at one moment."""

    running: float
    waiting: float


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
    """Read the load from the text of vLLM's /metrics, summed over its engines; None where it is not there."""
    sums: dict[str, float] = {}
    for line in metrics.splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name in ("vllm:num_requests_running", "vllm:num_requests_waiting"):
            try:
                sums[name] = sums.get(name, 0.0) + float(line.rpartition(" ")[2])
            except ValueError:
                return None
    return Load(*(sums[name] for name in sorted(sums))) if len(sums) == 2 else None
