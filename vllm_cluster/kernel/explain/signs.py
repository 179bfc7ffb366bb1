"""Which signs a line holds, and which of them count at its level."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache

from vllm_cluster.kernel.explain import progress
from vllm_cluster.kernel.explain.catalogue import SIGNS, LogPattern
from vllm_cluster.kernel.explain.failure import SignKind
from vllm_cluster.kernel.explain.frame import Judged, Nearby, may_be_half, may_refuse, reads_a_model, refuses
from vllm_cluster.kernel.explain.log_line import LogLine

# What vLLM's own checks of its settings raise is a refusal, of any text.
REFUSED = LogPattern("combination-unsupported", "rror", None, SignKind.BROAD)
# Its words name neither the file nor that it is one of the model's: that is in the traceback.
HALF_FILE = LogPattern("file-incomplete", "DecodeError", None, SignKind.BROAD)
# Transformers' table of models has no such type: its name is the whole message.
NO_SUCH_MODEL = LogPattern("architecture-unknown", "KeyError", None, SignKind.BROAD)


def by_place(parsed: LogLine, nearby: Nearby, names: frozenset[str]) -> list[LogPattern]:
    """The failures that an exception is of by the code that raised it."""
    words = parsed.words
    refused, half, key = may_refuse(words), may_be_half(words), words.startswith("KeyError: ")
    frame = nearby.frame(parsed.who, names) if refused or half or key else None
    if key and frame and frame.file.endswith("models/auto/configuration_auto.py"):
        return [NO_SUCH_MODEL]
    found = [REFUSED] if refused and refuses(words, frame) else []
    return [*found, HALF_FILE] if half and reads_a_model(frame) else found


def classify(words: str, signs: Iterable[LogPattern] = SIGNS) -> Judged:
    """The signs that a line holds, of those that it may hold, and whether it reports a failure at all."""
    # A traceback quotes the statement above the message that it raised: `raise NoSpace("no space left")`.
    if words.startswith("raise "):
        return (), False
    found = _signs_in(words, signs)
    # What is only possible, or what a command is given, has not been seen.
    if found and (possible := progress.POSSIBLE.search(words)):
        words = words[: possible.start()]
        found = _signs_in(words, found)
    if found and progress.COMMAND.match(words):
        return tuple(one for one in found if one.kind is SignKind.FACT), False
    if not found:
        return (), progress.is_trouble(words)
    if len(found) > 1:
        # One pattern is found by several words.
        found = list({(known.failure, known.kind, known.matches or known.needle): known for known in found}.values())
        # What is harmless in any case may quote the failure that it warns of: a limit, and `Too many open files`.
        found = [known for known in found if known.kind is SignKind.HARMLESS and not known.failure] or found
    return tuple(found), progress.is_trouble(words)


def _signs_in(words: str, signs: Iterable[LogPattern]) -> list[LogPattern]:
    return [one for one in signs if one.needle in words and (one.matches is None or one.search(words))]


@cache
def _milder(known: LogPattern, *, mild: bool) -> LogPattern:
    """What warns may be so; what ends a start is an error: a cause is then only what nothing louder explains."""
    if known.kind > SignKind.CONSEQUENCE:
        return known
    if not mild and known.kind is not SignKind.CAUSE:
        return known
    return replace(known, kind=SignKind.BROAD if known.kind is SignKind.CAUSE else known.kind, mild=mild)


def judge_line(parsed: LogLine, nearby: Nearby) -> Judged:
    """The signs of a line that count, and whether it reports a failure; once for all lines of a form."""
    # At DEBUG vLLM reports attempts that it gives up as part of a normal start.
    if parsed.level == "DEBUG":
        return (), False
    if nearby.judged:
        return nearby.judged[0]
    found, trouble = classify(parsed.words, nearby.kind.signs)
    if (found or trouble) and nearby.quotes(parsed.who, parsed.words):
        found, trouble = tuple(known for known in found if known.code), False
    judged = applicable(found, parsed, trouble=trouble) if found else (), trouble
    if nearby.judged is not None:
        nearby.judged.append(judged)
    return judged


def applicable(found: Iterable[LogPattern], parsed: LogLine, *, trouble: bool) -> tuple[LogPattern, ...]:
    """The signs in a line that count, for who writes it and at which level."""
    found = [known for known in found if known.who is None or known.who.search(parsed.who)]
    # What works is reported in any words: flags, prompts, configurations, attempts.
    if parsed.informs or (not parsed.loud and not trouble and progress.GIVES_WAY.search(parsed.words)):
        found = [known for known in found if known.kind > SignKind.CONSEQUENCE]
    if parsed.calm:
        # Ray reports at this level that a rank or a host has ended.
        found = [_milder(known, mild=parsed.level != "W") for known in found]
    return tuple(found)
