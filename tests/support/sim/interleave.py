"""Controllers that run at the same time: their calls come in any order, and a laptop may be closed at any of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from tests.support.sim import lab
from tests.support.sim.faults import Call, Script
from tests.support.sim.lab import Outcome, Verb
from tests.support.sim.world import World
from vllm_cluster.kernel.errors import VclusterError
from vllm_cluster.kernel.events import Event
from vllm_cluster.kernel.inventory.model import Inventory

MAX_TURNS = 20_000


@dataclass
class Controller:
    """One laptop: what it runs, and for how long it is closed at which of its calls."""

    inventory: Inventory
    verb: Verb
    naps: Mapping[int, float] = field(default_factory=dict)
    outcome: Outcome = field(default_factory=lambda: Outcome(Script()))


class _Clock:
    """The clock of one controller: while it waits, it is the others' turn."""

    def __init__(self, turn: _Turn) -> None:
        self._turn = turn

    def monotonic(self) -> float:
        return self._turn.world.clock.monotonic()

    def time(self) -> float:
        return self._turn.world.clock.time()

    def sleep(self, seconds: float, /) -> None:
        self._turn.wait(seconds)


class _Turn:
    """One controller's thread, which runs only when it is its turn."""

    def __init__(self, world: World, controller: Controller, back: threading.Semaphore) -> None:
        self.world, self.controller, self._back = world, controller, back
        self.script = controller.outcome.script
        self.script.hook = self._called
        self.wake, self.ended = 0.0, False
        self.failure: BaseException | None = None
        self._go = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def take(self) -> None:
        """Let it continue until it gives its turn back."""
        self.world.script = self.script
        self._go.release()
        self._back.acquire()

    def wait(self, seconds: float) -> None:
        """Give the turn back, and have the next one no sooner than in so many seconds."""
        self.wake = self.world.clock.now + seconds
        self._back.release()
        self._go.acquire()

    def _called(self, call: Call) -> None:
        seconds = self.controller.naps.get(call.index, 0.0)
        if seconds:
            self.world.asleep.append(self.script)
        self.wait(seconds)
        if seconds:
            self.world.asleep.remove(self.script)

    def _run(self) -> None:
        self._go.acquire()
        controller, outcome = self.controller, self.controller.outcome

        def emit(event: Event) -> None:
            outcome.events.append(event)

        runtime = replace(lab.runtime(self.world), clock=_Clock(self), run=self.world.next_id("run")[:8])
        try:
            outcome.value = controller.verb(controller.inventory, emit, runtime)
        except VclusterError as error:
            outcome.error = error
        except BaseException as error:
            self.failure = error
        self.ended = True
        self._back.release()


def interleave(
    world: World, controllers: Sequence[Controller], random: Random, judge: Callable[[], Any] = lambda: None
) -> None:
    """Run all of them to their ends, one call of one of them after the other; `judge` looks at the world in between."""
    back = threading.Semaphore(0)
    turns = [_Turn(world, controller, back) for controller in controllers]
    for _ in range(MAX_TURNS):
        left = [turn for turn in turns if not turn.ended]
        if not left:
            break
        ready = [turn for turn in left if turn.wake <= world.clock.now]
        if not ready:
            world.clock.sleep(min(turn.wake for turn in left) - world.clock.now)
            continue
        random.choice(ready).take()
        judge()
    for turn in turns:
        if turn.failure:
            raise turn.failure
        assert turn.ended, f"it never ends\n{turn.script.story()[-4000:]}"
