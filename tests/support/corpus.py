"""The corpus of logs: how each was judged by people, and how `vcluster explain` does."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

from tests.support.logs import explained
from tests.support.paths import FIXTURES
from vllm_cluster.kernel.explain.diagnosis import Diagnosis

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
