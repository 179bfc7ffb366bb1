"""Rows and lines of megabytes: one value of them is read without the rest."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vllm_cluster.features.batch.on_head import lines
from vllm_cluster.features.batch.on_head.files import BatchFiles, Work
from vllm_cluster.features.batch.on_head.large import MAX_DEPTH, SHORT, is_deep, member, plain_at
from vllm_cluster.features.batch.on_head.lines import Place, answer_row, checksum, parse
from vllm_cluster.features.batch.on_head.row_file import RowFile

PATH = ("a", "b")
KEYS = st.sampled_from(["a", "b", '\u00e9\\"', "]}"])
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)
CUTS = (b"", b",", b"]", b"}", b'"', b"\xff", b"x", b"1")


def as_python_reads_it(raw: bytes) -> object:
    """The value as Python finds it in the whole document; "refused" where it is none."""
    try:
        found = json.loads(raw.decode(), parse_constant=lines.no_constant)
    except ValueError:
        return "refused"
    for name in PATH:
        found = found.get(name) if isinstance(found, dict) else None
    return None if isinstance(found, dict | list) else found


# fault: features/batch/on_head/large.py: found = value if is_last and value not in _PAIRS else b"null" → found = value if value not in _PAIRS else b"null"
# fault: features/batch/on_head/large.py: escaped = (end - before) % 2 == 1 → escaped = False
# fault: features/batch/on_head/large.py: _match(_END, raw, at) → at = len(raw)
@settings(deadline=None)
@given(DOCUMENTS, st.sampled_from([None, 1]), st.booleans(), st.integers(0), st.none() | st.sampled_from(CUTS))
@example({"a": [1]}, None, True, 8, b"x")
def test_it_finds_what_python_finds_and_refuses_what_python_refuses(
    document: object, indent: int | None, ascii_only: bool, at: int, cut: bytes | None
) -> None:
    raw = json.dumps(document, indent=indent, ensure_ascii=ascii_only).encode()
    if cut is not None:
        place = at % (len(raw) + 1)
        raw = raw[:place] + cut + raw[place + len(cut) % 2 :]
    try:
        found = plain_at(raw, PATH)
    except ValueError:
        found = "refused"
    assert found == as_python_reads_it(raw)


# fault: features/batch/on_head/large.py: if closed[1] != _PAIRS[value]: → if not closed:
# fault: features/batch/on_head/large.py: if not raw.startswith(b'"'): → if not raw:
# fault: features/batch/on_head/large.py: if found[1] != _PAIRS[opened.pop()[0]]: → if not opened.pop():
# fault: features/batch/on_head/large.py: decoder.decode(raw[start : start + PIECE], final=start + PIECE >= len(raw)) → len(raw)
@pytest.mark.parametrize(
    "raw",
    [
        b"[1}",
        b'{"a":1]',
        b"[}",
        b"{]",
        b"{1:1}",
        b'{"c":["\xff",1]}',
        b'{"c":["\\x",1]}',
        b'"\xff"',
        b'"\xc3',
        b"[1,]",
        b'{"a":1,}',
        b"01",
        b"[1.]",
        b'"\x01"',
        b"NaN",
        b"",
    ],
)
def test_what_is_not_json_is_refused(raw: bytes) -> None:
    assert as_python_reads_it(raw) == "refused"
    with pytest.raises(ValueError):
        plain_at(raw, PATH)


@pytest.mark.parametrize(
    "raw", [b'{"a":{"b":1},"a":2}', b'{"a":{"b":1,"b":null}}', b'{"a":[{"b":1}]}', b'{"b":1}', b"7"]
)
def test_of_keys_that_come_twice_the_last_one_counts(raw: bytes) -> None:
    assert plain_at(raw, PATH) is as_python_reads_it(raw) is None


@pytest.mark.parametrize("text", ["x" * 5000, 'a"' * 2000, "\\\\" * 2001, "\\u00e9\\n" * 500, "\u00e9" * 300])
def test_texts_of_any_length_are_read(text: str) -> None:
    raw = json.dumps({"a": {"c": [text, text], text: 1, "b": text}}, ensure_ascii=False).encode()
    assert plain_at(raw, PATH) == as_python_reads_it(raw) == text


# fault: features/batch/on_head/large.py: for _ in range(MAX_DEPTH): → for _ in range(MAX_DEPTH - 1):
# fault: features/batch/on_head/large.py: for _ in range(MAX_DEPTH): → for _ in range(MAX_DEPTH + 1):
def test_depth_is_bounded() -> None:
    assert plain_at(b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1), PATH) is None
    assert not is_deep(b"[[], " + b"[" * (MAX_DEPTH - 1) + b"]" * MAX_DEPTH)
    assert is_deep(b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1))
    with pytest.raises(ValueError, match="nested too deeply"):
        plain_at(b"[" * 10_000_000, PATH)


# fault: features/batch/on_head/large.py: if raw.count(b"[") + raw.count(b"{") <= MAX_DEPTH: → if len(raw) < 1000:
# fault: features/batch/on_head/large.py: raw.replace(b"\\\\", b"").replace → raw.replace
# fault: features/batch/on_head/large.py: return plain_at(raw, (name,), known) → return json.loads(raw)[name]
@pytest.mark.parametrize("text", ["", "[" * 500, '"]' * 500, "\\" * 501, '\\"{' * 501, "x" * SHORT])
@pytest.mark.parametrize("kind", [b"[]", b"{}"])
def test_a_text_of_any_length_may_be_as_deep_as_any_other(kind: bytes, text: str) -> None:
    """A row that a head wrote could not be taken here: long ones were judged by one rule, and others by Python's."""
    begin, end = (b"[", b"]") if kind == b"[]" else (b'{"\\"": ', b"}")
    for depth in (1, MAX_DEPTH - 50, MAX_DEPTH + 1, 900):
        inner = begin * depth + kind + end * depth
        raw = b'{"t": %b, "s": [[], {}, %b], "custom_id": "a"}' % (json.dumps(text).encode(), inner)
        assert is_deep(raw) == (depth > MAX_DEPTH)
        if depth < MAX_DEPTH:
            assert member(raw, "custom_id", None) == "a"
            continue
        with pytest.raises(ValueError, match="nested too deeply"):
            member(raw, "custom_id", None)


REQUEST = {"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "p"}}


# fault: features/batch/on_head/large.py: if len(raw) > SHORT: → if False:
# fault: features/batch/on_head/large.py: found = plain_at(raw, path) → found = json.loads(raw)
@pytest.mark.parametrize("many", [b'{"":0},', b"[],"])
def test_a_row_of_a_head_and_a_line_of_a_colleague_take_little_memory(
    tmp_path: Path, many: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16 MB of small objects took 509 MB on this machine."""
    filler = b"[" + many * (SHORT // len(many)) + b"0]"
    raw = json.dumps({**REQUEST, "extra": 0}).encode().replace(b'"extra": 0', b'"extra": ' + filler)
    files = BatchFiles(tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    files.source.write_bytes(raw + b"\n")
    place = Place(1, checksum(raw))
    row = answer_row(
        parse(json.dumps(REQUEST).encode(), place, "m", {}), "x", b'{"model": "m", "choices": ' + filler + b"}"
    )
    whole = json.loads

    def read(text: bytes, **more: Any) -> Any:
        assert len(text) <= SHORT, "what Python makes of it takes thirty times its length"
        return whole(text, **more)

    monkeypatch.setattr(json, "loads", read)
    with ExitStack() as stack:
        work = Work(files, {}, stack)
        assert work.left == 1
        work.take(row)
        assert work.left == 0
    with ExitStack() as stack:
        assert Work(files, {}, stack).models == {"m"}


# fault: features/batch/on_head/row_file.py: RowFile(fresh, new=True) → RowFile(fresh)
def test_nothing_is_sorted_into_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever else may write in the folder could guess the name of the new file."""
    output, aim, name = tmp_path / "out.jsonl", tmp_path / "bashrc", "0" * 16
    aim.write_text("# mine\n")
    output.touch()
    link = tmp_path / f".out.jsonl.{name}.sorting"
    link.symlink_to(aim)
    monkeypatch.setattr("secrets.token_hex", lambda _: name)
    file = RowFile(output)
    with pytest.raises(lines.BatchProblem, match="File exists"):
        file.sort()
    os.close(file._fd)
    assert link.is_symlink() and aim.read_text() == "# mine\n"


# fault: features/batch/on_head/row_file.py: f".{path.name}.{secrets.token_hex(8)}.sorting" → f"{path.name}.sorting"
def test_a_file_of_the_person_is_not_sorted_away(tmp_path: Path) -> None:
    """The input of a batch of that name was removed once all of it was answered."""
    output, own = tmp_path / "out.jsonl", tmp_path / "out.jsonl.sorting"
    own.write_text("mine")
    file = RowFile(output)
    file.sort()
    os.close(file._fd)
    assert own.read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"out.jsonl", "out.jsonl.sorting"}
