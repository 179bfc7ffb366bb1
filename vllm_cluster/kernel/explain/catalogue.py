"""All known failures, read from failures.toml, and what to look for in a line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from vllm_cluster.kernel.explain import progress
from vllm_cluster.kernel.explain.failure import KnownFailure, Sign, SignKind
from vllm_cluster.kernel.explain.ranks import RANK_WORDS
from vllm_cluster.kernel.explain.words import needle

# What NCCL writes as a rank begins to join a communicator, and when it has.
COMMUNICATORS = " - Init "
# The same of a way that was tried several times.
CONNECTED = ": Connected after "
_DIGIT, _REPETITION = re.compile("[0-9]"), re.compile(r"\{[0-9,]{1,9}\}")
# What an expression can begin with: one of these words, in any case or as they are.
_LEADS = re.compile(r"(?:\(\?i\))?(?:\\b)?\(\?:([a-z0-9|]+)\)(?![?*{+])")


def _is_divided(pattern: str) -> bool:
    """Whether an expression has several as a whole: it need not begin as the first of them."""
    inside = re.sub(r"\\.|\[[^\]]{0,200}\]", "", pattern)
    while (outside := re.sub(r"\([^()]*\)", "", inside)) != inside:
        inside = outside
    return "|" in inside


@dataclass(frozen=True, eq=False)
class LogPattern:
    """One sign to look for: of a failure, or of a harmless line with the reason why it is harmless.

    A harmless line with a failure is harmless only if work continues. A fact has a name in place of a failure, and
    holds where `distinct` different values of it are seen; it contradicts the signs that have it in `unless`, those
    that have it in `only` need it, and those that have it in `until` are over where it is shortly below.
    """

    failure: str
    needle: str
    matches: re.Pattern[str] | None
    kind: SignKind
    explains: tuple[str, ...] = ()
    host: bool = False
    why: str = ""
    unless: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    instead: str = ""
    distinct: int = 1
    mild: bool = False  # it was seen in a line of a level below error
    who: re.Pattern[str] | None = None
    until: tuple[str, ...] = ()
    code: bool = False

    @cached_property
    def fails(self) -> bool:
        """Whether something failed where it is seen."""
        return self.kind <= SignKind.CONSEQUENCE and not self.mild

    @cached_property
    def is_fact(self) -> bool:
        """Whether it only proves or contradicts other signs."""
        return self.kind is SignKind.FACT

    @cached_property
    def is_sure(self) -> bool:
        """Whether its line shows a failure without any other line."""
        return not (self.is_fact or self.until or ((self.only or self.unless) and not self.instead))

    @cached_property
    def waits(self) -> bool:
        """Whether it does not count if work continues."""
        return self.kind is SignKind.HARMLESS or self.kind <= SignKind.BROAD or self.mild

    @cached_property
    def search(self) -> Callable[[str], re.Match[str] | None]:
        """Look for the pattern in a line; where it begins with one of several words, from the first of these on.

        An expression that ignores case or begins with \\b is tried at each place of a line: 20 to 30 µs.
        """
        assert self.matches  # noqa: S101 - only such a sign is asked
        pattern, begins = self.matches, _LEADS.match(self.matches.pattern)
        if not begins or _is_divided(pattern.pattern):
            return pattern.search
        ignores, leads = pattern.flags & re.IGNORECASE, begins[1].split("|")

        def search(words: str) -> re.Match[str] | None:
            # Beyond ASCII a letter has several other forms, and the lower one may be longer.
            text = words.lower() if ignores else words
            places = [place for lead in leads if (place := text.find(lead)) >= 0] if words.isascii() else [0]
            return pattern.search(words, min(places)) if places else None

        return search

    @cached_property
    def asks_digits(self) -> bool:
        """Whether it matters which digits a line has: only without one the sign is in all lines of its form."""
        patterns = (one.pattern for one in (self.matches, self.who) if one)
        return bool(_DIGIT.search(" ".join((self.needle, *(_REPETITION.sub("", pattern) for pattern in patterns)))))


def _failures(subjects: Mapping[str, Mapping[str, Any]], patterns: Mapping[str, str]) -> Iterator[KnownFailure]:
    for subject, entries in subjects.items():
        for slug, entry in entries.items():
            kind = entry.get("kind", "cause")
            signs = [sign for words in entry.pop("signs", ()) for sign in _signs(words, kind, patterns)]
            checks = tuple(entry.pop("checks", ()))
            yield KnownFailure(slug, subject, **entry, checks=checks, signs=tuple(signs))


def _signs(words: str | Mapping[str, Any], kind: str, patterns: Mapping[str, str]) -> Iterator[Sign]:
    if isinstance(words, str):
        yield Sign(words, "", SignKind[kind.upper()])
        return
    needles = words["needle"] if isinstance(words["needle"], list) else [words["needle"]]
    pattern = words.get("pattern", "")
    for name, part in patterns.items():
        pattern = pattern.replace(f"(?&{name})", part)
    kind = words.get("kind", kind)
    for text in needles:
        yield Sign(
            text,
            pattern,
            SignKind[kind.upper()],
            tuple(words.get("explains", ())),
            tuple(words.get("unless", ())),
            tuple(words.get("only", ())),
            words.get("instead", ""),
            words.get("who", ""),
            tuple(words.get("until", ())),
            words.get("code", False),
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
            only=sign.only,
            instead=sign.instead,
            who=re.compile(sign.who) if sign.who else None,
            until=sign.until,
            code=sign.code,
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

# What else a line is looked at for: errors, starts and stops, and what programs without levels write.
_LOOKED_FOR = (
    *("rror:", ": error", "Error", "Exception", "Exit", ".errors.", ".exc.", ".exceptions.", "Interrupt", "Expired"),
    *("ERROR", "CRITICAL", "FATAL", "Traceback", "panic:", "Segmentation fault", "core dumped", "Killed", "Aborted"),
    *(" E ", " F ", " C ", "[E", "[F", "NCCL WARN", "above exception", COMMUNICATORS, CONNECTED, *RANK_WORDS),
    *(
        *progress.START,
        progress.OWN_START,
        progress.OWN_STOP,
        *progress.GROUP_START,
        *progress.SIGNALLED,
        "[shutdown] ",
    ),
    *(*progress.QUIET_WORDS, progress.LEAVES, progress.RATES),
)
_BY_NEEDLE: dict[str, list[LogPattern]] = {text: [] for text in _LOOKED_FOR}
for _known in SIGNS:
    _BY_NEEDLE.setdefault(_known.needle, []).append(_known)
NEEDLES = {needle(text.encode()): tuple(known) for text, known in _BY_NEEDLE.items()}


class LineKind(NamedTuple):
    """What a line can be by the needles in it: its signs; a start or a stop, one of the work, one without a level."""

    signs: tuple[LogPattern, ...]
    turns: bool = True
    works: bool = True
    quiet: bool = True
    steady: bool = False  # none of its signs asks which digits the line has


# A line that has one of these marks has a needle that is a part of it, too.
WORKS = (progress.LEAVES, progress.RATES, COMMUNICATORS, CONNECTED, *RANK_WORDS)
_MARKS = (progress.TURNS, WORKS, progress.QUIET_WORDS)
_KINDS = tuple(
    LineKind(known, *(any(one.text.decode() in mark for mark in marks) for marks in _MARKS))
    for one, known in NEEDLES.items()
)


@lru_cache(4096)
def kind_of(numbers: tuple[int, ...]) -> LineKind:
    """What a line is that holds the needles of these numbers, in the order of NEEDLES."""
    kinds = [_KINDS[number] for number in sorted(set(numbers))]
    signs = tuple(chain.from_iterable(kind.signs for kind in kinds))
    turns, works, quiet = (any(kind[at] for kind in kinds) for at in (1, 2, 3))
    return LineKind(signs, turns, works, quiet, not any(known.asks_digits for known in signs))
