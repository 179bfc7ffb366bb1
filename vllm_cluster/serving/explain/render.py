"""Why it failed, for people and as a document for programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

from vllm_cluster.kernel.errors import VclusterError
from vllm_cluster.kernel.explain.catalogue import FAILURES
from vllm_cluster.kernel.explain.diagnosis import BenignMatch, Diagnosis, MatchedFailure
from vllm_cluster.kernel.explain.evidence import LogPosition, Raised
from vllm_cluster.kernel.explain.failure import KnownFailure
from vllm_cluster.kernel.plan.history import Entry
from vllm_cluster.kernel.shell_line import Paste, Pasted, command_line
from vllm_cluster.kernel.terminal.output import BOLD, END, MARK, out, styles, to_paste, with_ends
from vllm_cluster.kernel.text import count, when
from vllm_cluster.wire.status import FailedRequest

# vLLM ends its messages with the number that one needs; the longest of them in the tests is of 549 characters.
WIDTH = 600
# What to do where no known failure matches: with an exception, and with none.
FIXES = (
    "change the flag or the file that it names, or use another image, then vcluster up",
    "vcluster explain --bundle report.tar.gz",
)


def about(failure: KnownFailure, paste: Paste) -> dict[str, object]:
    """What it is and what to do, as JSON would have it: a symptom has a meaning and where to look, no cause."""
    cause, fix = failure.kind == "cause", paste(failure.fix)
    return {
        "id": failure.slug,
        "kind": failure.kind,
        "seen": failure.symptom,
        "cause": failure.cause if cause else None,
        "meaning": None if cause else failure.cause,
        "fix": fix if cause else None,
        "look": None if cause else fix,
        "found_by": paste(failure.found_by) or None,
    }


def explain_document(
    found: Diagnosis,
    failures: Mapping[str, VclusterError],
    paste: Paste,
    request: FailedRequest | None = None,
    restarts: Sequence[Entry] = (),
) -> dict[str, object]:
    """The diagnosis as JSON would have it."""
    return {
        "v": 1,
        "result": found.result,
        "request": asdict(request) if request else None,
        "restarts": [asdict(entry) for entry in restarts],
        "cause": _finding(found.cause, paste) if found.cause else None,
        "symptom": _finding(found.symptom, paste) if found.symptom else None,
        "exception": asdict(found.raised) if found.raised else None,
        "other_causes": [_finding(other, paste) for other in found.other_causes],
        "notes": [_finding(other, paste) for other in found.notes],
        "consequences": [asdict(place) for place in found.consequences],
        "harmless": [asdict(entry) for entry in found.harmless],
        "recovered": [_finding(other, paste) for other in found.recovered],
        "previous_attempts": dict(found.previous_attempts),
        "error_lines": [asdict(place) for place in found.error_lines],
        "unknown_lines": [asdict(place) for place in found.unknown_lines],
        "last_line": asdict(found.last_line) if found.last_line else None,
        "ranks": list(found.ranks),
        "read": {"logs": found.logs, "lines": found.lines, "bytes": found.size},
        "unreachable": {host: error.message for host, error in failures.items()},
    }


def _finding(found: MatchedFailure, paste: Paste) -> dict[str, object]:
    return {
        **about(found.failure, paste),
        "count": found.count,
        "lines": [asdict(place) for place in found.places],
        "more": list(found.more),
    }


def show_explained(
    found: Diagnosis,
    paste: Paste,
    *,
    color: str,
    request: FailedRequest | None = None,
    restarts: Sequence[Entry] = (),
    head: str = "",
    fixes: tuple[str, str] = FIXES,
) -> None:
    """Write the diagnosis on standard output; `head` and `request` are what it is about, where that is not all."""
    bold, end = styles(color, BOLD)
    above = [*([head] if head else []), *([_request(request)] if request else [])]
    first, *rest = [*above, *_lines(found, paste, tuple(map(paste, fixes))), *map(_restart, restarts)]
    out(bold, first, end, END, *with_ends(rest), end="")


def _lines(found: Diagnosis, paste: Paste, fixes: tuple[Pasted, ...]) -> Iterable[str]:
    yield from _answer(found, paste, fixes)
    if found.other_causes:
        yield f"also:    {'; '.join(_named(other.failure) for other in found.other_causes)}"
    if (found.cause or found.symptom) and found.consequences:
        yield "consequences:"
        yield from (_line(place) for place in found.consequences[:3])
    for other in found.notes:
        yield f"note:    {_named(other.failure)}"
        yield _line(other.places[0])
    for entry in found.harmless:
        yield f"harmless: {entry.line.source}:{entry.line.line}: {_cut(entry.line.text, 60)}"
        yield f"          {entry.reason}{_evidence(entry)}"
    if found.result not in ("healed", "unfinished"):
        yield from (f"earlier: {_named(other.failure)}; a start or an answer came later" for other in found.recovered)
    for slug, times in found.previous_attempts:
        yield f"before the last start{f', {times} times' if times > 1 else ''}: {_named(FAILURES[slug])}"
    yield f"read:    {_read(found)}, {found.size / 1e6:.1f} MB"


def _answer(found: Diagnosis, paste: Paste, fixes: tuple[Pasted, ...]) -> Iterable[str]:
    if found.cause:
        yield from _cause(found.cause, paste)
    elif found.symptom:
        yield from _symptom(found.symptom, found, paste)
    elif found.raised:
        yield from _exception(found.raised, found, fixes)
    elif found.result == "unknown":
        yield "Unrecognised failure. First and last error lines:"
        yield from (_line(place) for place in found.error_lines or found.consequences)
        yield to_paste("fix:     ", fixes[1])
    elif found.result == "healed":
        yield f"Recovered: it works now, after {count(len(found.recovered) + len(found.error_lines), 'failure')}."
        for other in found.recovered:
            yield f"recovered: {_named(other.failure)}"
            yield _line(other.places[-1])
        yield from (_line(place) for place in found.error_lines)
    elif found.result == "unfinished":
        yield f"Unfinished: in {_read(found)} the last start of vLLM is neither ready nor ended."
        for other in found.recovered:
            yield f"a start before it failed: {_named(other.failure)}"
            yield _line(other.places[-1])
        yield from (_line(place) for place in found.error_lines)
    elif found.result == "healthy":
        yield f"Healthy: it works, and no failure is in {_read(found)}."
    elif found.size:
        yield f"No known failure found in {_read(found)}."
    else:
        yield "The logs are empty." if found.logs else "No logs: no container of the cluster is running."


def _read(found: Diagnosis) -> str:
    return f"{count(found.lines, 'line')} of {count(found.logs, 'log')}"


def _request(request: FailedRequest) -> str:
    at = when(request.time, "%H:%M %Z")
    return f"The last request that failed ({at}, {request.name}): {_cut(request.summary)}"


def _restart(entry: Entry) -> str:
    """What vcluster itself wrote when it started the model again."""
    at = when(entry.time)
    seconds = "" if entry.seconds is None else f" after {entry.seconds:.0f} s"
    again = f"; ready again{seconds}" if entry.result == "ready" else ""
    return f"restarted by vcluster at {at}: {_cut(entry.failure or '')}{again}"


def _cause(found: MatchedFailure, paste: Paste) -> Iterable[str]:
    failure = found.failure
    begun = failure.cause if failure.cause.startswith("vLLM") else failure.cause[0].upper() + failure.cause[1:]
    yield f"{begun} ({_link(failure)})"
    yield from _shown(found)
    yield from (to_paste("fix:     ", line) for line in paste(failure.fix).each)
    if failure.found_by:
        yield f"before:  {paste(failure.found_by)} finds it before anything is loaded"


def _symptom(symptom: MatchedFailure, found: Diagnosis, paste: Paste) -> Iterable[str]:
    """What is seen, that its cause is not in these logs, and where the cause is written."""
    failure = symptom.failure
    yield f"Only a symptom, and no line names its cause: {failure.cause} ({_link(failure)})"
    yield from _shown(symptom)
    if found.unknown_lines:
        yield "unrecognised lines, possibly the cause:"
        yield from (_line(place) for place in found.unknown_lines)
    if found.last_line:
        yield "the first rank without output; its last line:"
        yield _line(found.last_line)
    yield from (f"ranks:   {text}" for text in found.ranks)
    yield from (to_paste("look:    ", line) for line in paste(failure.fix).each)


def _exception(raised: Raised, found: Diagnosis, fixes: tuple[Pasted, ...]) -> Iterable[str]:
    """What the process that failed first has raised, where no failure of the catalogue matches."""
    yield "Unrecognised failure. The process that failed first ended with this exception:"
    yield _line(raised.line)
    yield from (f"{MARK}       {_cut(text.strip())}" for text in raised.more)
    if frame := raised.frame:
        yield f"raised:  {frame.file}:{frame.line}{f' in {frame.function}' if frame.function else ''}"
    if raised.root:
        yield "while it handled this one:"
        yield _line(raised.root)
    if found.error_lines:
        yield "other error lines:"
        yield from (_line(place) for place in found.error_lines)
    yield from (to_paste("fix:     ", one) for one in fixes)


def _shown(found: MatchedFailure) -> Iterable[str]:
    yield from (_line(place) for place in found.places)
    yield from (f"{MARK}       {_cut(text.strip())}" for text in found.more)


def _evidence(entry: BenignMatch) -> str:
    times = f"; {entry.count} times" if entry.count > 1 else ""
    went_on = f"; work continued in line {entry.evidence.line}" if entry.evidence else ""
    return times + went_on


def _named(failure: KnownFailure) -> str:
    return f"{failure.cause} ({_link(failure)})"


def _link(failure: KnownFailure) -> str:
    """The command that shows all that the catalogue has of the failure: a package has no docs folder."""
    return command_line("vcluster", "explain", failure.slug)


def _line(place: LogPosition) -> str:
    who = f" ({place.process})" if place.process else ""
    return f"  {place.source}:{place.line}:{who} {_cut(place.text.strip())}"


def _cut(text: str, width: int = WIDTH) -> str:
    return text if len(text) <= width else text[:width] + " …"
