"""What the logs hold against the cause that a line has most often."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from vllm_cluster.kernel.explain.catalogue import LogPattern
from vllm_cluster.kernel.explain.evidence import LogPosition, LogScan, SignMatch
from vllm_cluster.kernel.explain.failure import SignKind

MAX_APART = 20  # lines of one list of events
# By name, and by host, "" for all: the last line that shows the fact.
Facts = Mapping[str, Mapping[str, LogPosition]]


def facts_in(logs: Iterable[LogScan]) -> Facts:
    """Return the facts of the logs with their hosts, "" for all: what `ulimit` prints has no time, and is of one."""
    seen: dict[LogPattern, dict[str, LogPosition]] = {}
    for hit in (hit for log in logs for hit in log.hits.values() if hit.known.kind is SignKind.FACT):
        values = seen.setdefault(hit.known, {})
        for place in hit.recent:
            found = hit.known.matches.search(place.text) if hit.known.matches else None
            # Of a long line the end, which may hold the value, is cut.
            value = found[found.lastindex or 0] if found else place.text
            values[value if _of_all(hit.known) else place.host] = place
    held = {known: values for known, values in seen.items() if len(values) >= known.distinct}
    return {
        known.failure: {"" if _of_all(known) else place.host: place for place in values.values()}
        for known, values in held.items()
    }


def _of_all(known: LogPattern) -> bool:
    """Whether a fact is about all hosts together: values that differ are."""
    return known.distinct > 1


def uncontradicted(hits: Iterable[SignMatch], facts: Facts) -> Iterator[SignMatch]:
    """Yield the matches; of one that the logs of its host contradict, the symptom which is left of it, if any."""
    for hit in hits:
        known, host = hit.known, hit.first.host
        if any(_takes_back(place, hit.last) for place in _places(known.until, facts, host)):
            continue
        contradicted = any(_places(known.unless, facts, host))
        unproved = bool(known.only) and not any(_places(known.only, facts, host))
        if not (contradicted or unproved):
            yield hit
        elif known.instead:
            yield replace(hit, known=replace(known, failure=known.instead, kind=SignKind.SYMPTOM, host=False))


def _takes_back(place: LogPosition, last: LogPosition) -> bool:
    """Whether a fact is shortly below a line of the same log: further down it may be of another pod or container."""
    return place.source == last.source and 0 < place.line - last.line <= MAX_APART


def _places(names: Iterable[str], facts: Facts, host: str) -> Iterator[LogPosition]:
    """Where these facts of a host are; lines may be of the same one where one of them names none."""
    found = ((of, place) for name in names for of, place in facts.get(name, {}).items())
    return (place for of, place in found if of == host or not host or not of)
