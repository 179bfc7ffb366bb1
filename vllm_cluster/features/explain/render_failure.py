"""What the catalogue knows of a failure, for people and as a document for programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from vllm_cluster.kernel.checks.codes import CODES
from vllm_cluster.kernel.explain.failure import KnownFailure
from vllm_cluster.kernel.shell_line import Paste
from vllm_cluster.kernel.terminal.output import BOLD, END, out, styles, to_paste, with_ends
from vllm_cluster.serving.explain.render import about


def failures_document(name: str, failures: Sequence[KnownFailure], paste: Paste) -> dict[str, Any]:
    """The failures of that name as JSON would have them; `why` is why a finding of that name matters."""
    return {
        "v": 1,
        "name": name,
        "why": CODES.get(name),
        "failures": [
            {
                **about(failure, paste),
                "checks": list(failure.checks),
                "prevented": failure.prevented or None,
                "silent": failure.silent or None,
                "signs": _signs(failure),
            }
            for failure in failures
        ],
    }


def show_failures(name: str, failures: Sequence[KnownFailure], paste: Paste, *, color: str) -> None:
    """Write why a finding of that name matters, and one failure after the other, on standard output."""
    bold, end = styles(color, BOLD)
    of_finding = with_ends((f"finding: {CODES[name]}",)) if name in CODES else ()
    both = [one.slug for one in failures] == [name]
    if not both:
        out(bold, name, end, END, *of_finding, end="")
    for number, failure in enumerate(failures):
        if number or not both:
            out()
        out(bold, failure.slug, end, END, *with_ends(_lines(failure, paste)), *(of_finding if both else ()), end="")


def _lines(failure: KnownFailure, paste: Paste) -> Iterable[str]:
    symptom = failure.kind == "symptom"
    yield f"seen:    {failure.symptom}"
    yield f"means:   {failure.cause}; a symptom, with more than one cause" if symptom else f"cause:   {failure.cause}"
    yield from (to_paste("look:    " if symptom else "fix:     ", line) for line in paste(failure.fix).each)
    if failure.checks:
        yield f"before:  {paste(failure.found_by or 'vcluster check')} finds it, as {', '.join(failure.checks)}"
    elif failure.found_by:
        yield f"before:  {paste(failure.found_by)} finds it before anything is loaded"
    if failure.prevented:
        yield f"held:    {failure.prevented}"
    if failure.silent:
        yield f"no log:  {failure.silent}"
    yield from (f"sign:    {words}" for words in _signs(failure))


def _signs(failure: KnownFailure) -> list[str]:
    """The words of a log by which it is known."""
    return list(dict.fromkeys(sign.needle for sign in failure.signs))
