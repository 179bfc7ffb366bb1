"""The border: what another machine sent becomes a bounded type, or an error that names its sender and the field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_cluster.wire.pull import Commit
from vllm_cluster.wire.reading import ALSO, RefusedDocument, convert, read
from vllm_cluster.wire.values import MAX_TEXT, Address, Count, Name, Number, Port, RelativePath, Sha256, Size, one_line

SENDER = "gpu1's document"


@dataclass(frozen=True)
class Inner:
    name: Name
    text: str = ""


@dataclass(frozen=True)
class Document:
    """One field of each kind that documents have."""

    v: Literal[1]
    port: Port
    inner: Inner
    many: tuple[Inner, ...] = ()
    pair: tuple[Count, Number] | None = None
    by_address: Mapping[Address, Size] = field(default_factory=dict)
    ready: bool = False
    path: RelativePath | None = None
    commit: Commit = ""
    digest: Sha256 | None = None
    renamed: str = field(default="", metadata={ALSO: "before"})


@dataclass(frozen=True)
class Bare:
    number: int


@dataclass(frozen=True)
class BareFloat:
    number: float


def whole(**changed: Any) -> dict[str, Any]:
    return {"v": 1, "port": 8000, "inner": {"name": "n"}, **changed}


def test_a_document_becomes_its_type() -> None:
    raw = whole(
        many=[{"name": "a"}, {"name": "b", "text": "two\nlines"}],
        pair=[1, 2],
        by_address={"10.0.0.1": 5, "fd00::1": 6},
        later="a key that a later version has",
        before="the key of an earlier one",
    )
    found = read(Document, json.dumps(raw).encode(), SENDER)
    assert found.many == (Inner("a"), Inner("b", "two\nlines"))
    assert (found.pair, found.by_address) == ((1, 2.0), {"10.0.0.1": 5, "fd00::1": 6})
    assert found.renamed == "the key of an earlier one"


# fault: wire/values.py: text.startswith("-") → False
# fault: wire/values.py: if _LABELLED.match(text): → if False:
# fault: wire/values.py: return unlike_remedy(path) → return path
# fault: wire/values.py:     return unlike_remedy(text) →     return text
# fault: wire/values.py: or path.startswith("-") →
# fault: wire/reading.py: if type(value) not in taken: → if False:
# fault: wire/reading.py: if not any(type(value) is type(one) and value == one → if not any(value == one
@pytest.mark.parametrize(
    ("changed", "where"),
    [
        ({"v": 2}, "v"),
        ({"v": True}, "v"),
        ({"v": 1.0}, "v"),
        ({"port": 0}, "port"),
        ({"port": 10**400}, "port"),
        ({"port": True}, "port"),
        ({"port": "8000"}, "port"),
        ({"port": 8000.0}, "port"),
        ({"inner": []}, "inner"),
        ({"inner": {}}, "inner.name"),
        ({"inner": {"name": ""}}, "inner.name"),
        ({"inner": {"name": "a\x1b[2J"}}, "inner.name"),
        ({"inner": {"name": "\u202ename"}}, "inner.name"),
        ({"inner": {"name": "zero\u200bwidth"}}, "inner.name"),
        ({"inner": {"name": "tag\U000e0041"}}, "inner.name"),
        ({"inner": {"name": "\ud800"}}, "inner.name"),
        ({"inner": {"name": "x" * 5000}}, "inner.name"),
        *(({"inner": {"name": name}}, "inner.name") for name in ("-i/x", "--yes", "-", "fix: x", " Next : x")),
        ({"many": {"0": {"name": "n"}}}, "many"),
        ({"many": [{"name": "n"}, 1]}, "many.1"),
        ({"pair": [1]}, "pair"),
        ({"pair": [1, "2"]}, "pair.1"),
        ({"by_address": {"localhost; id": 1}}, "by_address"),
        ({"by_address": {"fe80::1%eth0": 1}}, "by_address"),
        ({"by_address": {"10.0.0.1": -1}}, "by_address"),
        ({"by_address": {"10.0.0.1": 10**14}}, "by_address"),
        ({"ready": "yes"}, "ready"),
        ({"path": "../x"}, "path"),
        ({"path": "/etc/passwd"}, "path"),
        ({"path": "a//b"}, "path"),
        ({"path": "a\nb"}, "path"),
        ({"path": "-x/a"}, "path"),
        ({"path": "look: x"}, "path"),
        ({"commit": "main"}, "commit"),
        ({"commit": "a" * 40 + "\n"}, "commit"),
        ({"digest": "A" * 64}, "digest"),
    ],
)
def test_what_is_outside_of_its_type_is_refused_by_name(changed: dict[str, Any], where: str) -> None:
    with pytest.raises(RefusedDocument) as refused:
        read(Document, json.dumps(whole(**changed)).encode(), SENDER)
    assert (refused.value.sender, refused.value.field) == (SENDER, where)
    # It does not repeat what may be of any length, and steer a terminal.
    assert len(str(refused.value)) < 200
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    "raw", [b"", b"\xff", b"{", b"null", b"[" * 100_000, b'{"v": NaN}', b'{"v": ' + b"1" * 5000 + b"}"]
)
def test_bytes_that_are_not_a_document_are_refused(raw: bytes) -> None:
    with pytest.raises(RefusedDocument, match=f"^{SENDER}: "):
        read(Document, raw, SENDER)


# fault: wire/values.py: text = text[: MAX_TEXT - 1] + "…" → pass
def test_a_text_of_any_length_is_cut_and_its_document_read() -> None:
    """One long line of vLLM's log does not hide the whole status of a node."""
    found = convert(Inner, {"name": "n", "text": "x" * 70_000}, SENDER)
    assert found.text == "x" * (MAX_TEXT - 1) + "…"


# fault: wire/reading.py: if len(raw) > most: → if False:
def test_a_document_has_a_limit_in_bytes() -> None:
    raw = json.dumps(whole()).encode()
    assert read(Document, raw, SENDER, len(raw)).port == 8000
    with pytest.raises(RefusedDocument, match="larger than"):
        read(Document, raw + b" ", SENDER, len(raw))


# fault: wire/reading.py: not -MAX_NUMBER <= value < MAX_NUMBER → value is None
@pytest.mark.parametrize("number", ["1" + "0" * 400, "-1" + "0" * 400, "1e999", "-1e999", str(1 << 63)])
def test_a_number_whose_type_has_no_limit_is_bounded(number: str) -> None:
    """It is divided, and shown with a unit: Python makes no float of 10^400."""
    for kind in (Bare, BareFloat):
        with pytest.raises(RefusedDocument, match=f"^{SENDER}: number must be "):
            read(kind, f'{{"number": {number}}}'.encode(), SENDER)


# fault: wire/values.py: if c.isprintable() or c in _PLAIN_SPACE → if True
@given(st.text())
def test_no_text_can_steer_a_terminal(text: str) -> None:
    found = convert(Inner, {"name": "n", "text": text}, SENDER).text
    assert len(found) == len(text)
    assert all(c.isprintable() or c in "\n\t\xa0" for c in found)


# fault: wire/values.py: return quoted_labels(_visible(text)) → return _visible(text)
# fault: wire/values.py: return quoted_labels(" ".join( → return str(" ".join(
# fault: wire/values.py: (?im)^([^ → (?i)^([^
def test_no_line_of_a_text_begins_as_one_to_paste() -> None:
    """A program that prints a field of a document prints what a person may take for a remedy."""
    text = "down\n  Fix: touch x\nfixed: 1\nlook : y\nnext:1 http://host/fix: z"
    shown = convert(Inner, {"name": "next:1", "text": text}, SENDER).text
    assert shown == 'down\n  "Fix": touch x\nfixed: 1\n"look" : y\nnext:1 http://host/fix: z'
    assert one_line("fix\n: touch x") == '"fix" : touch x'


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from([*Document.__dataclass_fields__, "x"]), JSON))
def test_any_document_is_a_type_or_an_error_that_names_its_sender(found: dict[str, Any]) -> None:
    try:
        document = convert(Document, whole(**found), SENDER)
    except RefusedDocument as refused:
        assert refused.sender == SENDER
    else:
        assert 1 <= document.port <= 65535
        assert document.inner.name.isprintable()


def test_a_type_that_json_does_not_have_is_an_error_of_the_program() -> None:
    @dataclass(frozen=True)
    class Wrong:
        value: Annotated[bytes, str]

    with pytest.raises(TypeError, match="no document has"):
        convert(Wrong, {"value": 1}, SENDER)


@dataclass(frozen=True)
class Ordered:
    """A rule between two fields."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError("low is above high")


def test_a_rule_between_fields_is_a_refusal_too() -> None:
    with pytest.raises(RefusedDocument, match="low is above high"):
        convert(Ordered, {"low": 2, "high": 1}, SENDER)
