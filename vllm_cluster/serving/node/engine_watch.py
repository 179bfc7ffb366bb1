"""Watches an engine that is ready: whether it answers, and whether its scheduler makes steps."""

from __future__ import annotations

import http.client
import itertools
import time
from collections.abc import Callable, Sequence

from vllm_cluster.serving.node.api import Api, Question
from vllm_cluster.serving.node.timing import Timing

# A broken connection or answer of the API.
BAD = (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, IndexError)
# More tokens in one step may take longer than the wait for an answer.
_LARGE_STEP = 32_768


def short_steps(argv: Sequence[str]) -> bool:
    """Whether the flags have a long prompt read in steps, and none of them large."""
    words = [word for given in argv for word in given.split("=", 1)]
    sizes = [after for before, after in itertools.pairwise(words) if before == "--max-num-batched-tokens"]
    small = all(size.isdecimal() and int(size) <= _LARGE_STEP for size in sizes)
    return small and "--no-enable-chunked-prefill" not in words


class EngineWatch:
    """Asks a ready engine for a token when it has moved nothing for a while, and judges what follows.

    /health stays 200 on an engine of which one rank hangs. What its scheduler has counted moves with each step, also
    in a long prefill that gives no token yet: so an engine that gives no token and makes no step hangs. With
    data parallel each engine is looked at alone. `steps_are_short` is whether no step can take as long as the wait for
    an answer; `compiles` is whether a compiler runs, for which a step may wait.
    """

    def __init__(
        self,
        api: Api,
        question: Question,
        name: str,
        pace: Timing,
        *,
        steps_are_short: bool,
        compiles: Callable[[], bool],
    ) -> None:
        self.hung = ""
        self.token = self._healthy = time.monotonic()
        self._api, self._question, self._name, self._pace = api, question, name, pace
        self._steps_are_short, self._compiles = steps_are_short, compiles
        self._counts = api.counts(pace.health_timeout)
        self._moved = dict.fromkeys(self._counts or ("",), self.token)

    def look(self) -> None:
        """Look once.

        Raises:
            TimeoutError: it has not answered for so long, or hangs, so that only another start can help.
        """
        pace = self._pace
        if self._api.healthy(pace.health_timeout):
            self._healthy = time.monotonic()
            self._look_at_engines()
        elif time.monotonic() - self._healthy > pace.health_dead:
            raise TimeoutError(f"/health has not answered 200 for {pace.health_dead:g} s")
        quiet = time.monotonic() - min(self._moved.values())
        self.hung = f"no token for {quiet:.0f} s" if quiet > pace.hung else ""
        if quiet > pace.hung_end:
            raise TimeoutError(f"no token for {pace.hung_end:g} s, though /health returns 200")

    def _look_at_engines(self) -> None:
        if time.monotonic() - min(self._moved.values()) < self._pace.idle / 3:
            return  # each question is a line in vLLM's log
        self._count()
        for engine, moved in self._moved.items():
            if time.monotonic() - moved > self._pace.idle:
                self._ask(engine)

    def _count(self) -> bool:
        """Read the counters, and which engines have moved since; whether they could be read.

        A read that fails now and then shows no movement: the next one is compared with the counts before it.
        """
        now = self._api.counts(self._pace.health_timeout)
        if not now:
            return False
        before, self._counts = self._counts or {}, now
        self._moved = {engine: self._moved.get(engine, self._healthy) for engine in now}
        for engine, counts in now.items():
            if engine in before and counts != before[engine]:
                self._moved[engine] = time.monotonic()
                if counts.tokens != before[engine].tokens:
                    self.token = time.monotonic()
        return True

    def _ask(self, engine: str) -> None:
        pace = self._pace
        several = len(self._moved) > 1
        try:
            self._api.ask(self._question, self._name, pace.answer, engine=engine if several else "")
            self.token = self._moved[engine] = time.monotonic()
        except TimeoutError:
            moved = self._moved[engine]
            # A second read, where the first one fails.
            counted = self._count() or self._count()
            sure = self._steps_are_short and counted and self._moved.get(engine) == moved
            if sure and not self._compiles():
                which = f"engine {engine}" if several else "the engine"
                still = f"{which} has made no step for {time.monotonic() - moved:.0f} s"
                asked = f"a request for one token got no answer in {pace.answer:g} s"
                raise TimeoutError(f"{still}, and {asked}, though /health returns 200") from None
        except BAD:
            pass  # what counts is how long none came
