"""Arrays of prompts that are read entry by entry."""

from __future__ import annotations

import io
import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_cluster.features.batch.on_head import arrays
from vllm_cluster.features.batch.on_head.arrays import ArrayReader

MB = 1 << 20
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


def entries(text: str) -> list[object]:
    return list(ArrayReader(io.StringIO(text)).entries())


# fault: features/batch/on_head/arrays.py: if self._text[end : end + 1] in _ENDS or not self._more(): → if True:
@given(st.lists(VALUES), st.sampled_from([None, 1]), st.integers(1, 9))
def test_an_array_is_read_as_python_reads_it_in_parts_of_any_size(
    rows: list[object], indent: int | None, part: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "PART", part)
        assert entries(f" {json.dumps(rows, indent=indent)} \n") == rows


@pytest.mark.parametrize("text", ["", "[", "[1", "[1,", "[1,]", "[1 2]", "[]]", "[1] x", "{}", '["a', "[,]", "[01]"])
def test_other_texts_than_arrays_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"Exp|Unterm|Extra"):
        entries(text)


# fault: features/batch/on_head/arrays.py: self.line + lines, len(passed) - passed.rfind("\n") → self.line + lines, 1
def test_a_fault_is_named_by_its_line_and_character() -> None:
    reader = ArrayReader(io.StringIO('["a",\n ["x",\n "y"], oops]'))
    with pytest.raises(ValueError, match="Expecting value"):
        list(reader.entries())
    assert (reader.line, reader.column) == (3, 8)


# fault: features/batch/on_head/arrays.py: if len(self._text) - self._at > MAX_ENTRY: → if False:
def test_an_entry_without_end_is_refused_before_all_of_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "MAX_ENTRY", 1000)
    monkeypatch.setattr(arrays, "PART", 10)
    file = io.StringIO('["' + "x" * 100_000)
    with pytest.raises(ValueError, match="an entry has more than 1000 characters"):
        list(ArrayReader(file).entries())
    assert file.tell() < 10_000


def test_an_array_of_many_entries_takes_the_memory_of_one() -> None:
    """As a whole one of 30 MB took 860 MB."""
    file = io.StringIO("[" + "[], " * 100_000 + "[]]")
    tracemalloc.start()
    try:
        assert sum(1 for _ in ArrayReader(file).entries()) == 100_001
        assert tracemalloc.get_traced_memory()[1] < 2 * MB
    finally:
        tracemalloc.stop()
