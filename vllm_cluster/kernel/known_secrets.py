"""Takes secrets that are known out of text: as they are, in the forms they travel in, and behind escapes.

A text is looked through twice: as it is, and without the escapes, colours and line ends that programs put into it. So a
further way of escaping is a line here rather than a form of every secret, and two ways may be mixed.
"""

from __future__ import annotations

import base64
import html
import re
import shlex
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote_plus

from vllm_cluster.kernel.text import REDACTED, redact

# A shorter value occurs in too much that is not secret.
MIN_SECRET = 6
# Of a text, without escapes at once.
PIECE = 64 << 10
# Characters compared in all texts of one origin, and what each comparison counts for: 30,000 near 128 long secrets took
# 22 s.
MAX_COMPARED, COMPARED_ONCE = 20_000_000_000, 2_000

Forms = Mapping[str, Sequence[tuple[int, set[str]]]]
# Where a secret is, or, without an end, where a text begins that is too much like secrets.
Place = tuple[int, int | None]

_SIGN = r"%(?:25){0,3}"
# What docker, Ray and vLLM write before a line.
_BEFORE = (
    r"(?:\d{4}-\d\d-\d\dT[\d:.]{8,20}Z )?(?:\(\w{1,40} pid=\d{1,10}(?:, ip=[\d.]{1,40})?\) )?"
    r"(?:[A-Z]{4,8} \d\d-\d\d \d\d:\d\d:\d\d \[[^\]\n]{1,80}\] )?[ \t]{0,400}"
)
# No character that is seen.
_NOTHING = r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f\xad\u200b-\u200f\u2028-\u202e\u2060-\u2064\ufeff"
_ESCAPE = re.compile(
    r"(?:\x1b|\\{1,16}+(?:x1b|u001b|033|e))\[[\d;:]{0,40}[A-Za-z]"
    rf"|[\r\n]{{1,8}}{_BEFORE}|[{_NOTHING}]{{1,400}}"
    r"|\\{1,16}+(?:u(?P<u>[0-9A-Fa-f]{4})|x(?P<x>[0-9A-Fa-f]{2})|(?P<o>[0-3][0-7]{2})|[nrt])?"
    rf"|(?P<url>(?:{_SIGN}[89A-Fa-f][0-9A-Fa-f]){{1,48}}|{_SIGN}[0-7][0-9A-Fa-f])"
    r"|&(?:amp;){0,3}(?P<html>#\d{2,7}|#[xX][0-9A-Fa-f]{2,6}|[A-Za-z]{2,8});"
)
_HIDDEN = re.compile(rf"[\r\n{_NOTHING}]")
# How escapes begin. What is behind one that is not finished may be taken for the rest of it.
_BEGUN = ("\x1b[", "\\", "%", "&")


@dataclass
class Comparisons:
    """How many characters may still be compared in the texts of one origin, which may be made to look like secrets."""

    left: int = field(default_factory=lambda: MAX_COMPARED)


def redactor(secrets: Iterable[str]) -> Callable[[str, Comparisons], str]:
    """Takes these secrets out of a text, and all that looks like one.

    Once the budget is used up, a text ends where the first is like a secret.
    """
    every = {form for secret in secrets if len(secret) >= MIN_SECRET for form in _forms(secret)}
    # By how they begin and by their length: of an alternation of thousands of forms 1 MB of text took a minute.
    whole = every | set(map(_without_escapes, every))
    rests = {rest for form in whole for rest in _rests(form) if len(rest) >= MIN_SECRET} - whole
    forms, behind = _by_begin(whole), _by_begin(whole | rests)

    def without(text: str, budget: Comparisons) -> str:
        text = _cut(text, _places(forms, text, budget))
        plain = _without_escapes(text)
        places = _places(behind, plain, budget)
        without_begin = {begin for begin, end in places if plain[begin:end] in rests}
        del plain
        return redact(_cut(text, _before_escapes(text, places, without_begin)))

    return without


def _by_begin(every: Iterable[str]) -> Forms:
    known: dict[str, dict[int, set[str]]] = {}
    for form in every:
        known.setdefault(form[:MIN_SECRET], {}).setdefault(len(form), set()).add(form)
    # The longest first: a part of a form that is left would give away the rest.
    return {begin: sorted(of.items(), reverse=True) for begin, of in known.items()}


def _rests(form: str) -> Iterator[str]:
    """What is left of a form where its begin is taken for that of an escape."""
    for begun in _BEGUN:
        if (escape := _ESCAPE.match(begun + form)) and escape.end() > len(begun):
            yield form[escape.end() - len(begun) :]


def _forms(secret: str) -> Iterator[str]:
    raw = secret.encode()
    yield from (secret, quote_plus(secret), shlex.quote(secret), raw.hex(), raw.hex().upper())
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        # Within a longer text a value begins at any of three places of a group; its ends mix with its neighbours.
        for before in range(3):
            whole = encode(b"\0" * before + raw).decode().rstrip("=")
            middle = whole[-(-before * 8 // 6) : len(whole) - (1 if (before + len(raw)) % 3 else 0)]
            if len(middle) >= MIN_SECRET:
                yield middle


def _places(forms: Forms, text: str, budget: Comparisons) -> list[Place]:
    """Where these forms are; they are by how they begin, and then by their length."""
    found, done = list[Place](), 0
    for at in (at for at in range(len(text) - MIN_SECRET + 1) if text[at : at + MIN_SECRET] in forms):
        if at < done:
            continue
        those = forms[text[at : at + MIN_SECRET]]
        budget.left -= sum(length + COMPARED_ONCE for length, _ in those)
        if budget.left < 0:
            return [*found, (at, None)]
        if length := next((length for length, of in those if text[at : at + length] in of), 0):
            done = at + length
            found.append((at, done))
    return found


def _cut(text: str, places: Iterable[Place]) -> str:
    """The text without what is at these places."""
    kept, done = list[str](), 0
    for begin, end in places:
        kept += text[done:begin], REDACTED
        done = len(text) if end is None else end
        kept += (" (too much like secrets to look through the rest)",) if end is None else ()
    return "".join((*kept, text[done:])) if done else text


def _without_escapes(text: str) -> str:
    # By pieces: of a text with short lines `sub` keeps a list of more than twice its size.
    return "".join(_ESCAPE.sub(_meant, piece) for piece in _between_lines(text))


def _between_lines(text: str) -> Iterator[str]:
    """The text in pieces, each but the first beginning with the end of a line: no escape has one within."""
    begin = 0
    while begin < len(text):
        end = text.find("\n", begin + PIECE)
        end = end if end > 0 else len(text)
        yield text[begin:end]
        begin = end


def _meant(escape: re.Match[str]) -> str:
    """What an escape means; nothing where that is not seen."""
    kind = escape.lastgroup
    if not kind:
        return ""
    code = escape[kind]
    if kind == "url":
        meant = bytes.fromhex("".join(part[-2:] for part in code.split("%"))).decode("utf-8", "replace")
    else:
        meant = html.unescape(f"&{code};") if kind == "html" else chr(int(code, 8 if kind == "o" else 16))
    return _HIDDEN.sub("", meant)


def _before_escapes(text: str, places: Iterable[Place], without_begin: Container[int]) -> Iterator[Place]:
    """The places in a text of these places in it without escapes; some have their begin in the escape before them."""
    pieces, at, length, begin, end, run = _pieces(text), 0, 0, 0, 0, 0
    for first, behind in places:
        while first >= at + length:
            # Where the escapes begin that are directly before what is next.
            run = end if length == end - begin > 0 else run
            at, (length, begin, end) = at + length, next(pieces)
        start = begin + (first - at if length == end - begin else 0)
        if first in without_begin and start == begin:
            start = run
        if behind is None:
            yield start, None
            return
        while behind > at + length:
            at, (length, begin, end) = at + length, next(pieces)
        run = end
        yield start, begin + behind - at if length == end - begin else end


def _pieces(text: str) -> Iterator[tuple[int, int, int]]:
    """What is between escapes, and the escapes: how long it is without them, where it begins and ends."""
    done = 0
    for escape in _ESCAPE.finditer(text):
        yield escape.start() - done, done, escape.start()
        yield len(_meant(escape)), escape.start(), escape.end()
        done = escape.end()
    yield len(text) - done, done, len(text)
