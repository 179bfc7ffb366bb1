"""Takes secrets out of text: those that are known, in the forms they travel in, and what looks like one."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable
from urllib.parse import quote

GONE = "[secret]"
_LEAST = 6  # a shorter value stands in too much that is none

_SHAPES = (
    re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[\s\S]{0,20000}?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)"),
    re.compile(r"\bhf_[A-Za-z0-9_]{8,200}"),
    re.compile(r"\bsk-[A-Za-z0-9_-]{12,200}"),
    re.compile(r"\bnvapi-[A-Za-z0-9_-]{12,200}"),
    re.compile(r"\b(?:gh[pousr]_|github_pat_|glpat-|xox[abp]-)[A-Za-z0-9_-]{10,200}"),
    re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    re.compile(r"\bAIza[0-9A-Za-z_-]{30,50}"),
    re.compile(r"\beyJ[A-Za-z0-9_-]{10,2000}\.[A-Za-z0-9_-]{10,4000}\.[A-Za-z0-9_-]{10,1000}"),
)
# What is kept stands in the first group.
_NAMED = (
    re.compile(r"(?i)(\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{6,4000}"),
    re.compile(r"(\b[a-z][a-z0-9+.-]{1,20}://)[^\s/@:]{0,200}(?::[^\s/@]{0,400})?(?=@)"),
    re.compile(
        r"""(?ix)(\b[a-z0-9_.-]{0,40}(?:passwd|password|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credentials?)
        (?:_?id)?["']?\s{0,3}(?:=|:|\s=>)\s{0,3}\[?\s{0,3}["']?)(?!\[?secret\]|none\b|null\b|true\b|false\b|\d{1,7}\b)
        [^\s"',;\])}&]{6,4000}"""
    ),
)


def patterns_out(text: str) -> str:
    """The text without what looks like a secret."""
    for shape in _SHAPES:
        text = shape.sub(GONE, text)
    for named in _NAMED:
        text = named.sub(lambda found: found[1] + GONE, text)
    return text


def redactor(secrets: Iterable[str]) -> Callable[[str], str]:
    """Takes these secrets out of a text, and whatever else looks like one."""
    forms = {form for secret in secrets if len(secret) >= _LEAST for form in _forms(secret)}
    # The longest first: a part of a form that is left would tell of the rest.
    known = re.compile("|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True))) if forms else None

    def redact(text: str) -> str:
        return patterns_out(known.sub(GONE, text) if known else text)

    return redact


def _forms(secret: str) -> Iterable[str]:
    raw = secret.encode()
    yield secret
    yield quote(secret, safe="")
    yield quote(secret)
    yield raw.hex()
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        # Within a longer text a value begins at any of three places of a group; its ends mix with its neighbours.
        for before in range(3):
            whole = encode(b"\0" * before + raw).decode().rstrip("=")
            middle = whole[-(-before * 8 // 6) : len(whole) - (1 if (before + len(raw)) % 3 else 0)]
            if len(middle) >= _LEAST:
                yield middle
