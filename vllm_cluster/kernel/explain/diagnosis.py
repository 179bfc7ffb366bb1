"""The first cause under the noise, from what all logs together show."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from vllm_cluster.kernel.explain.catalogue import FAILURES
from vllm_cluster.kernel.explain.communicators import WAITS, find_waiting
from vllm_cluster.kernel.explain.contradictions import facts_in, uncontradicted
from vllm_cluster.kernel.explain.evidence import RECENT, LogPosition, LogScan, Raised, SignMatch
from vllm_cluster.kernel.explain.failure import KnownFailure, SignKind
from vllm_cluster.kernel.explain.frame import is_echo
from vllm_cluster.kernel.explain.progress import announces
from vllm_cluster.kernel.explain.ranks import compare_ranks

# Two hosts' clocks, and what a launcher writes just before vLLM's own first line.
SLACK = 5.0
# What a host suffers from can be why vLLM, started this long after it, fails.
LASTING = 300.0
MAX_OTHERS = 5
MAX_LINES = 5

# A rank is silent when the others went on for longer than this.
SILENT = 20.0
MAX_STRANGE = 3

Kind = Literal["explained", "symptom", "exception", "unknown", "healed", "healthy", "unfinished", "nothing"]


@dataclass(frozen=True)
class MatchedFailure:
    """A failure of the catalogue, and the lines that show it, the earliest first."""

    failure: KnownFailure
    places: tuple[LogPosition, ...]
    more: tuple[str, ...]
    count: int


@dataclass(frozen=True)
class BenignMatch:
    """A line that looks like a failure, why it is none, and what shows that work went on after it."""

    line: LogPosition
    count: int
    reason: str
    evidence: LogPosition | None


@dataclass(frozen=True)
class Diagnosis:
    """What the logs show.

    `cause` is there when the result is "explained", `symptom` when it is "symptom": then no line names a cause.
    `raised` is there when it is "exception": no failure of the catalogue matches, and this ended the process that
    failed first.
    "healthy" has a proof, "unfinished" is a start that is neither ready nor ended, "nothing" is without all of these.
    `unknown_lines` are the first lines of trouble that no failure explains, `last_line` is the last line of
    the rank that ended first, `ranks` is what the lines of all ranks show together.
    """

    result: Kind
    cause: MatchedFailure | None
    symptom: MatchedFailure | None
    raised: Raised | None
    other_causes: tuple[MatchedFailure, ...]
    notes: tuple[MatchedFailure, ...]
    consequences: tuple[LogPosition, ...]
    harmless: tuple[BenignMatch, ...]
    recovered: tuple[MatchedFailure, ...]
    previous_attempts: tuple[tuple[str, int], ...]
    error_lines: tuple[LogPosition, ...]
    unknown_lines: tuple[LogPosition, ...]
    last_line: LogPosition | None
    ranks: tuple[str, ...]
    logs: int
    lines: int
    size: int

    @property
    def named(self) -> MatchedFailure | None:
        """The cause, or the symptom where no line names a cause."""
        return self.cause or self.symptom


@dataclass(frozen=True)
class _Evidence:
    """What counts of all logs, and what does not any more."""

    hits: list[SignMatch]
    failing: list[SignMatch]
    survived: list[SignMatch]
    stuck: list[SignMatch]
    before: list[SignMatch]
    trouble: list[LogPosition]
    strange: list[LogPosition]
    quiet: list[LogPosition]
    murmurs: list[LogPosition]
    raised: list[Raised]
    earlier: Counter[str]


def diagnose(
    logs: Sequence[LogScan], *, since: Mapping[str, float] | None = None, worked_at: float | None = None
) -> Diagnosis:
    """Judge what was seen in all logs.

    With `since`, only what was written from then on counts, by the clock of each host: what is older, or has no time,
    is evidence of another attempt. The cluster certainly worked at `worked_at`, as far as can be seen it works now: it
    has survived what is older. A known failure that is newer may be one that was not noticed yet.
    """
    files, logs = logs, [one for log in logs for one in (log, *log.streams)]
    seen = _evidence(logs, since, worked_at)
    healthy = worked_at is not None
    notes = [hit for hit in seen.hits if hit.known.kind is SignKind.NOTE]
    first, others = _first(_foremost(seen), notes)
    if first and _raised_before(first, seen):
        first, others = None, []
    survived = _findings(hit for hit in seen.survived if hit.known.kind <= SignKind.SYMPTOM)
    symptom = first if first and first.failure.kind == "symptom" else None
    kind: Kind = "symptom" if symptom else "explained" if first else "healed" if survived else _quiet(logs, healthy)
    # Never an exit code 0 with a failure in the logs, of any words.
    soft = kind in ("nothing", "healthy") and (seen.quiet or seen.murmurs)
    if not first and (seen.trouble or seen.failing or soft):
        kind = "exception" if seen.raised else "unknown"
    raised = next((one for one in seen.raised if not is_echo(one.line.text)), seen.raised[0]) if seen.raised else None
    raised = raised if kind == "exception" else None
    shown = {place for found in (first, *others) if found for place in found.places}
    return Diagnosis(
        result=kind,
        cause=None if symptom else first,
        symptom=symptom,
        raised=raised,
        other_causes=tuple(others[:MAX_OTHERS]),
        # A note about one process is one only where it is why something failed.
        notes=tuple(
            _findings(
                hit for hit in notes if not hit.known.who and (first is None or hit.known.failure != first.failure.slug)
            )
        ),
        consequences=_once(sorted((hit.first for hit in seen.failing if hit.first not in shown), key=_when)),
        harmless=tuple(_harmless(seen.hits, seen.stuck if first and not seen.failing else [])),
        recovered=tuple(survived),
        previous_attempts=tuple(sorted(seen.earlier.items())),
        error_lines=_ends(seen, raised) if kind in ("exception", "unknown") else (),
        unknown_lines=(*seen.strange[:MAX_STRANGE], *seen.quiet[:MAX_STRANGE]) if symptom else (),
        last_line=_silent(logs) if symptom else None,
        ranks=tuple(compare_ranks(log.ranks for log in logs)) if symptom else (),
        logs=len(files),
        lines=sum(log.lines for log in files),
        size=sum(log.size for log in files),
    )


def _quiet(logs: Sequence[LogScan], healthy: bool) -> Kind:
    """What logs without a failure show: an answer after the last start, a start without an end, or neither."""
    newest = _last_start(logs)
    if any(log.stopped or log.asked for log in logs) and not healthy:
        return "nothing"
    if healthy or any(log.alive and (log.alive.time is None or log.alive.time >= newest) for log in logs):
        return "healthy"
    return "unfinished" if any(log.started for log in logs) else "nothing"


def _last_start(logs: Sequence[LogScan]) -> float:
    """When vLLM last started, by any log that has a time for it."""
    return max((log.started.time for log in logs if log.started and log.started.time is not None), default=-math.inf)


def _evidence(logs: Sequence[LogScan], since: Mapping[str, float] | None, worked_at: float | None) -> _Evidence:
    in_order = _ends_in_order(logs)
    hits, before, earlier = _of_last_run(logs, since, in_order)
    facts = facts_in(logs)
    hits = [uncontradicted(hit, facts) for hit in hits]
    hits += [SignMatch(WAITS, place, place, 1) for place in find_waiting(log.communicators for log in logs)]
    alive = max((log.alive for log in logs if log.alive), key=_when, default=None)

    def answered(place: LogPosition) -> bool:
        return bool(alive and _precedes(place, alive)) or not _within(place, since)

    def over(place: LogPosition) -> bool:
        return worked_at is not None or answered(place)

    def survived(place: LogPosition) -> bool:
        return answered(place) or (worked_at is not None and (place.time or 0.0) <= worked_at)

    started = _last_start(logs)

    def now(places: Iterable[LogPosition]) -> list[LogPosition]:
        new = (place for place in places if place.time is None or place.time >= started - SLACK)
        return sorted((place for place in new if not (over(place) or in_order(place))), key=_when)

    failing = [one for hit in hits if hit.known.kind <= SignKind.CONSEQUENCE and (one := _unplanned(hit, in_order))]
    stuck = [hit for hit in hits if hit.known.kind is SignKind.HARMLESS and hit.known.failure and not hit.evidence]
    return _Evidence(
        hits=hits,
        failing=[one for hit in failing if (one := _only(hit, lambda place: not survived(place)))],
        survived=[hit for hit in failing if survived(hit.last)],
        stuck=[hit for hit in stuck if not over(hit.last)],
        before=[
            hit
            for one in before
            if not over(one.last) and (hit := uncontradicted(one, facts)).known.kind is SignKind.CAUSE
        ],
        trouble=now(place for log in logs for place in log.trouble),
        strange=now(place for log in logs for place in log.strange),
        quiet=now(place for log in logs for place in log.quiet),
        murmurs=now(place for log in logs for place in log.murmurs),
        raised=sorted((one for log in logs for one in log.raised if now([one.line])), key=lambda one: _when(one.line)),
        earlier=earlier,
    )


def _foremost(seen: _Evidence) -> list[SignMatch]:
    """The matches nearest to the cause: causes, else a host's earlier ones, else broad causes, symptoms, stopped work.

    A line that only reports a failure ranks last: an error line that no sign matches is nearer to the cause.
    """
    of = {weight: [hit for hit in seen.failing if hit.known.kind is weight] for weight in SignKind}
    symptoms = of[SignKind.DECISIVE] + of[SignKind.SYMPTOM]
    ends = [] if seen.strange else of[SignKind.CONSEQUENCE]
    # A start in which nothing has failed yet needs no cause.
    before = seen.before if seen.failing or seen.trouble or seen.quiet or seen.murmurs else []
    return of[SignKind.CAUSE] or before or of[SignKind.BROAD] or symptoms or seen.stuck or ends


def _raised_before(first: MatchedFailure, seen: _Evidence) -> bool:
    """Whether a process has raised something unknown before what looks like the failure of another one."""
    raised = (one.line for one in seen.raised if not is_echo(one.line.text))
    return first.failure.follows and any(_when(line) < _when(first.places[0]) for line in raised)


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
        return SLACK + min((start for start in starts if start >= (stop or 0.0)), default=math.inf)

    spans += [(stop, again(stop) - SLACK) for log in logs if log.stopped and (stop := log.stopped.time)]
    # What failed in the second of a signal may be why it was sent: line by line, where the log is the same.
    asked = [(log.asked, again(log.asked.time)) for log in logs if log.asked]

    def within(place: LogPosition) -> bool:
        time = -math.inf if place.time is None else place.time
        by_signal = any(_precedes(signal, place) and time <= end for signal, end in asked)
        return by_signal or any(stop - 1 <= time <= start + SLACK for stop, start in spans)

    return within


def _silent(logs: Sequence[LogScan]) -> LogPosition | None:
    """The last line of the rank's log that ended first, where the others went on for long after it."""
    ends = sorted((log.last for log in logs if log.last and log.last.time and "worker-" in log.name), key=_when)
    if len(ends) < 2 or (ends[1].time or 0.0) - (ends[0].time or 0.0) < SILENT:
        return None
    return ends[0]


def _when(place: LogPosition) -> tuple[bool, float, str, int]:
    """The order of lines: by time where they have one, the rest behind, log by log."""
    return place.time is None, place.time or 0.0, place.source, place.line


def _precedes(place: LogPosition, other: LogPosition) -> bool:
    if (place.source, place.host) == (other.source, other.host):
        return place.line < other.line
    return place.time is not None and other.time is not None and place.time < other.time


def _of_last_run(
    logs: Sequence[LogScan], since: Mapping[str, float] | None, in_order: Callable[[LogPosition], bool]
) -> tuple[list[SignMatch], list[SignMatch], Counter[str]]:
    """The matches in all logs since vLLM last started, those of a host shortly before, and the failures before."""
    started = _last_start(logs)
    hits: list[SignMatch] = []
    before = [hit for log in logs for hit in log.before.values()]
    earlier: Counter[str] = Counter()
    for log in logs:
        earlier.update(log.earlier)
        for hit in log.hits.values():
            lasting = hit.known.host and hit.known.kind is SignKind.CAUSE
            # What its own log shows below the start is of this run; `docker inspect` begins with an earlier time.
            oldest = started - (LASTING if lasting and log.started else SLACK)
            if hit.last.time is not None and hit.last.time < oldest:
                if hit.known.kind <= SignKind.SYMPTOM and _unplanned(hit, in_order):
                    earlier[hit.known.failure] += 1
                if lasting:
                    before.append(hit)
            elif recent := _only(hit, partial(_counts, oldest=oldest, since=since)):
                hits.append(recent)
    shortly = partial(_counts, oldest=started - LASTING, since=since)
    return hits, [one for hit in before if (one := _only(hit, shortly))], earlier


def _counts(place: LogPosition, *, oldest: float, since: Mapping[str, float] | None) -> bool:
    """Whether a line is of the last run, and of the attempt."""
    return (place.time is None or place.time >= oldest) and _within(place, since)


def _first(
    causes: Sequence[SignMatch], notes: Iterable[SignMatch]
) -> tuple[MatchedFailure | None, list[MatchedFailure]]:
    """The earliest, and the others; a note can be why, and then comes first."""
    found = _findings(causes)
    if not found:
        return None, []
    first = found[0]
    # A note can be why: Gloo fell back to loopback, and then no rank could connect.
    reasons = [hit for hit in notes if first.failure.slug in hit.known.explains]
    if reasons:
        return _findings(reasons)[0], found
    return first, found[1:]


def _findings(hits: Iterable[SignMatch]) -> list[MatchedFailure]:
    by_failure: dict[str, list[SignMatch]] = {}
    for hit in sorted(hits, key=lambda hit: (hit.known.kind, _when(hit.first))):
        by_failure.setdefault(hit.known.failure, []).append(hit)
    return [
        MatchedFailure(
            FAILURES[slug],
            _once(hit.first for hit in several)[:MAX_LINES],
            several[0].more,
            sum(hit.count for hit in several),
        )
        for slug, several in by_failure.items()
    ]


def _ends(seen: _Evidence, raised: Raised | None) -> tuple[LogPosition, ...]:
    """The first lines of trouble, and the last: what comes last often shows only that something has failed.

    Beside an exception that is shown already, its words do not come again, whoever repeats them.
    """
    first = (*seen.strange[:MAX_STRANGE], *seen.quiet[:MAX_STRANGE])
    ends = _once(sorted((*first, *seen.trouble[-MAX_LINES * 2 :]), key=_when)) or tuple(seen.murmurs)
    if raised is None:
        return ends
    others = (place for place in ends if raised.line.text not in place.text and not announces(place.text))
    return tuple({place.text: place for place in others}.values())[:MAX_LINES]


def _once(places: Iterable[LogPosition]) -> tuple[LogPosition, ...]:
    """A line once, though several signs are in it."""
    return tuple({(place.source, place.line): place for place in places}.values())


def _harmless(hits: Iterable[SignMatch], stuck: Sequence[SignMatch]) -> list[BenignMatch]:
    found: dict[str, BenignMatch] = {}
    for hit in hits:
        if hit.known.kind is SignKind.HARMLESS and hit not in stuck:
            # Where words alone are harmless there is nothing to prove.
            one = BenignMatch(hit.first, hit.count, hit.known.why, hit.evidence if hit.known.failure else None)
            same = found.get(one.reason)
            found[one.reason] = replace(same, count=same.count + one.count) if same else one
    return list(found.values())
