"""Why it failed, for people and as a document for programs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from vllm_cluster.cli.render.text import plain, wants_color
from vllm_cluster.core.errors import VclusterError
from vllm_cluster.explain.scan import Place
from vllm_cluster.explain.verdict import Finding, Verdict

WIDTH = 240


def explain_document(found: Verdict, failures: Mapping[str, VclusterError]) -> dict[str, Any]:
    """The verdict as JSON would have it."""
    return {
        "v": 1,
        "verdict": found.kind,
        "cause": _finding(found.cause) if found.cause else None,
        "others": [_finding(other) for other in found.others],
        "notes": [_finding(other) for other in found.notes],
        "followed": [asdict(place) for place in found.followed],
        "harmless": [asdict(entry) for entry in found.harmless],
        "survived": [_finding(other) for other in found.survived],
        "earlier": dict(found.earlier),
        "trouble": [asdict(place) for place in found.trouble],
        "read": {"logs": found.logs, "lines": found.lines, "bytes": found.size},
        "unreachable": {host: error.message for host, error in failures.items()},
    }


def _finding(found: Finding) -> dict[str, Any]:
    row = found.row
    return {
        "failure": row.number,
        "cause": row.cause,
        "symptom": row.symptom,
        "fix": row.fix,
        "found_by": row.before or None,
        "certain": found.certain,
        "count": found.count,
        "lines": [asdict(place) for place in found.places],
        "more": list(found.more),
    }


def show_explained(found: Verdict, *, color: str) -> None:
    """Write the verdict on standard output."""
    bold, end = ("\x1b[1m", "\x1b[0m") if wants_color(color, stdout=True) else ("", "")
    first, *rest = _lines(found)
    sys.stdout.write(f"{bold}{plain(first)}{end}\n" + "".join(plain(line) + "\n" for line in rest))
    sys.stdout.flush()


def _lines(found: Verdict) -> Iterable[str]:
    if found.cause:
        yield from _cause(found.cause)
    elif found.kind == "unknown":
        yield "Something failed, and it is no failure that is known here. The last lines of trouble:"
        yield from (_line(place) for place in found.trouble or found.followed)
        yield "do:      vcluster bundle packs what a report needs, without secrets"
    elif found.size:
        yield "Nothing in these logs tells of a failure."
    else:
        yield "There is nothing in these logs." if found.logs else "There is no node that has logs."
    if found.others:
        yield f"also:    {'; '.join(f'failure {other.row.number}: {other.row.cause}' for other in found.others)}"
    if found.cause and found.followed:
        yield "then followed:"
        yield from (_line(place) for place in found.followed[:3])
    for other in found.notes:
        yield f"note:    failure {other.row.number}: {other.row.cause}"
        yield _line(other.places[0])
    for entry in found.harmless:
        times = f", {entry.count} times" if entry.count > 1 else ""
        yield f"harmless: {entry.why} ({entry.place.source}:{entry.place.number}{times}: {_cut(entry.place.text, 60)})"
        if after := entry.evidence:
            yield f"          work went on: {after.source}:{after.number}: {_cut(after.text, 100)}"
    for other in found.survived:
        yield f"survived: failure {other.row.number}: {other.row.cause}; the server answered after it"
    if found.earlier:
        before = ", ".join(
            f"failure {row}" + (f" ({count} times)" if count > 1 else "") for row, count in found.earlier
        )
        yield f"before the last start: {before}"
    yield f"read:    {found.lines} lines of {found.logs} log{'s'[: found.logs != 1]}, {found.size / 1e6:.1f} MB"


def _cause(found: Finding) -> Iterable[str]:
    row = found.row
    begun = row.cause if row.cause.startswith("vLLM") else row.cause[0].upper() + row.cause[1:]
    cause = begun if found.certain else f"Most likely: {row.cause}"
    yield f"{cause} (failure {row.number} of docs/failures.md)"
    yield from (_line(place) for place in found.places)
    yield from (f"           {_cut(text.strip())}" for text in found.more)
    yield f"fix:     {row.fix}"
    if row.before:
        yield f"before:  {row.before} finds it before anything is loaded"


def _line(place: Place) -> str:
    who = f" ({place.who})" if place.who else ""
    return f"  {place.source}:{place.number}:{who} {_cut(place.text.strip())}"


def _cut(text: str, width: int = WIDTH) -> str:
    return text if len(text) <= width else text[:width] + " …"
