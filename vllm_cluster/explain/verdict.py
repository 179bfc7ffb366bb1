"""The first cause under the noise, from what all logs together show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from vllm_cluster.explain.catalogue import ROWS
from vllm_cluster.explain.row import Row, Weight
from vllm_cluster.explain.scan import Hit, Place, Seen

# Two hosts' clocks, and what a launcher writes just before vLLM's own first line.
SLACK = 5.0
MOST_OTHERS = 5
MOST_LINES = 5

Kind = Literal["explained", "unknown", "nothing"]


@dataclass(frozen=True)
class Finding:
    """A failure of the catalogue, and the lines that show it, the earliest first."""

    row: Row
    places: tuple[Place, ...]
    more: tuple[str, ...]
    count: int
    certain: bool


@dataclass(frozen=True)
class Harmless:
    """A line that looks like a failure, why it is none, and what shows that work went on after it."""

    place: Place
    count: int
    why: str
    evidence: Place | None


@dataclass(frozen=True)
class Verdict:
    """What the logs say. `cause` is there when the kind is "explained", `trouble` when it is "unknown"."""

    kind: Kind
    cause: Finding | None
    others: tuple[Finding, ...]
    notes: tuple[Finding, ...]
    followed: tuple[Place, ...]
    harmless: tuple[Harmless, ...]
    survived: tuple[Finding, ...]
    earlier: tuple[tuple[str, int], ...]
    trouble: tuple[Place, ...]
    logs: int
    lines: int
    size: int


def verdict(logs: Sequence[Seen]) -> Verdict:
    """Judge what was seen in all logs."""
    hits, earlier = _of_last_run(logs)
    alive = max((log.alive for log in logs if log.alive), key=_when, default=None)
    failing = [hit for hit in hits if hit.known.weight <= Weight.CONSEQUENCE]
    survived = [hit for hit in failing if alive and _precedes(hit.last, alive)]
    failing = [hit for hit in failing if hit not in survived]
    stuck = [hit for hit in hits if hit.known.weight is Weight.HARMLESS and hit.known.row and not hit.evidence]
    causes = [hit for hit in failing if hit.known.weight <= Weight.SYMPTOM]
    if not any(hit.known.weight is Weight.CAUSE for hit in causes):
        causes += [hit for log in logs for hit in log.before.values() if not (alive and _precedes(hit.last, alive))]
    causes = causes or stuck
    trouble = sorted(
        (place for log in logs for place in log.trouble if not (alive and _precedes(place, alive))), key=_when
    )
    notes = [hit for hit in hits if hit.known.weight is Weight.NOTE]
    cause, others = _first(causes, notes)
    # A symptom is a cause of its own only where nothing better is there.
    lowest = Weight.CAUSE if cause and cause.certain else Weight.SYMPTOM
    others = [other for other in others if other.certain or not (cause and cause.certain)]
    kind: Kind = "explained" if cause else "unknown" if trouble or failing else "nothing"
    return Verdict(
        kind=kind,
        cause=cause,
        others=tuple(others[:MOST_OTHERS]),
        notes=tuple(_findings(hit for hit in notes if cause is None or hit.known.row != cause.row.number)),
        followed=_once(sorted((hit.first for hit in failing if hit.known.weight > lowest), key=_when)),
        harmless=tuple(_harmless(hits, stuck if cause and not failing else [])),
        survived=tuple(_findings(hit for hit in survived if hit.known.weight <= Weight.SYMPTOM)),
        earlier=tuple(sorted(earlier.items())),
        trouble=tuple(trouble[-MOST_LINES * 2 :]) if kind == "unknown" else (),
        logs=len(logs),
        lines=sum(log.lines for log in logs),
        size=sum(log.size for log in logs),
    )


def _when(place: Place) -> tuple[bool, float, str, int]:
    """The order of lines: by time where they have one, the rest behind, log by log."""
    return place.time is None, place.time or 0.0, place.source, place.number


def _precedes(place: Place, other: Place) -> bool:
    if place.source == other.source:
        return place.number < other.number
    return place.time is not None and other.time is not None and place.time < other.time


def _of_last_run(logs: Sequence[Seen]) -> tuple[list[Hit], Counter[str]]:
    """The hits since vLLM last started, wherever they stand, and the rows that were hit before."""
    started = max((log.started.time for log in logs if log.started and log.started.time is not None), default=None)
    hits: list[Hit] = []
    earlier: Counter[str] = Counter()
    for log in logs:
        earlier.update(log.earlier)
        for hit in log.hits.values():
            time = hit.last.time
            lasting = hit.known.host and hit.known.weight is Weight.CAUSE
            if started is not None and time is not None and time < started - SLACK and not lasting:
                if hit.known.weight <= Weight.SYMPTOM:
                    earlier[hit.known.row] += 1
            else:
                hits.append(hit)
    return hits, earlier


def _first(causes: Sequence[Hit], notes: Iterable[Hit]) -> tuple[Finding | None, list[Finding]]:
    """The cause that outranks the others, and the others: certain before likely, then the earliest."""
    found = _findings(causes)
    if not found:
        return None, []
    first = found[0]
    # A note can be why: Gloo fell back to loopback, and then nobody could connect.
    reasons = [hit for hit in notes if first.row.number in hit.known.explains]
    if reasons:
        return _findings(reasons)[0], found
    return first, found[1:]


def _findings(hits: Iterable[Hit]) -> list[Finding]:
    by_row: dict[str, list[Hit]] = {}
    for hit in sorted(hits, key=lambda hit: (hit.known.weight, _when(hit.first))):
        by_row.setdefault(hit.known.row, []).append(hit)
    return [
        Finding(
            ROWS[row],
            _once(hit.first for hit in several)[:MOST_LINES],
            several[0].more,
            sum(hit.count for hit in several),
            several[0].known.weight in (Weight.CAUSE, Weight.NOTE),
        )
        for row, several in by_row.items()
    ]


def _once(places: Iterable[Place]) -> tuple[Place, ...]:
    """A line once, though several signs are in it."""
    return tuple({(place.source, place.number): place for place in places}.values())


def _harmless(hits: Iterable[Hit], stuck: Sequence[Hit]) -> list[Harmless]:
    found: dict[str, Harmless] = {}
    for hit in hits:
        if hit.known.weight is Weight.HARMLESS and hit not in stuck:
            # Where words alone are harmless there is nothing to prove.
            one = Harmless(hit.first, hit.count, hit.known.why, hit.evidence if hit.known.row else None)
            same = found.get(one.why)
            found[one.why] = replace(same, count=same.count + one.count) if same else one
    return list(found.values())
