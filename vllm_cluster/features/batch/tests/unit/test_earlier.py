"""Which batches on the head began with the beginning of an input."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from vllm_cluster.features.batch.earlier import earlier, keys, read_known
from vllm_cluster.features.batch.on_head.files import BatchFiles, Work
from vllm_cluster.features.batch.replies import BatchCall, JobEntry, JobState
from vllm_cluster.kernel.laptop import whoami

LINES = ['{"custom_id": "a"}\n', "\n", '{"custom_id": "b"}\n', '{"custom_id": "c"}']


def key_of(files: BatchFiles, fields: dict[str, Any]) -> str:
    with ExitStack() as stack:
        return Work(files, fields, stack).key


@pytest.mark.parametrize("text", ["".join(LINES), '["a", "b", "c"]'], ids=["lines", "an array"])
@pytest.mark.parametrize("fields", [{}, {"max_tokens": 8}])
def test_the_last_key_is_that_of_the_input_itself(text: str, fields: dict[str, Any], tmp_path: Path) -> None:
    files = BatchFiles(tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    files.source.write_text(text)
    found = [*keys(files, fields)]
    assert (len({*found}), found[-1]) == (3, key_of(files, fields))


# fault: features/batch/earlier.py: (one.asked.user, one.asked.output) == (me, output) → True
# fault: features/batch/earlier.py: - {key} → - {""}
def test_only_ones_own_of_the_same_output_and_options_are_found(tmp_path: Path) -> None:
    files = BatchFiles(tmp_path / "in.jsonl", tmp_path / "out.jsonl")

    def begun(text: str, output: Path, user: str = whoami(), **fields: Any) -> JobEntry:
        files.source.write_text(text)
        asked = BatchCall(user, 1.0, str(files.source), str(output))
        return JobEntry(key_of(files, fields), JobState(running=True, sent=True), asked)

    short = "".join(LINES[:1])
    entries = (
        begun(short, files.output, max_tokens=8),
        begun(short, tmp_path / "other.jsonl"),
        begun('{"custom_id": "z"}\n', files.output),
        begun(short, files.output),
        begun("".join(LINES), files.output),
    )
    files.source.write_text("".join(LINES))
    key = key_of(files, {})
    assert earlier(entries, files, {}, key) == [entries[3].key]
    assert earlier((begun(short, files.output, "ann@laptop"), entries[1]), files, {}, key) == []


# fault: features/batch/earlier.py: if one in mine), LOOKED_AT) → if one in mine), None)
def test_of_many_beginnings_the_longest_few_are_looked_at(tmp_path: Path) -> None:
    """A head lists what it likes: to look at thousands one after another took hours."""
    files = BatchFiles(tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    files.source.write_text("".join(f'{{"custom_id": "{number}"}}\n' for number in range(50)))
    found = [*keys(files, {})]
    asked = BatchCall(whoami(), 1.0, str(files.source), str(files.output))
    entries = tuple(JobEntry(key, JobState(running=True, sent=True), asked) for key in found)
    assert earlier(entries, files, {}, found[-1]) == found[-4:-1]


# fault: features/batch/earlier.py: except ValueError: → except ZeroDivisionError:
@pytest.mark.parametrize("reply", [{}, {"batches": [{"key": "../x"}]}])
def test_what_others_have_there_ends_no_batch(reply: dict[str, Any]) -> None:
    assert read_known(reply) == ()
