"""All known failures, read from failures.toml, and what to look for in a line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_cluster.kernel.explain import progress
from vllm_cluster.kernel.explain.failure import KnownFailure, Sign, SignKind


@dataclass(frozen=True, eq=False)
class LogPattern:
    """One sign to look for: of a failure, or of a harmless line with the reason why it is harmless.

    A harmless line with a failure is harmless only if work continues. A fact has a name in place of a failure, and
    holds where `distinct` different values of it are seen; it contradicts the signs that have it in `unless`.
    """

    failure: str
    needle: str
    matches: re.Pattern[str] | None
    kind: SignKind
    explains: tuple[str, ...] = ()
    host: bool = False
    why: str = ""
    unless: tuple[str, ...] = ()
    instead: str = ""
    distinct: int = 1
    who: re.Pattern[str] | None = None


def _failures(subjects: Mapping[str, Mapping[str, Any]], patterns: Mapping[str, str]) -> Iterator[KnownFailure]:
    for subject, entries in subjects.items():
        for slug, entry in entries.items():
            signs = [_sign(sign, entry.get("kind", "cause"), patterns) for sign in entry.pop("signs", ())]
            checks = tuple(entry.pop("checks", ()))
            yield KnownFailure(slug, subject, **entry, checks=checks, signs=tuple(signs))


def _sign(words: str | Mapping[str, Any], kind: str, patterns: Mapping[str, str]) -> Sign:
    if isinstance(words, str):
        return Sign(words, "", SignKind[kind.upper()])
    pattern = words.get("pattern", "")
    for name, part in patterns.items():
        pattern = pattern.replace(f"(?&{name})", part)
    kind = words.get("kind", kind)
    return Sign(
        words["needle"],
        pattern,
        SignKind[kind.upper()],
        tuple(words.get("explains", ())),
        tuple(words.get("unless", ())),
        words.get("instead", ""),
        words.get("who", ""),
    )


_DOCUMENT = tomllib.loads(Path(__file__).with_name("failures.toml").read_text("utf-8"))
_PATTERNS, HARMLESS = _DOCUMENT.pop("patterns"), _DOCUMENT.pop("harmless")
FACTS: Mapping[str, Mapping[str, Any]] = _DOCUMENT.pop("facts")
FAILURES = {failure.slug: failure for failure in _failures(_DOCUMENT, _PATTERNS)}
CHECKED = {
    code: [failure.slug for failure in FAILURES.values() if code in failure.checks]
    for code in {code for failure in FAILURES.values() for code in failure.checks}
}
SIGNS = (
    *(
        LogPattern(
            failure.slug,
            sign.needle,
            re.compile(sign.pattern) if sign.pattern else None,
            sign.kind,
            sign.explains,
            failure.host,
            unless=sign.unless,
            instead=sign.instead,
            who=re.compile(sign.who) if sign.who else None,
        )
        for failure in FAILURES.values()
        for sign in failure.signs
    ),
    *(LogPattern(like.get("else", ""), like["needle"], None, SignKind.HARMLESS, why=like["why"]) for like in HARMLESS),
    *(
        LogPattern(name, fact["needle"], re.compile(fact["pattern"]), SignKind.FACT, distinct=fact.get("distinct", 1))
        for name, fact in FACTS.items()
    ),
)

# Pieces of words that many signs and most lines of trouble share, whole needles for the rest: see `candidate_lines`.
_SHARED = (
    *("rror", "not ", "ailed", "nable", "emory", "annot", "imed out", "NCCL", "ibv_", "xception", "ERROR"),
    *("nvalid", "onnect", " than ", "must ", " module", "availabl", "ied ", "river", "manifest", "_STATUS_", "space"),
    *("ound", "ther ", "has ", "unre", " should ", "GPU ", "ted:", "ute ", "ded with", " fatal", "atch"),
)
_TROUBLE = ("CRITICAL", "FATAL", "Traceback", "panic:", "Segmentation fault", "core dumped", "Killed", "Aborted")
_WHOLE = dict.fromkeys(
    (
        *(known.needle for known in SIGNS),
        *(*progress.START, progress.OWN_START, progress.OWN_STOP, *progress.GROUP_START),
        *(*_TROUBLE, *progress.QUIET_WORDS, progress.LEAVES, progress.RATES),
    )
)
KEYS = tuple(
    key.encode() for key in (*_SHARED, *(word for word in _WHOLE if not any(part in word for part in _SHARED)))
)
