"""The first cause under the noise, from what all logs together show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from vllm_cluster.kernel.explain.catalogue import FAILURES
from vllm_cluster.kernel.explain.communicators import find_waiting
from vllm_cluster.kernel.explain.companions import by_server
from vllm_cluster.kernel.explain.contradictions import facts_in
from vllm_cluster.kernel.explain.evidence import LogPosition, LogScan, Raised, SignMatch
from vllm_cluster.kernel.explain.failure import KnownFailure, SignKind
from vllm_cluster.kernel.explain.frame import is_echo
from vllm_cluster.kernel.explain.progress import announces
from vllm_cluster.kernel.explain.ranks import UNKNOWN, KnownHosts, compare_ranks, ended_ranks
from vllm_cluster.kernel.explain.weighing import SLACK, Evidence, by_time, evidence_of, joined, once, state_of

MAX_OTHERS = 5
MAX_LINES = 5
# A rank is silent when the others went on for longer than this.
SILENT = 20.0
# What was there while work went on for longer than any time-out and any start is not why it failed.
REASON = 7200.0
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


def diagnose(
    files: Sequence[LogScan],
    *,
    since: Mapping[str, float] | None = None,
    worked_at: float | None = None,
    together: bool = False,
    hosts: KnownHosts = UNKNOWN,
) -> Diagnosis:
    """Judge what was seen in all logs; `hosts` are those of the cluster, where it is known.

    With `since`, only what was written from then on counts, by the clock of each host, and nothing without a time. The
    cluster worked at `worked_at`, and as far as can be seen works now: it has survived what is older; what is newer may
    not have been noticed yet. `together`: the logs are of one cluster.
    """
    groups = by_server(files, together=together)
    logs = [one for group in groups for one in group]
    facts, waiting = facts_in(logs), find_waiting(log.communicators for log in logs)
    seen = joined([evidence_of(group, facts, waiting, since, worked_at) for group in groups])
    notes = [hit for hit in seen.hits if hit.known.kind is SignKind.NOTE]
    (first, others), (survived, overcome) = _first(seen, notes), _overcome(seen, logs, together=together)
    symptom = first if first and first.failure.kind == "symptom" else None
    kind: Kind = (
        "symptom" if symptom else "explained" if first else "healthy" if worked_at is not None else _quiet(groups)
    )
    if (survived or overcome) and _has_answered(kind, logs):
        kind = "healed"
    # Never an exit code 0 with a failure in the logs, of any words.
    soft = kind in ("nothing", "healthy", "healed") and (seen.quiet or seen.murmurs)
    if not first and (seen.trouble or seen.failing or soft):
        kind = "exception" if seen.raised else "unknown"
    raised = _raised(seen) if kind == "exception" else None
    return Diagnosis(
        result=kind,
        cause=None if symptom else first,
        symptom=symptom,
        raised=raised,
        other_causes=tuple(others[:MAX_OTHERS]),
        notes=tuple(_other_notes(first, (*notes, *seen.doubtful))),
        consequences=_consequences(seen, [*([first] if first else []), *others]),
        harmless=tuple(_harmless(seen.hits, seen.stuck if first and not seen.failing else [])),
        recovered=tuple(survived),
        previous_attempts=tuple(sorted(seen.earlier.items())),
        error_lines=overcome if kind in ("healed", "unfinished") else _ends(seen, raised, kind),
        unknown_lines=(*seen.strange[:MAX_STRANGE], *seen.quiet[:MAX_STRANGE]) if symptom else (),
        last_line=_silent(logs) if symptom else None,
        ranks=(*_ended(seen, hosts), *compare_ranks(log.ranks for log in logs)) if symptom else (),
        logs=len(files),
        lines=sum(log.lines for log in files),
        size=sum(log.size for log in files),
    )


def _ended(seen: Evidence, hosts: KnownHosts) -> Iterator[str]:
    """Which ranks ended without a word of their own, by what others have written of that."""
    hits = [hit for hit in seen.failing if hit.known.failure == "rank-killed"]
    places = once(sorted((place for hit in hits for place in (hit.first, hit.last)), key=by_time))
    # Of the lines below Ray's own, the first ones name the host.
    texts = [(place.host, place.text) for place in places] + [
        (hit.first.host, text) for hit in hits for text in hit.more
    ]
    return ended_ranks(texts, hosts)


def _has_answered(kind: Kind, logs: Iterable[LogScan]) -> bool:
    """Whether the server works, or did so until it was stopped."""
    return kind == "healthy" or (kind == "nothing" and any(log.alive for log in logs))


def _raised(seen: Evidence) -> Raised | None:
    """The exception of the process that failed first, of those that are not of the end of another one if there are."""
    return next((one for one in seen.raised if not is_echo(one.line.text)), next(iter(seen.raised), None))


def _consequences(seen: Evidence, named: Iterable[MatchedFailure]) -> tuple[LogPosition, ...]:
    shown = {place for found in named for place in found.places}
    return once(sorted((hit.first for hit in seen.failing if hit.first not in shown), key=by_time))


def _other_notes(first: MatchedFailure | None, notes: Iterable[SignMatch]) -> list[MatchedFailure]:
    """The notes on other failures; one about one process is one only where it is why something failed."""
    found = (hit for hit in notes if not hit.known.who)
    return _findings(hit for hit in found if first is None or hit.known.failure != first.failure.slug)


def _overcome(
    seen: Evidence, logs: Sequence[LogScan], *, together: bool
) -> tuple[list[MatchedFailure], tuple[LogPosition, ...]]:
    """What has failed before the server answered, and lines of what is not known."""
    if together:
        return _findings(hit for hit in seen.survived if hit.known.kind <= SignKind.SYMPTOM), ()
    # In logs of anybody's a later start need not be of the same server: what failed before it is shown.
    past = (hit for hit in seen.past if not hit.known.mild)
    survived = _findings(hit for hit in (*seen.survived, *past) if hit.known.kind <= SignKind.CONSEQUENCE)
    return survived, once(place for log in logs for place in log.overcome)[:MAX_STRANGE]


def _quiet(groups: Sequence[Sequence[LogScan]]) -> Kind:
    """What logs without a failure show: a start without an end, of any server; else an answer, or neither."""
    kinds = [state_of(group) for group in groups]
    # A part of a server that answers elsewhere never answers itself.
    ranks = [all(log.follows or not log.started for log in group) for group in groups]
    open_ends = [kind == "unfinished" and not rank for kind, rank in zip(kinds, ranks, strict=True)]
    order: tuple[Kind, ...] = ("healthy", "unfinished")
    return "unfinished" if any(open_ends) else next((kind for kind in order if kind in kinds), "nothing")


def _foremost(seen: Evidence) -> list[SignMatch]:
    """The matches nearest to the cause: causes, else a host's earlier ones, else broad causes, symptoms, stopped work.

    A line that only reports a failure ranks last: an error line that no sign matches is nearer to the cause, unless it
    is of the end of another process too.
    """
    of = {weight: [hit for hit in seen.failing if hit.known.kind is weight] for weight in SignKind}
    symptoms = of[SignKind.DECISIVE] + of[SignKind.SYMPTOM]
    ends = of[SignKind.CONSEQUENCE] if all(is_echo(line.text) for line in seen.strange) else []
    # A start in which nothing has failed yet needs no cause.
    before = seen.before if seen.failing or seen.trouble or seen.quiet or seen.murmurs else []
    return of[SignKind.CAUSE] or before or of[SignKind.BROAD] or symptoms or seen.stuck or ends


def _raised_before(first: MatchedFailure, seen: Evidence) -> bool:
    """Whether a process has raised something unknown before what looks like the failure of another one."""
    place = first.places[0]
    # A process that ends its own, for what it raised, writes of them at once, and what it raised when they are gone.
    ends = [one.line for one in seen.endings if (one.source, one.process) == (place.source, place.process)]
    own = any(line < place.line for line in ends)
    return first.failure.follows and any(
        (own and line.process == place.process) or (not is_echo(line.text) and by_time(line) < by_time(place))
        for line in (one.line for one in seen.raised)
    )


def _silent(logs: Sequence[LogScan]) -> LogPosition | None:
    """The last line of the rank's log that ended first, where the others went on for long after it."""
    ends = sorted((log.last for log in logs if log.last and log.last.time and "worker-" in log.name), key=by_time)
    if len(ends) < 2 or (ends[1].time or 0.0) - (ends[0].time or 0.0) < SILENT:
        return None
    return ends[0]


def _first(seen: Evidence, notes: Iterable[SignMatch]) -> tuple[MatchedFailure | None, list[MatchedFailure]]:
    """The earliest, and the others; a note can be why, and then comes first."""
    foremost = _foremost(seen)
    found = _findings(foremost)
    if not found:
        return None, []
    first = _nearest(found, foremost)
    found = [first, *(one for one in found if one is not first)]
    # A warning is not why, where there is an exception that no failure explains.
    if all(map(_only_warns, foremost)) and any(not is_echo(one.line.text) for one in seen.raised):
        return None, []
    # A note can be why: Gloo fell back to loopback, and then no rank could connect.
    reasons = [hit for hit in notes if first.failure.slug in hit.known.explains and _is_near(hit, first)]
    if reasons:
        first, found = _findings(reasons)[0], [first, *found]
    return (None, []) if _raised_before(first, seen) else (first, found[1:])


def _only_warns(hit: SignMatch) -> bool:
    """Whether a sign is of a warning: by its level, or a symptom that torch or NCCL only warns of."""
    text, symptom = hit.last.text, hit.known.kind in (SignKind.SYMPTOM, SignKind.DECISIVE)
    return hit.known.mild or (symptom and (text.startswith("[W") or "NCCL WARN" in text))


def _is_near(note: SignMatch, first: MatchedFailure) -> bool:
    """Whether a note was last seen so shortly before a failure that it can be why."""
    noted, failed = note.last.time, first.places[0].time
    return noted is None or failed is None or failed - noted <= REASON


def _nearest(found: list[MatchedFailure], foremost: Iterable[SignMatch]) -> MatchedFailure:
    """The first symptom; not the end of a process that only follows, where another one is above it."""
    first, *others = found
    if not first.failure.follows or any(hit.known.kind is SignKind.DECISIVE for hit in foremost):
        return first
    own = [one for one in others if one.failure.kind == "symptom" and not one.failure.follows]
    return next((one for one in own if _is_above(one.places[0], first.places[0])), first)


def _is_above(one: LogPosition, other: LogPosition) -> bool:
    """Whether a line is above another of the same host; the times of one file need not be in order."""
    same = (one.source, one.host) == (other.source, other.host) and one.line < other.line
    return same and (one.time is None or other.time is None or one.time <= other.time + SLACK)


def _findings(hits: Iterable[SignMatch]) -> list[MatchedFailure]:
    by_failure: dict[str, list[SignMatch]] = {}
    for hit in sorted(hits, key=lambda hit: (hit.known.kind, by_time(hit.first))):
        by_failure.setdefault(hit.known.failure, []).append(hit)
    return [
        MatchedFailure(
            FAILURES[slug],
            once(hit.first for hit in several)[:MAX_LINES],
            several[0].more,
            sum(hit.count for hit in several),
        )
        for slug, several in by_failure.items()
    ]


def _ends(seen: Evidence, raised: Raised | None, kind: Kind) -> tuple[LogPosition, ...]:
    """The first lines of trouble that has no name, and the last: these often show only that something has failed.

    Beside an exception that is shown already, its words do not come again, whoever repeats them.
    """
    if kind not in ("exception", "unknown"):
        return ()
    first = (*seen.strange[:MAX_STRANGE], *seen.quiet[:MAX_STRANGE])
    ends = once(sorted((*first, *seen.trouble[-MAX_LINES * 2 :]), key=by_time)) or tuple(seen.murmurs)
    if raised is None:
        return ends
    shown = (raised.line.text, raised.root.text if raised.root else raised.line.text)
    others = (one for one in ends if not any(text in one.text for text in shown) and not _is_part(one.text))
    return tuple({place.text: place for place in others}.values())[:MAX_LINES]


def _is_part(words: str) -> bool:
    """Whether a line only announces a traceback, or is a frame of one that a logger repeats."""
    return announces(words) or words.startswith('File "') or not words.strip("^~ ")


def _harmless(hits: Iterable[SignMatch], stuck: Sequence[SignMatch]) -> list[BenignMatch]:
    found: dict[str, BenignMatch] = {}
    for hit in hits:
        if hit.known.kind is SignKind.HARMLESS and hit not in stuck:
            # Where words alone are harmless there is nothing to prove.
            one = BenignMatch(hit.first, hit.count, hit.known.why, hit.evidence if hit.known.failure else None)
            same = found.get(one.reason)
            found[one.reason] = replace(same, count=same.count + one.count) if same else one
    return list(found.values())
