"""The judgement on host keys, without a server."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_cluster.transport.host_keys import (
    KeyStatus,
    check_key,
    entry,
    fingerprint,
    known_types,
    lookup_name,
    matches,
    parse,
)


def blob(kind: str, body: bytes) -> bytes:
    return len(kind).to_bytes(4, "big") + kind.encode() + body


ED, OTHER, RSA = blob("ssh-ed25519", b"1"), blob("ssh-ed25519", b"2"), blob("ssh-rsa", b"3")


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


# fault: transport/host_keys.py: CHANGED, (same_type or plain)[0] → UNKNOWN
@given(name=st.from_regex(r"[a-z0-9.:%-]{1,30}", fullmatch=True), port=st.integers(1, 65535), hashed=st.booleans())
def test_what_is_noted_is_found(name: str, port: int, hashed: bool) -> None:
    keys = parse(entry(lookup_name(name, port), ED, hashed=hashed), "f")
    assert check_key(keys, name, port, None, ED).verdict is KeyStatus.OK
    assert check_key(keys, name, port, None, OTHER).verdict is KeyStatus.CHANGED
    assert check_key(keys, name, port % 65535 + 1, None, OTHER).verdict is KeyStatus.UNKNOWN
    assert check_key(keys, f"{name}x", port, None, ED).verdict is KeyStatus.UNKNOWN


@given(st.text(max_size=300))
def test_any_file_can_be_read(text: str) -> None:
    for key in parse(text, "f"):
        matches(key.names, "host")


@pytest.mark.parametrize(
    ("names", "host", "hit"),
    [
        ("a", "a", True),
        ("A", "a", True),
        ("a", "A", True),
        ("b,a", "a", True),
        ("a*", "abc", True),
        ("a?", "ab", True),
        ("a?", "abc", False),
        ("*,!ab", "ab", False),
        ("!ab,*", "ab", False),
        ("!ab", "cd", False),
        ("[h]:22", "[h]:22", True),
        ("[h]:22", "h:22", False),
        ("a.b", "axb", False),
        ("|1|bad", "a", False),
        ("|1|!|!", "a", False),
        ("", "a", False),
    ],
)
def test_names(names: str, host: str, hit: bool) -> None:
    assert matches(names, host) is hit


def test_the_line_that_decided_is_reported() -> None:
    keys = parse(f"# x\nh ssh-rsa {b64(RSA)}\nh ssh-ed25519 {b64(OTHER)}\n", "/f")
    judgement = check_key(keys, "h", 22, None, ED)
    assert judgement.verdict is KeyStatus.CHANGED
    assert judgement.line is not None
    assert judgement.line.where == "/f:3"


def test_an_authority_is_not_a_known_key_but_is_reported() -> None:
    judgement = check_key(parse(f"@cert-authority h ssh-ed25519 {b64(OTHER)}\n", "f"), "h", 22, None, ED)
    assert judgement.verdict is KeyStatus.UNKNOWN
    assert judgement.authority


def test_the_known_types_are_listed_in_order() -> None:
    keys = parse(f"h ssh-rsa {b64(RSA)}\n@revoked h ssh-ed25519 {b64(OTHER)}\nx ssh-ed25519 {b64(ED)}\n", "f")
    assert known_types(keys, "h", 22, None) == ("ssh-rsa",)


def test_a_fingerprint_is_written_as_ssh_writes_it() -> None:
    body = base64.b64decode("AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl")
    assert fingerprint(body) == "SHA256:+DiY3wvvV6TuJJhbpZisF/zLDA0zPMSvHdkr4UvCOqU"


# fault: transport/host_keys.py: and key.blob == → and not key.
@pytest.mark.parametrize("more", ["", f"h ssh-ed25519 {b64(ED)}\n"])
def test_a_revoked_key_is_refused_though_another_line_knows_it(more: str) -> None:
    keys = parse(f"{more}@revoked * ssh-ed25519 {b64(ED)}\n", "f")
    assert check_key(keys, "h", 22, None, ED).verdict is KeyStatus.REVOKED
    assert check_key(keys, "h", 22, None, OTHER).verdict is (KeyStatus.CHANGED if more else KeyStatus.UNKNOWN)
