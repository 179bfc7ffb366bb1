"""How long each step may take inside a node."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Timing:
    """How long each step may take, in seconds; tests make it faster."""

    tick: float = 0.2
    # status.json is written at least this often: who reads it distrusts what is older than a few of these.
    beat: float = 5.0
    group_backoff: float = 1.0
    group_backoff_most: float = 30.0
    group_steady: float = 60.0
    group_start: float = 180.0
    group_stop: float = 8.0
    nodes: float = 1.0
    nodes_stale: float = 15.0
    look: float = 2.0
    misses: int = 3
    serve_backoff: float = 2.0
    serve_backoff_most: float = 60.0
    serve_stop: float = 20.0
    serve_stop_hurry: float = 4.0
    # So many restarts within this time, and then no more: each load wears on hosts that leak memory.
    restarts: int = 5
    restarts_within: float = 3600.0
    # A front that has ended is started again after `front_again`; requests under way have `drain` to end before a model
    # is replaced.
    front_again: float = 0.5
    drain: float = 30.0
    # Of the roll: the head counts a node without a beat for `silent` as silent; a node without one of its head for
    # `lost` dials again.
    roll_beat: float = 1.0
    roll_silent: float = 5.0
    roll_lost: float = 10.0
    # A process of vLLM that a signal has stopped for so long ends its start: every other one waits for it.
    frozen: float = 10.0
    # For a node to report that it has started its part.
    part_start: float = 30.0
    # A start of which nothing moves for `still`, or only CPU time for `busy`, is ended: a collective that hangs spins.
    # Before the first shard another host may download for `unseen`, of which the head sees nothing.
    still: float = 1800.0
    unseen: float = 14400.0
    busy: float = 5400.0
    movement: float = 5.0
    health: float = 2.0
    health_timeout: float = 10.0
    health_dead: float = 30.0
    # An engine that has moved nothing for `idle` is asked for a token; where none comes for `answer` and its scheduler
    # counts nothing, it is started again. Where that cannot be seen it is not ready any more after `hung`, and started
    # again after `hung_end`.
    idle: float = 8.0
    answer: float = 18.0
    hung: float = 35.0
    hung_end: float = 120.0
    notice_loss: float = 15.0
    # The first requests, which compile what none before needed.
    probe: float = 600.0
    probes: int = 2


_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_seconds() -> float:
    """Seconds since the host started, time asleep included; every container of the host sees the same."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def mark() -> tuple[str, float]:
    """This moment, to be written into a file for `since`."""
    return _boot(), boot_seconds()


def since(marked: object) -> float | None:
    """Seconds since a mark; None where the host was started again since, or where it is not a mark."""
    match marked:
        case [str(boot), int() | float() as began] if boot and boot == _boot():
            return round(boot_seconds() - began, 3)
    return None


def _boot() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
