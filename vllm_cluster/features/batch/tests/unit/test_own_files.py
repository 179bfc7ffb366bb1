"""A person's own files: nothing of them is cut, cleared or removed, also under the names that a batch uses."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest

from tests.support.bounds import within
from tests.support.sim import make
from vllm_cluster.features.batch import action
from vllm_cluster.features.batch.on_head import files as on_head_files
from vllm_cluster.features.batch.on_head.files import BatchFiles, Work
from vllm_cluster.features.batch.on_head.lines import (
    BatchProblem,
    Place,
    Source,
    answer_row,
    checksum,
    error_row,
    parse,
    place_of,
)
from vllm_cluster.features.batch.on_head.row_file import RowFile
from vllm_cluster.features.batch.replies import JobLook, JobState
from vllm_cluster.kernel.events import Event


def request(name: str, prompt: str = "p") -> bytes:
    return json.dumps({"custom_id": name, "url": "/v1/completions", "body": {"prompt": prompt}}).encode()


def answered(raw: bytes, place: Place) -> bytes:
    return answer_row(parse(raw, place, "m", {}), "cmpl", b'{"model": "m"}')


def written(folder: Path, *raws: bytes) -> tuple[BatchFiles, list[bytes]]:
    """An input of these lines, and the row of each one's answer."""
    files = BatchFiles(folder / "in.jsonl", folder / "out.jsonl")
    files.source.write_bytes(b"".join(raw + b"\n" for raw in raws))
    return files, [answered(raw, Place(at, checksum(raw))) for at, raw in enumerate(raws, 1)]


def reason(number: int, raw: bytes, name: str | None) -> bytes:
    return error_row(Place(number, checksum(raw)), name, 400, "refused", "why")


ONE, TWO = request("one"), request("two")


@contextmanager
def opened(files: BatchFiles) -> Iterator[Work]:
    with ExitStack() as stack:
        yield Work(files, {}, stack)


def refused(files: BatchFiles, why: str) -> None:
    """It is refused as a wrong call, and all files are as they were."""
    before = {path.name: path.read_bytes() for path in files.source.parent.iterdir()}
    with pytest.raises(BatchProblem, match=why) as caught, opened(files):
        pass
    assert (caught.value.usage, bool(caught.value.hint)) == (True, True)
    assert {path.name: path.read_bytes() for path in files.source.parent.iterdir()} == before


# fault: features/batch/on_head/files.py: _open(files.errors, stack, follow=False) → _open(files.errors, stack)
def test_reasons_behind_a_link_of_a_cloned_folder_stay(tmp_path: Path) -> None:
    """Those of another batch of the person's were emptied, though no host answered."""
    files, _ = written(tmp_path, ONE)
    aim = tmp_path / "answers.errors.jsonl"
    aim.write_bytes(reason(1, ONE, "one"))
    files.errors.symlink_to(aim.name)
    refused(files, "is a link, and reasons are written behind none")


# fault: features/batch/on_head/row_file.py: if self._linked: → if False:
def test_an_output_behind_a_link_is_not_cut(tmp_path: Path) -> None:
    files, rows = written(tmp_path, ONE, TWO)
    aim = tmp_path / "results.json"
    files.output.symlink_to(aim.name)
    for content in (rows[0] + rows[1][:80], rows[0][:80]):
        aim.write_bytes(content)
        refused(files, "is a link, and what is behind it ends within a row")
    aim.write_bytes(rows[0])
    with opened(files) as work:
        work.take(rows[1])
    assert aim.read_bytes() == rows[0] + rows[1]


OF_OPENAI = json.dumps({"id": "batch_req_wnaDys", "custom_id": "request-2", "response": {}}).encode()


# fault: features/batch/on_head/row_file.py: (number == 1 and place_of(row) is None) or not → not
# fault: features/batch/on_head/lines.py: or _TORN.match(rest) or → or rest.startswith(HEAD) or
@pytest.mark.parametrize(
    "text",
    [OF_OPENAI, b"{", b'{"id": "batch_req_', b'{"id": "batch_req_1", "mine": "', b'{"id": "batch_req_1_00", "m', b"\0"],
)
def test_a_file_without_a_line_end_is_not_taken_for_a_torn_row(text: bytes, tmp_path: Path) -> None:
    """The results of another program were cut to nothing, and then removed."""
    files, rows = written(tmp_path, ONE, TWO)
    files.output.write_bytes(text)
    refused(files, "out.jsonl:1: not a row that vcluster batch writes")
    if could_be_torn := text in (b"{", b'{"id": "batch_req_', b"\0"):
        return
    assert not could_be_torn
    files.output.write_bytes(rows[0] + text)
    refused(files, "out.jsonl:2: not a row that vcluster batch writes")


# fault: features/batch/on_head/row_file.py: or not could_begin(row): → or False:
# fault: features/batch/on_head/files.py: if place_of(self.output.torn): → if False:
def test_words_behind_the_last_row_are_not_cut(tmp_path: Path) -> None:
    files, rows = written(tmp_path, ONE, TWO)
    files.output.write_bytes(rows[0] + b"MY NOTES")
    refused(files, "out.jsonl:2: not a row that vcluster batch writes")
    files.output.write_bytes(rows[0] + answered(ONE, Place(2, checksum(ONE)))[:90])
    refused(files, "holds the answers to another input than")


# fault: features/batch/on_head/row_file.py: self._removable = not self._there → self._removable = True
def test_a_torn_row_is_cut_with_the_first_row_that_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, rows = written(tmp_path, ONE, TWO)
    for torn in (rows[0][:70], rows[0] + rows[1][:30], rows[0] + rows[1][:70] + b"\0" * 9, rows[0] + b"\0" * 9):
        files.output.write_bytes(torn)
        with opened(files):
            pass
        assert files.output.read_bytes() == torn
        with opened(files) as work:
            for row in rows:
                work.take(row)
        assert files.output.read_bytes() == b"".join(rows)
    files.output.write_bytes(rows[0][:70])
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"), opened(files) as work:
        patch.setattr("os.pwrite", Mock(side_effect=OSError(28, "No space left on device")))
        work.take(rows[0])
    assert files.output.exists()


# fault: features/batch/on_head/files.py: if not self._keeps and not self.answered_now and not self.failed: → if False:
def test_reasons_of_the_run_before_go_with_the_first_row_of_this_one(tmp_path: Path) -> None:
    """They were removed before any host had answered."""
    files, rows = written(tmp_path, ONE, TWO)
    old = error_row(Place(2, checksum(b"{")), None, None, "invalid_line", "not JSON")
    files.errors.write_bytes(before := reason(1, request("one", "too long"), "one") + old)
    with opened(files) as work, pytest.raises(ValueError, match="is of no line of"):
        work.take(b"hello\n")
    assert files.errors.read_bytes() == before
    with opened(files) as work:
        work.take(rows[0])
        assert files.errors.read_bytes() == b""
        work.take(reason(2, TWO, "two"))
    assert files.errors.read_bytes() == reason(2, TWO, "two")
    with opened(files) as work:
        work.take(rows[1])
    assert not files.errors.exists()


# fault: features/batch/on_head/files.py: is None and not self._was_corrected(place, row): → is None and False:
# fault: features/batch/on_head/files.py: at is not None and named_in(row, place) in (None, self._requests.names[at]) → named_in(row, place) in (None, 'one')
@pytest.mark.parametrize(
    "rows",
    [
        reason(1, TWO, "another"),
        reason(3, TWO, "one"),
        reason(3, TWO, None),
        reason(1, ONE, "one") + reason(2, ONE, "another"),
        reason(1, ONE, "one") + reason(2, ONE, "another")[:-9],
    ],
)
def test_reasons_of_another_input_are_not_cleared(rows: bytes, tmp_path: Path) -> None:
    files, _ = written(tmp_path, ONE, TWO)
    files.errors.write_bytes(rows)
    refused(files, r"out\.errors\.jsonl holds the reasons of another input than .*in\.jsonl, and would be cleared")


# fault: features/batch/on_head/files.py: f".errors{self.output.suffix}" → f".errors{self.output.suffix or '.jsonl'}"
def test_no_two_outputs_share_a_file_of_reasons() -> None:
    names = ["q", "q.jsonl", "q.json", "q.errors", "q.errors.jsonl"]
    found = {BatchFiles(Path("in"), Path(name)).errors for name in names}
    assert (len(found), BatchFiles(Path("in"), Path("q.jsonl")).errors) == (len(names), Path("q.errors.jsonl"))


class Head:
    """A head that has these rows."""

    host = "gpu1"

    def __init__(self, rows: bytes) -> None:
        self.rows = rows

    def __enter__(self) -> Head:
        return self

    def __exit__(self, *_: object) -> None: ...

    def ask(self, *_: object) -> tuple[()]:
        return ()

    def look(self, at: int) -> JobLook:
        return JobLook(JobState(False, True, "stopped"), self.rows[at:])

    def act(self, _do: str) -> None: ...

    def forget(self) -> None: ...


def wanted(files: BatchFiles) -> action.Batch:
    return action.Batch(make.inventory(1), files, {}, 2, 60.0, 60.0, 0.0)


# fault: features/batch/action.py: self._work.keep_reasons() → pass
# fault: features/batch/on_head/files.py: elif at not in self._old_reasons: → elif True:
def test_reasons_stay_where_a_batch_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped one brings only some of them again."""
    three = request("three")
    files, rows = written(tmp_path, ONE, TWO, three)
    files.errors.write_bytes(before := reason(1, ONE, "one") + reason(2, TWO, "two"))
    monkeypatch.setattr(action, "HeadJob", lambda *_: cast(Any, Head(reason(2, TWO, "two") + rows[2])))
    found = action.cancel_batch(wanted(files), lambda _: None)
    assert (found.answered, found.failed, files.errors.read_bytes()) == (1, 1, before)
    assert files.output.read_bytes() == rows[2]


# fault: features/batch/on_head/lines.py: hashlib.sha256(options + raw.strip()).hexdigest()[:16] → f"{zlib.crc32(raw.strip()):016x}"
def test_no_other_line_can_be_made_to_which_an_answer_is(tmp_path: Path) -> None:
    """By a checksum that can be met on purpose an answer was taken for one to another request."""
    first, second = request("one", "plumless"), request("one", "buckeroo")
    assert zlib.crc32(first) == zlib.crc32(second)
    files, rows = written(tmp_path, first)
    files.output.write_bytes(rows[0])
    written(tmp_path, second)
    refused(files, "holds the answers to another input than")


# fault: features/batch/on_head/files.py: at is not None and begins(row, place, self._requests.names[at]): → at is not None:
# fault: features/batch/on_head/files.py: self._old_sums if len(place.checksum) == OLD_DIGITS else self._sums → self._sums
def test_answers_of_an_older_version_are_read_with_their_names(tmp_path: Path) -> None:
    first, second = request("one", "plumless"), request("two", "buckeroo")
    files, rows = written(tmp_path, first, TWO)
    old = answered(first, Place(1, f"{zlib.crc32(first):08x}"))
    files.output.write_bytes(old)
    with opened(files) as work:
        assert (work.answered, work.left) == (1, 1)
        work.take(rows[1])
    assert files.output.read_bytes() == old + rows[1]
    files.output.write_bytes(answered(second, Place(1, f"{zlib.crc32(first):08x}")))
    refused(files, "holds the answers to another input than")


# fault: features/batch/on_head/lines.py: number += _skip_empty(file) → continue
def test_empty_lines_take_neither_time_nor_memory(tmp_path: Path) -> None:
    """A file of 300 MB of them took minutes and 1.6 GB."""
    files = BatchFiles(tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    with files.source.open("wb") as file:
        file.write(ONE + b"\n \r\n\t")
        for _ in range(100):
            file.write(b"\n" * 999_999 + b"\n")
        file.write(b"  " + TWO)
    with within(5, megabytes=20):
        assert [number for number, _ in Source(files.source).lines()] == [1, 100_000_003]
        with opened(files) as work:
            assert work.left == 2


# fault: features/batch/on_head/files.py: self._report(self._files.source, len(self._requests.names)) → pass
# fault: features/batch/on_head/files.py: self._report(self._files.output, count) → pass
# fault: features/batch/action.py: emit(Event("progress", f"reading {path}: {count(number, 'line')}")) → pass
def test_a_long_read_shows_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_head_files, "_REPORTED", 2)
    monkeypatch.setattr(action, "POLL_SECONDS", 0.0)
    files, rows = written(tmp_path, ONE, TWO)
    files.output.write_bytes(b"".join(rows))
    shown: list[Event] = []
    action.answer_batch(wanted(files), shown.append)
    assert [event.text for event in shown] == [f"reading {path}: 2 lines" for path in (files.source, files.output)]


# fault: features/batch/on_head/files.py: if self.left else None → if files else None
# fault: features/batch/on_head/files.py: except OSError as error: → except ZeroDivisionError as error:
# fault: features/batch/on_head/files.py: except BatchProblem as error: → except ZeroDivisionError as error:
@pytest.mark.parametrize("call", ["open", "fsync"])
def test_answers_that_cannot_be_sorted_keep_their_order(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder that takes no new file each call failed, though all answers were there."""
    files, rows = written(tmp_path, ONE, TWO)
    files.output.write_bytes(before := rows[1] + rows[0])
    real, shown = os.open, list[Event]()

    def denied(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if flags & os.O_CREAT and not os.path.lexists(path):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, flags, *more, **named)

    with monkeypatch.context() as patch:
        patch.setattr(f"os.{call}", denied if call == "open" else Mock(side_effect=OSError(28, "No space left")))
        found, _ = action.answer_batch(wanted(files), shown.append)
    (note,) = shown
    assert f"{files.output} keeps the order in which the answers came: " in note.text
    assert (found.answered, files.output.read_bytes(), files.errors.exists()) == (2, before, False)


# fault: features/batch/on_head/row_file.py: if self._there > self._size: → if False:
def test_no_torn_row_is_sorted_away(tmp_path: Path) -> None:
    files, rows = written(tmp_path, ONE, TWO)
    files.output.write_bytes(content := rows[1] + rows[0] + b"\0\0")
    with opened(files) as work:
        assert work.finish() == f"{files.output} ends within a row"
    assert files.output.read_bytes() == content
    with ExitStack() as stack:
        stack.callback((file := RowFile(files.output)).close)
        assert [place_of(row) for row in file.rows()] == [place_of(row) for row in (rows[1], rows[0])]


# fault: features/batch/on_head/row_file.py: with suppress(OSError):  # the folder → with suppress(ValueError):  # the folder
def test_an_empty_file_stays_where_none_can_be_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, rows = written(tmp_path, ONE)
    files.errors.touch()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", Mock(side_effect=PermissionError(13, "Permission denied")))
        with opened(files) as work:
            work.take(rows[0])
            work.finish()
    assert files.output.read_bytes() == rows[0]
