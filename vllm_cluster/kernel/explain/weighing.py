"""What counts of the evidence: of the last start, not survived, of no end that was asked for, and no mere warning."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import chain
from typing import Literal

from vllm_cluster.kernel.explain.communicators import WAITS
from vllm_cluster.kernel.explain.contradictions import Facts, uncontradicted
from vllm_cluster.kernel.explain.evidence import RECENT, LogPosition, LogScan, Raised, SignMatch, form_of, precedes
from vllm_cluster.kernel.explain.failure import SignKind

State = Literal["healthy", "unfinished", "nothing"]
# Two hosts' clocks, and what a launcher writes just before vLLM's own first line.
SLACK = 5.0
# What a host suffers from can be why vLLM, started this long after it, fails.
LASTING = 300.0
# What a log has of lines that no failure explains.
LINES = ("trouble", "strange", "quiet", "murmurs")


@dataclass(frozen=True)
class Evidence:
    """What counts of all logs, and what does not any more."""

    hits: list[SignMatch]
    failing: list[SignMatch]
    doubtful: list[SignMatch]
    survived: list[SignMatch]
    stuck: list[SignMatch]
    before: list[SignMatch]
    past: list[SignMatch]
    trouble: list[LogPosition]
    strange: list[LogPosition]
    quiet: list[LogPosition]
    murmurs: list[LogPosition]
    raised: list[Raised]
    endings: list[LogPosition]
    earlier: Counter[str]


def state_of(logs: Sequence[LogScan]) -> State:
    """What one server does by its logs, where nothing failed: it answers since its last start, starts, or neither."""
    newest = _last_start(logs)
    if any(log.stopped or log.asked for log in logs):
        return "nothing"
    if any(log.alive and (log.alive.time is None or log.alive.time >= newest) for log in logs):
        return "healthy"
    return "unfinished" if any(log.started or log.ranks.starting for log in logs) else "nothing"


def _last_start(logs: Sequence[LogScan]) -> float:
    """When vLLM last started, by any log that has a time for it."""
    return max((log.started.time for log in logs if log.started and log.started.time is not None), default=-math.inf)


def joined(parts: Sequence[Evidence]) -> Evidence:
    """What counts of several servers."""
    names = [one.name for one in fields(Evidence) if one.name != "earlier"]
    lists = {name: list(chain.from_iterable(getattr(part, name) for part in parts)) for name in names}
    for name in LINES:
        lists[name].sort(key=by_time)
    lists["raised"].sort(key=lambda one: by_time(one.line))
    return Evidence(**lists, earlier=sum((part.earlier for part in parts), Counter()))


def evidence_of(
    logs: Sequence[LogScan],
    facts: Facts,
    waiting: Iterable[LogPosition],
    since: Mapping[str, float] | None,
    worked_at: float | None,
) -> Evidence:
    """Weigh what the logs of one server show."""
    in_order = _ends_in_order(logs)
    found, before, past, earlier = _of_last_run(logs, since, in_order)
    hits = list(uncontradicted(found, facts))
    own = {(log.name, log.host) for log in logs}
    hits += [SignMatch(WAITS, place, place, 1) for place in waiting if (place.source, place.host) in own]
    alive = max((log.alive for log in logs if log.alive), key=by_time, default=None)

    def answered(place: LogPosition) -> bool:
        return bool(alive and precedes(place, alive)) or not _within(place, since)

    def over(place: LogPosition) -> bool:
        return worked_at is not None or answered(place)

    def survived(place: LogPosition) -> bool:
        return answered(place) or (worked_at is not None and (place.time or 0.0) <= worked_at)

    started = _last_start(logs)

    def now(places: Iterable[LogPosition]) -> list[LogPosition]:
        new = (place for place in places if place.time is None or place.time >= started - SLACK)
        return sorted((place for place in new if not (over(place) or in_order(place))), key=by_time)

    failing = [one for hit in hits if hit.known.kind <= SignKind.CONSEQUENCE and (one := _unplanned(hit, in_order))]
    stuck = [hit for hit in hits if hit.known.kind is SignKind.HARMLESS and hit.known.failure and not hit.evidence]
    lines = {name: now(place for log in logs for place in getattr(log, name)) for name in LINES}
    lines["quiet"] += now(_unproved(found, hits))
    open_ = [one for hit in failing if (one := _only(hit, lambda place: not survived(place)))]
    open_, doubtful = _without_warnings(open_, bool(lines["trouble"] or lines["quiet"]) or state_of(logs) == "nothing")
    seen = Evidence(
        hits=hits,
        failing=open_,
        doubtful=doubtful,
        survived=[hit for hit in failing if survived(hit.last) and not (hit.known.mild and hit.evidence)],
        stuck=[hit for hit in stuck if not over(hit.last)],
        past=past,
        before=_causes((one for one in before if not over(one.last)), facts),
        raised=[one for log in logs for one in log.raised if now([one.line])],
        endings=[place for log in logs for place in log.endings.values()],
        earlier=earlier,
        **lines,
    )
    return _without_outlived(seen, logs)


def _without_outlived(seen: Evidence, logs: Sequence[LogScan]) -> Evidence:
    """The evidence without errors that no failure explains, where each is of a kind after which work went on before."""
    forms = {form for log in logs for form in log.outlived}
    texts = (place.text for name in LINES for place in getattr(seen, name))
    if seen.failing or not forms.issuperset(map(form_of, texts)):
        return seen
    return replace(seen, trouble=[], strange=[], quiet=[], murmurs=[], raised=[])


def _unproved(found: Iterable[SignMatch], hits: Sequence[SignMatch]) -> Iterator[LogPosition]:
    """The lines of signs that show nothing for want of another line: something failed all the same."""
    needy = (hit for hit in found if hit.known.only and not (hit.known.instead or hit.known.mild))
    return (hit.last for hit in needy if not any(hit is one for one in hits))


def _causes(hits: Iterable[SignMatch], facts: Facts) -> list[SignMatch]:
    """Those that are causes, as far as the logs do not contradict them."""
    return [hit for hit in uncontradicted(hits, facts) if hit.known.kind is SignKind.CAUSE]


def _without_warnings(failing: Sequence[SignMatch], ended: bool) -> tuple[list[SignMatch], list[SignMatch]]:
    """What is of an error, and the warnings apart: alone they end no server, and none does after which work went on."""
    ended = ended or any(not hit.known.mild for hit in failing)
    loud = [hit for hit in failing if not hit.known.mild or (ended and not hit.evidence)]
    mild = [hit for hit in failing if hit.known.mild and (hit.evidence or not ended)]
    return loud, [hit for hit in mild if hit.known.kind <= SignKind.SYMPTOM]


def _within(place: LogPosition, since: Mapping[str, float] | None) -> bool:
    """Whether a line is of the attempt; what belongs to no host are the words of the attempt itself."""
    if since is None or place.host not in since:
        return True
    return place.time is not None and place.time >= since[place.host]


def _only(hit: SignMatch, counts: Callable[[LogPosition], bool]) -> SignMatch | None:
    """The match without the places that do not count; None where its last one does not."""
    return _without(hit, counts) if counts(hit.last) else None


def _unplanned(hit: SignMatch, in_order: Callable[[LogPosition], bool]) -> SignMatch | None:
    """The match without what a planned stop wrote, which only looks like a failure; a cause stays one."""
    return hit if hit.known.kind is SignKind.CAUSE else _without(hit, lambda place: not in_order(place))


def _without(hit: SignMatch, counts: Callable[[LogPosition], bool]) -> SignMatch | None:
    places = [place for place in (hit.first, *hit.recent) if counts(place)]
    if not places:
        return None
    count = hit.count if places[0] == hit.first else len(places)
    # Whoever looks next must not find again what does not count.
    return replace(hit, first=places[0], last=places[-1], count=count, recent=deque(places, RECENT))


def _ends_in_order(logs: Sequence[LogScan]) -> Callable[[LogPosition], bool]:
    """Whether a line was written while vLLM ended by a request or a signal, or until it was started again."""
    spans = [span for log in logs for span in log.stops]
    starts = [start for _, start in spans] + [log.started.time for log in logs if log.started and log.started.time]

    def again(stop: float | None) -> float:
        return SLACK + min((start for start in starts if start > (stop or 0.0)), default=math.inf)

    spans += [(stop, again(stop) - SLACK) for log in logs if log.stopped and (stop := log.stopped.time)]
    # What failed in the second of a signal may be why it was sent: line by line, where the log is the same.
    asked = [(log.asked, again(log.asked.time)) for log in logs if log.asked]

    def within(place: LogPosition) -> bool:
        time = -math.inf if place.time is None else place.time
        by_signal = any(_since(signal, place) and time <= end for signal, end in asked)
        return by_signal or any(stop - 1 <= time <= start + SLACK for stop, start in spans)

    return within


def by_time(place: LogPosition) -> tuple[bool, float, str, int]:
    """The order of lines: by time where they have one, the rest behind, log by log."""
    return place.time is None, place.time or 0.0, place.source, place.line


def _since(signal: LogPosition, place: LogPosition) -> bool:
    """Whether a line is that of a signal, or one after it."""
    return (signal.source, signal.line) == (place.source, place.line) or precedes(signal, place)


def _of_last_run(
    logs: Sequence[LogScan], since: Mapping[str, float] | None, in_order: Callable[[LogPosition], bool]
) -> tuple[list[SignMatch], list[SignMatch], list[SignMatch], Counter[str]]:
    """The matches in all logs since vLLM last started, those of a host shortly before, and all before with counts."""
    started = _last_start(logs)
    hits: list[SignMatch] = []
    before = [hit for log in logs for hit in log.before.values()]
    past = [hit for log in logs for hit in log.past]
    earlier: Counter[str] = Counter()
    for log in logs:
        earlier.update(log.earlier)
        failed = set[str]()
        for hit in log.hits.values():
            lasting = hit.known.host and hit.known.kind is SignKind.CAUSE
            # What its own log shows below the start is of this run; `docker inspect` begins with an earlier time.
            oldest = started - (LASTING if lasting and log.started else SLACK)
            # Below a start and older than it is another log, pasted below: of that no start is known.
            if log.started and hit.last.line > log.started.line and (hit.last.time or 0.0) < (log.started.time or 0.0):
                oldest = -math.inf
            if hit.last.time is not None and hit.last.time < oldest:
                if hit.known.kind <= SignKind.CONSEQUENCE and _unplanned(hit, in_order):
                    past.append(hit)
                    failed.update([hit.known.failure] if hit.known.kind <= SignKind.SYMPTOM else ())
                if lasting:
                    before.append(hit)
            elif recent := _only(hit, partial(_counts, oldest=oldest, since=since)):
                hits.append(recent)
        earlier.update(failed)
    shortly = partial(_counts, oldest=started - LASTING, since=since)
    return hits, [one for hit in before if (one := _only(hit, shortly))], past, earlier


def _counts(place: LogPosition, *, oldest: float, since: Mapping[str, float] | None) -> bool:
    """Whether a line is of the last run, and of the attempt."""
    return (place.time is None or place.time >= oldest) and _within(place, since)


def once(places: Iterable[LogPosition]) -> tuple[LogPosition, ...]:
    """A line once, though several signs are in it."""
    return tuple({(place.source, place.line): place for place in places}.values())
