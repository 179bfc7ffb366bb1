"""Secrets leave no trace in what is shown or packed: not as they are, not as they travel."""

from __future__ import annotations

import base64
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.logs import explained
from vllm_cluster.explain.redact import GONE, patterns_out, redactor

CANARY = "cänary/+key with=0123456789"
TEXT = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=9, max_size=40)


def forms(secret: str) -> list[str]:
    """The ways in which a secret travels."""
    raw = secret.encode()
    whole = [secret, quote(secret, safe=""), quote(secret), raw.hex()]
    return [*whole, base64.b64encode(raw).decode(), base64.urlsafe_b64encode(raw).decode()]


@pytest.mark.parametrize("form", forms(CANARY))
def test_a_known_secret_is_taken_out_in_every_form(form: str) -> None:
    shown = redactor([CANARY])(f"before {form} after")
    assert shown.startswith("before ")
    assert form.rstrip("=") not in shown


@given(secret=TEXT, before=st.binary(max_size=5), after=st.binary(max_size=5))
def test_within_a_longer_base64_text_too(secret: str, before: bytes, after: bytes) -> None:
    """Of what is left, no six bytes of the secret can be read."""
    shown = redactor([secret])(base64.b64encode(before + secret.encode() + after).decode())
    left = shown.split(GONE)
    assert len(left) > 1
    assert max(map(len, left)) <= 4 * (1 + -(-max(len(before), len(after)) // 3)) + 4


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("token hf_abcdefghijklmnop used", "token [secret] used"),
        ("Authorization: Bearer abc.def-ghi", "Authorization: Bearer [secret]"),
        (
            "non-default args: {'api_key': ['s3cr3tvalue'], 'port': 8000}",
            "non-default args: {'api_key': ['[secret]'], 'port': 8000}",
        ),
        ("AWS_SECRET_ACCESS_KEY=abcd/efgh+ijkl", "AWS_SECRET_ACCESS_KEY=[secret]"),
        ("key AKIAABCDEFGHIJKLMNOP", "key [secret]"),
        ("proxy http://me:pass@host:3128/x", "proxy http://[secret]@host:3128/x"),
        ("sk-abcdefghijklmnop1234", "[secret]"),
        ("-----BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY-----", "[secret]"),
        ("max_tokens=16 and num_tokens: 1024", "max_tokens=16 and num_tokens: 1024"),
        ("bos_token_id=128000, eos_token: None", "bos_token_id=128000, eos_token: None"),
        ("http://10.0.0.1:8000/v1/completions", "http://10.0.0.1:8000/v1/completions"),
        ("Ray: 2.56.1 token authentication is on", "Ray: 2.56.1 token authentication is on"),
    ],
)
def test_what_looks_like_a_secret_goes_and_the_rest_stays(text: str, kept: str) -> None:
    assert patterns_out(text) == kept


def test_a_verdict_shows_none() -> None:
    found = explained("OSError: [Errno 28] No space left on device: hf_abcdefghijklmnopqrst Bearer 0123456789abcdef\n")
    assert found.cause
    assert found.cause.places[0].text.count(GONE) == 2
    assert "abcdefgh" not in repr(found)
