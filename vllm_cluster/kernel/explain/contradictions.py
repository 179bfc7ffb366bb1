"""What the logs hold against the cause that a line has most often."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from vllm_cluster.kernel.explain.catalogue import LogPattern
from vllm_cluster.kernel.explain.evidence import LogScan, SignMatch
from vllm_cluster.kernel.explain.failure import SignKind


def facts_in(logs: Iterable[LogScan]) -> dict[str, set[str]]:
    """Return the facts of the logs with their hosts, "" for all: what `ulimit` prints has no time, and is of one."""
    seen: dict[LogPattern, dict[str, str]] = {}
    for hit in (hit for log in logs for hit in log.hits.values() if hit.known.kind is SignKind.FACT):
        values = seen.setdefault(hit.known, {})
        for place in hit.recent:
            found = hit.known.matches.search(place.text) if hit.known.matches else None
            # Of a long line the end, which may hold the value, is cut.
            value = found[found.lastindex or 0] if found else place.text
            values[value if _of_all(hit.known) else place.host] = place.host
    held = {known: values for known, values in seen.items() if len(values) >= known.distinct}
    return {known.failure: {""} if _of_all(known) else set(values.values()) for known, values in held.items()}


def _of_all(known: LogPattern) -> bool:
    """Whether a fact is about all hosts together: values that differ are."""
    return known.distinct > 1


def uncontradicted(hit: SignMatch, facts: Mapping[str, set[str]]) -> SignMatch:
    """Return the match, or that of the symptom which is left of it where the logs of its host contradict it."""
    known, host = hit.known, hit.first.host
    contradicted = _holds(known.unless, facts, host)
    unproved = bool(known.only) and not _holds(known.only, facts, host)
    if not (contradicted or unproved):
        return hit
    return replace(hit, known=replace(known, failure=known.instead, kind=SignKind.SYMPTOM, host=False))


def _holds(names: Iterable[str], facts: Mapping[str, set[str]], host: str) -> bool:
    """Whether one of these facts is of a host; lines may be of the same one where one of them names none."""
    hosts = {of for name in names for of in facts.get(name, ())}
    return bool(hosts) and (host in hosts or not host or "" in hosts)
