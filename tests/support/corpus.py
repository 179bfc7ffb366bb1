"""The corpus of logs: how each was judged by people, and how `vcluster explain` does."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Literal

from tests.support.depth import FULL
from tests.support.logs import explained
from tests.support.paths import FIXTURES
from vllm_cluster.kernel.explain.catalogue import SIGNS
from vllm_cluster.kernel.explain.diagnosis import Diagnosis
from vllm_cluster.kernel.explain.failure import SignKind
from vllm_cluster.kernel.explain.log_line import parse_line

FOLDER = FIXTURES / "corpus"
Outcome = Literal["right", "wrong", "unknown"]


@dataclass(frozen=True)
class Case:
    """A log, where it comes from, and its answer: one of these causes or symptoms, none, or health."""

    log: str
    kind: Literal["cause", "symptom", "unknown", "healthy"]
    failures: tuple[str, ...]
    source: str

    @property
    def part(self) -> str:
        """The folder: logs that no rule was written from, or those of clusters that we broke."""
        return self.log.split("/", 1)[0]


CORPUS = tuple(
    Case(entry["log"], entry["kind"], tuple(entry["failures"]), entry["source"])
    for entry in json.loads((FOLDER / "index.json").read_text())
)


def judged(case: Case) -> tuple[Outcome, Diagnosis]:
    """Whether the verdict is right; wrong is a name for what is not there, unknown means that none was found."""
    found = explained((FOLDER / f"{case.log}.log").read_bytes(), together=False)
    named = found.named
    slug = named.failure.slug if named else ""
    if case.kind == "healthy":
        return ("right" if found.result in ("nothing", "unfinished", "healthy", "healed") else "wrong"), found
    if case.kind == "unknown":
        return ("wrong" if named or found.result == "healed" else "right"), found
    if slug in case.failures and (found.result == "explained") == (case.kind == "cause"):
        return "right", found
    # A symptom where the cause was there to be read misleads no reader, and names nothing.
    misleads = found.result in ("explained", "healed") or bool(named and case.kind == "symptom")
    return ("wrong" if misleads else "unknown"), found


@cache
def shown_by_a_line() -> tuple[str, ...]:
    """Return words of each failing sign, or of every eighth: those of a log that shows it, else its own."""
    lines = [line for path in FOLDER.glob("*/*.log") for line in path.read_bytes().splitlines()]
    words = list(dict.fromkeys(parse_line(line).words for line in lines))
    failing = [known for known in SIGNS if known.kind <= SignKind.CONSEQUENCE]
    found: dict[str, str] = {}
    for known in failing if FULL else failing[::8]:
        own = (text for text in words if known.needle in text and (not known.matches or known.matches.search(text)))
        text = next(own, "" if known.matches else known.needle)
        if text:
            found[known.needle] = text
    return tuple(found.values())
