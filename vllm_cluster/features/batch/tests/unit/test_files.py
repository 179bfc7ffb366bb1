"""The files of a batch: what a line may be, what is answered, and what is left of a torn output."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.attack import attack
from tests.support.bounds import within
from vllm_cluster.features.batch.on_head.files import BatchFiles, Work
from vllm_cluster.features.batch.on_head.large import MAX_DEPTH, SHORT
from vllm_cluster.features.batch.on_head.lines import (
    MAX_NAME,
    MAX_ROW,
    BadLine,
    BatchLine,
    BatchProblem,
    Displaced,
    InUse,
    Place,
    Source,
    answer_row,
    checksum,
    error_row,
    is_error,
    parse,
    place_of,
)
from vllm_cluster.features.batch.on_head.row_file import RowFile

PLACE = Place(3, f"{7:016x}")


def request(number: int, **body: Any) -> dict[str, Any]:
    return {"custom_id": f"r{number}", "method": "POST", "url": "/v1/completions", "body": {"prompt": "a", **body}}


def write(path: Path, count: int, **body: Any) -> Path:
    path.write_text("".join(json.dumps(request(number, n=number, **body)) + "\n" for number in range(count)))
    return path


def rows(source: Path) -> list[bytes]:
    """The rows of an output in which all is answered."""
    lines = [(Place(number, checksum(raw)), raw) for number, raw in Source(source).lines()]
    return [answer_row(parse(raw, place, "m", {}), "cmpl", b'{"model": "m"}') for place, raw in lines]


def nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


DEEP = "not JSON: nested too deeply"


@contextmanager
def opened(source: Path, output: Path, **fields: Any) -> Iterator[Work]:
    with ExitStack() as stack:
        yield Work(BatchFiles(source, output), fields, stack)


# fault: features/batch/on_head/lines.py: if is_deep(raw): → if not raw:
# fault: features/batch/on_head/lines.py: if name_of(raw) != name: → if not raw:
@pytest.mark.parametrize(
    ("raw", "why", "custom_id"),
    [
        (b"{", "not JSON: Expecting property name enclosed in double quotes, at character 2", None),
        (b"[" * 100_000, "not JSON: nested too deeply", None),
        (b"\xff\xfe", "not UTF-8 text", None),
        (b"9" * 5000, "not JSON: a number has too many digits", None),
        # Where its answer goes, names are read by another rule than by Python's own.
        (json.dumps({"x": [[] for _ in range(MAX_DEPTH)], **request(1, x=nested(MAX_DEPTH))}).encode(), DEEP, None),
        (json.dumps(request(1, x=[float("nan"), "x" * SHORT])).encode(), "not JSON: NaN and Infinity are words", None),
        (b"7", "must be an object, got a number", None),
        (b"{}", "custom_id must be a string of 1 to 1024 characters, got none", None),
        (
            b'{"custom_id": "' + b"x" * (MAX_NAME + 1) + b'"}',
            "custom_id must be a string of 1 to 1024 characters",
            None,
        ),
        (json.dumps({**request(1), "method": "GET"}).encode(), 'method must be POST, got "GET"', "r1"),
        (json.dumps({**request(1), "url": "/v1/models"}).encode(), "url must be one of /v1/chat/completions ", "r1"),
        (json.dumps({**request(1), "url": {}}).encode(), "url must be one of ", "r1"),
        (json.dumps({**request(1), "body": "x"}).encode(), "body must be an object, got a string", "r1"),
        (json.dumps(request(1, stream=True)).encode(), "body.stream must be false", "r1"),
        (json.dumps(request(1, model=7)).encode(), "body.model must be a string, got a number", "r1"),
    ],
)
def test_a_line_without_a_request_has_its_reason(raw: bytes, why: str, custom_id: str | None) -> None:
    with pytest.raises(BadLine) as caught:
        parse(raw, PLACE, "m", {})
    assert (caught.value.message[: len(why)], caught.value.custom_id) == (why, custom_id)


def test_a_line_comes_before_the_options_and_the_served_model() -> None:
    line = parse(json.dumps(request(1, top_p=1, model="lora")).encode(), PLACE, "m", {"top_p": 0.5, "seed": 1})
    assert replace(line, body=b"") == BatchLine(PLACE, "r1", "/v1/completions", b"", "lora")
    assert json.loads(line.body) == {"model": "lora", "top_p": 1, "seed": 1, "prompt": "a"}
    plain = parse(json.dumps(request(1)).encode(), PLACE, "m", {})
    assert (json.loads(plain.body)["model"], plain.model) == ("m", "")


def test_rows_have_the_form_of_openais_batches() -> None:
    line = parse(json.dumps(request(1)).encode(), PLACE, "m", {})
    row = answer_row(line, "cmpl-1", b'\n{"id": "cmpl-1",\r\n "model": "m"}\n')
    assert json.loads(row) == {
        "id": "batch_req_3_0000000000000007",
        "custom_id": "r1",
        "response": {"status_code": 200, "request_id": "cmpl-1", "body": {"id": "cmpl-1", "model": "m"}},
        "error": None,
    }
    bad = json.loads(other := error_row(PLACE, None, None, "invalid_line", "not JSON"))
    assert (bad["line"], bad["response"], bad["error"]) == (3, None, {"code": "invalid_line", "message": "not JSON"})
    assert place_of(row) == place_of(other) == PLACE
    assert (is_error(row), is_error(other), row.count(b"\n")) == (False, True, 1)


def test_an_array_of_prompts_is_an_input(tmp_path: Path) -> None:
    path = tmp_path / "prompts.json"
    path.write_text(json.dumps(["one", [{"role": "user", "content": "two"}], 3]))
    found = list(Source(path).lines())
    assert [number for number, _ in found] == [1, 2, 3]
    first, chat = (parse(raw, PLACE, "m", {}) for _, raw in found[:2])
    assert (first.custom_id, first.path, json.loads(first.body)["prompt"]) == ("prompt-1", "/v1/completions", "one")
    assert (chat.path, json.loads(chat.body)["messages"][0]["content"]) == ("/v1/chat/completions", "two")
    with pytest.raises(BadLine, match="must be an object, got a number"):
        parse(found[2][1], PLACE, "m", {})
    path.write_text('["a",\n oops]')
    with pytest.raises(BatchProblem, match=r"prompts\.json:2: not a JSON array"):
        list(Source(path).lines())


def test_empty_lines_a_byte_order_mark_and_a_missing_newline_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(
        b"\xef\xbb\xbf" + json.dumps(request(1)).encode() + b"\r\n\n  \n" + json.dumps(request(4)).encode()
    )
    found = [(number, parse(raw, PLACE, "m", {}).custom_id) for number, raw in Source(path).lines()]
    assert found == [(1, "r1"), (4, "r4")]


def test_a_line_without_end_takes_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm_cluster.features.batch.on_head.lines.MAX_LINE", 100)
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'{"a": "' + b"x" * 1000 + b'"}\n' + json.dumps(request(2)).encode()[:90] + b"\n")
    assert [(number, len(raw)) for number, raw in Source(path).lines()] == [(1, 80), (2, 88)]


# fault: features/batch/on_head/files.py: if at is None: → if False:
# fault: features/batch/on_head/files.py: if seen != self.total: → if False:
@pytest.mark.parametrize("count", [2, 3, 5])
def test_an_input_that_changes_before_it_is_sent_is_refused(count: int, tmp_path: Path) -> None:
    """One to which a program still wrote was an IndexError; of a shorter one the batch was called done."""
    source = write(tmp_path / "in.jsonl", 4)
    with opened(source, tmp_path / "out.jsonl") as work:
        whole = [*work.lines()]
        write(source, count, **({"seed": 1} if count == 3 else {}))
        with pytest.raises(BatchProblem, match=r"in\.jsonl has changed while it was read"):
            assert [*work.lines()] != whole


@settings(deadline=None)
@given(cut=st.integers(0, 2000), order=st.permutations(range(6)), junk=st.sampled_from([b"", b"\0\0", b'{"id": "ba']))
def test_an_output_cut_anywhere_is_continued_in_order_without_loss_or_repeat(
    cut: int, order: list[int], junk: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    source, output = write(folder / "in.jsonl", 6), folder / "out.jsonl"
    whole = rows(source)
    # As answers come: in another order. No kill tears the id of the first row, and there it may be a person's own text.
    content = b"".join(whole[at] for at in order)[:cut]
    content = content if place_of(content) else b""
    kept = content[: content.rfind(b"\n") + 1]
    fits = kept and kept.count(b"\n") < 6 and (content == kept or not junk.strip(b"\0"))
    output.write_bytes(content + (junk if fits else b""))
    with opened(source, output) as work:
        assert (work.total, work.left) == (6, 6 - kept.count(b"\n"))
        for line in [*work.lines()]:
            number, _, raw = line.rstrip(b"\n").partition(b" ")
            assert Place(int(number), checksum(raw)) == place_of(whole[int(number) - 1])
            work.take(whole[int(number) - 1])
            work.take(whole[int(number) - 1])
        work.finish()
    assert output.read_bytes() == b"".join(whole)
    assert {*folder.iterdir()} == {source, output}


def test_an_output_is_sorted_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, output = write(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl"
    output.write_bytes(before := b"".join(reversed(rows(source))))
    output.chmod(0o640)
    with opened(source, output) as work, monkeypatch.context() as patch:
        patch.setattr("os.fsync", Mock(side_effect=OSError(28, "No space left on device")))
        assert work.finish() == "No space left on device"
        assert work.finish() == ""
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "in.jsonl": source.read_bytes(),
        "out.jsonl": before,
    }
    with opened(source, output) as work:
        work.finish()
        with pytest.raises(InUse):
            RowFile(output)
    assert output.read_bytes() == b"".join(rows(source))
    assert output.stat().st_mode & 0o777 == 0o640


# fault: features/batch/on_head/lines.py: member(row, "custom_id", no_constant, _ROW_KEYS) → member(row, "custom_id", no_constant)
# fault: features/batch/on_head/large.py: return plain_at(raw, (name,), known) → return plain_at(raw, (name,))
# fault: features/batch/on_head/files.py: if not (failed if name is None else name == known): → if False:
@pytest.mark.promise("P47")
def test_no_answer_is_taken_under_the_name_of_another_line(tmp_path: Path) -> None:
    """A head that swaps names would give each request the answer to another."""
    source = write(tmp_path / "in.jsonl", 3)
    first, second, _ = rows(source)
    place = place_of(second)
    assert place
    forged = [
        second.replace(b'"r1"', b'"r2"'),
        second.replace(b'"r1"', b'"r9"'),
        second.replace(b'"r1"', b"null"),
        second.replace(b'"r1"', b'["r1"]'),
        second.replace(b'"custom_id"', b'"custom"'),
        # Of a key that comes twice, some readers take the first and some the last.
        second[:-2] + b', "custom_id": "r2"}\n',
        second.replace(b'"custom_id": "r1"', b'"custom_id": "r2", "custom_id": "r1"'),
        second[:-4] + b"\n",
        second.rstrip() + b" []\n",
        # The output would also be an inventory, whose hosts a command of the head's choice prints.
        second[:-2] + b', "hosts_from": "command:x"}\n',
        second[:-2] + b', "version": 1, "error": "%b"}\n' % (b"x" * SHORT),
        second.replace(b'"error": null', b'"error": NaN'),
        error_row(place, "r0", 400, "refused", "no"),
    ]
    output = tmp_path / "out.jsonl"
    with attack("P47", "a head gives answers other names") as found:
        for row in forged:
            with opened(source, output) as work:
                for one in (row, row, first):
                    work.take(one)
                assert (work.answered, work.failed) == (1, 1)
                (bad,) = map(json.loads, (tmp_path / "out.errors.jsonl").read_text().splitlines())
            assert (bad["line"], bad["custom_id"], bad["error"]["code"]) == (2, "r1", "invalid_row")
            assert re.search(r"custom_id|Expecting|Extra data|NaN is not JSON", bad["error"]["message"])
            assert output.read_bytes() == first
            output.unlink()
        found.figure = f"{len(forged)} forged rows are no answers"


# fault: features/batch/on_head/files.py: raise ValueError(f"{row[:60]!r} is of no line of {self._files.source}") → return
@pytest.mark.parametrize("line", [1, 4, 99_999_999])
def test_a_row_of_another_line_is_not_taken(line: int, tmp_path: Path) -> None:
    with opened(write(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl") as work:
        for row in (error_row(Place(line, f"{5:016x}"), "x", None, "c", "m"), b"hello\n"):
            with pytest.raises(ValueError, match="is of no line of "):
                work.take(row)
        assert work.left == 3


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"hello", "out.jsonl:1: not a row that vcluster batch writes"),
        (b'{"id": "batch_req_x"}\n', "out.jsonl:1: not a row that vcluster batch writes"),
        (b'{"id": "batch_req_1_00000001", "custom_id": 1}\nhello\n', "holds the answers to another input than"),
        (b"%bhello\n", "out.jsonl:2: not a row"),
        (b"%b%b", "out.jsonl has two answers to line 1"),
        (
            b'{"id": "batch_req_99999999999999999_00000001", "c": 1}\n',
            "its answer to line 99999999999999999 is to another",
        ),
    ],
)
def test_another_file_is_refused_and_left_as_it_is(tmp_path: Path, content: bytes, why: str) -> None:
    source, output = write(tmp_path / "in.jsonl", 1), tmp_path / "out.jsonl"
    content = content.replace(b"%b", rows(source)[0])
    output.write_bytes(content)
    with pytest.raises(BatchProblem) as caught, opened(source, output):
        pass
    assert why in caught.value.message
    assert caught.value.usage
    assert output.read_bytes() == content


# fault: features/batch/on_head/files.py: return at if sums[at] == int(place.checksum, 16) else None → return at
def test_answers_to_another_input_or_with_other_options_are_refused(tmp_path: Path) -> None:
    first, output = write(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl"
    output.write_bytes(b"".join(rows(first)))
    with opened(first, output) as work:
        assert (work.total, work.left, work.models) == (3, 0, {"m"})
    with opened(write(tmp_path / "long.jsonl", 5), output) as work:  # a longer input is the same one
        assert (work.total, work.left) == (5, 2)
    for source, fields in (
        (write(tmp_path / "short.jsonl", 2), {}),
        (write(tmp_path / "other.jsonl", 3, seed=1), {}),
        (first, {"seed": 1}),
    ):
        with pytest.raises(BatchProblem, match="holds the answers to another input"), opened(source, output, **fields):
            pass


def test_a_name_that_comes_again_is_refused_with_both_lines(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(request(number)) + "\n\n" for number in (1, 2, 1)))
    again = pytest.raises(BatchProblem, match=r'in\.jsonl:5: custom_id "r1" is also that of line 1$')
    with again as caught, opened(source, tmp_path / "out.jsonl"):
        pass
    assert caught.value.usage
    assert not (tmp_path / "out.jsonl").exists()


def test_two_runs_do_not_write_one_file(tmp_path: Path) -> None:
    file = RowFile(tmp_path / "out.jsonl")
    with pytest.raises(InUse, match="is being written by another run of vcluster batch"):
        RowFile(tmp_path / "out.jsonl")
    file.close()
    # Nothing was written: no file is left.
    assert not (tmp_path / "out.jsonl").exists()
    RowFile(tmp_path / "out.jsonl").close()


def test_an_output_that_is_not_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BatchProblem, match="/dev/null is not a file that rows can be added to"):
        RowFile(Path("/dev/null"))


def test_a_row_that_a_full_disk_cuts_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RowFile(tmp_path / "out.jsonl")
    file.append(b"whole\n")
    real = __import__("os").pwrite

    def full(fd: int, data: bytes, at: int) -> int:
        if at > 6:
            raise OSError(28, "No space left on device")
        return int(real(fd, data[:3], at))

    monkeypatch.setattr("os.pwrite", full)
    with pytest.raises(OSError, match="No space") as caught:
        file.append(b"torn row\n")
    assert caught.value.filename == str(tmp_path / "out.jsonl")
    monkeypatch.undo()
    file.close()
    assert (tmp_path / "out.jsonl").read_bytes() == b"whole\n"


# fault: features/batch/on_head/row_file.py: if os.fstat(self._fd).st_size != self._there: → if False:
def test_no_row_is_put_behind_a_hole(tmp_path: Path) -> None:
    """Where another program emptied the file, zeros came before the next row, and no run could continue it."""
    source, output = write(tmp_path / "in.jsonl", 2), tmp_path / "out.jsonl"
    first, second = rows(source)
    with opened(source, output) as work:
        work.take(first)
        os.truncate(output, 0)
        with pytest.raises(Displaced, match=r"out\.jsonl was removed, replaced or changed"):
            work.take(second)
    with opened(source, output) as work:
        work.take(first)
        work.take(second)
        work.finish()
    assert output.read_bytes() == first + second


# fault: features/batch/on_head/row_file.py: self._removable and not self._there and self._in_place(): → self._removable and not self._there:
def test_only_an_empty_file_of_its_own_is_removed(tmp_path: Path) -> None:
    """A person may write a file of that name while no row has come."""
    source, output = write(tmp_path / "in.jsonl", 1), tmp_path / "out.jsonl"
    errors = BatchFiles(source, output).errors
    with opened(source, output):
        (tmp_path / "mine").write_text("mine")
        (tmp_path / "mine").replace(errors)
    assert (errors.read_text(), output.exists()) == ("mine", False)


# fault: features/batch/on_head/files.py: filter(None, (self.output, self._errors)): → (self.output,):
def test_reasons_that_were_taken_away_are_missed(tmp_path: Path) -> None:
    source, output = write(tmp_path / "in.jsonl", 1), tmp_path / "out.jsonl"
    place = place_of(rows(source)[0])
    assert place
    with opened(source, output) as work:
        BatchFiles(source, output).errors.unlink()
        work.finish()  # none was there yet
    with opened(source, output) as work:
        work.take(error_row(place, "r0", 400, "refused", "no"))
        BatchFiles(source, output).errors.unlink()
        with pytest.raises(Displaced, match=r"out\.errors\.jsonl was removed"):
            work.finish()


# fault: features/batch/on_head/row_file.py: self.ensure_in_place()  # what came → pass  # what came
def test_a_file_that_comes_while_rows_are_sorted_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = write(tmp_path / "in.jsonl", 2), tmp_path / "out.jsonl"
    output.write_bytes(b"".join(reversed(rows(source))))

    def replace_it(_fd: int) -> None:
        monkeypatch.undo()
        (tmp_path / "mine").write_text("mine")
        (tmp_path / "mine").replace(output)

    with opened(source, output) as work:
        monkeypatch.setattr("os.fsync", replace_it)
        with pytest.raises(Displaced):
            work.finish()
    assert {path.name for path in tmp_path.iterdir()} == {"in.jsonl", "out.jsonl"}
    assert output.read_text() == "mine"


@settings(deadline=None)
@given(st.integers(1, 10**6), st.binary())
def test_a_place_is_read_as_it_was_written(line: int, raw: bytes) -> None:
    place = Place(line, checksum(raw))
    assert place_of(error_row(place, "x", None, "c", "m")) == place


# fault: features/batch/on_head/row_file.py: os.O_CREAT | os.O_NOFOLLOW | more → os.O_CREAT | more
# fault: features/batch/on_head/row_file.py: if os.fstat(found).st_size: → if found:
@pytest.mark.parametrize(
    ("name", "why"), [("out.jsonl", "and no answers are there yet"), ("out.errors.jsonl", "and reasons are written")]
)
@pytest.mark.parametrize("there", [False, True])
def test_no_row_is_written_behind_a_link_of_a_cloned_folder(tmp_path: Path, name: str, why: str, there: bool) -> None:
    """A name of a request there was run by the next shell; one that leads to answers is continued."""
    source, aim = write(tmp_path / "in.jsonl", 2), tmp_path / "bashrc"
    (tmp_path / name).symlink_to(aim)
    if there:
        aim.write_text("")
    with (
        pytest.raises(BatchProblem, match=f"is a link, {why}"),
        opened(source, tmp_path / "out.jsonl"),
    ):
        pass
    assert (aim.exists(), (tmp_path / name).is_symlink()) == (there, True)
    (tmp_path / name).unlink()
    (tmp_path / "out.jsonl").unlink(missing_ok=True)
    aim.write_bytes(rows(source)[0])
    (tmp_path / "out.jsonl").symlink_to(aim)
    with opened(source, tmp_path / "out.jsonl") as work:
        assert work.left == 1


# fault: features/batch/on_head/files.py: if not is_error(row): → if False:
def test_a_file_of_answers_is_not_cleared_as_one_of_errors(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", 1)
    (tmp_path / "out.errors.jsonl").write_bytes(rows(source)[0])
    with pytest.raises(BatchProblem, match="holds answers"), opened(source, tmp_path / "out.jsonl"):
        pass
    assert (tmp_path / "out.errors.jsonl").read_bytes() == rows(source)[0]


# fault: features/batch/on_head/row_file.py: if len(row) > MAX_ROW: → if False:
# fault: features/batch/on_head/row_file.py: partial(file.readline, MAX_ROW + 1) → file.readline
def test_an_output_with_a_row_of_any_length_is_refused_at_its_beginning(tmp_path: Path) -> None:
    """One with a hole of 5 GB took 10.7 GB of memory."""
    output = tmp_path / "out.jsonl"
    output.write_bytes(b'{"id": "batch_req_1_00000000", "custom_id": "')
    os.truncate(output, 50 * MAX_ROW)
    with (
        within(5, megabytes=6 * MAX_ROW / 1e6),
        ExitStack() as stack,
        pytest.raises(BatchProblem, match=r"out\.jsonl:1: not a row"),
    ):
        file = RowFile(output)
        stack.callback(file.close)
        list(file.rows())
    assert output.stat().st_size == 50 * MAX_ROW
    row = b'{"id": "batch_req_1_00000000", "custom_id": "'.ljust(MAX_ROW - 1, b"x") + b"\n"
    output.write_bytes(row)
    with ExitStack() as stack:
        stack.callback((file := RowFile(output)).close)
        assert list(file.rows()) == [row]


# fault: features/batch/on_head/lines.py: isinstance(name, str) and len(name) <= MAX_NAME else → isinstance(name, str) else
def test_a_name_that_no_request_may_have_is_not_kept(tmp_path: Path) -> None:
    """The names of all lines are in memory: 300 of 1 MB took 300 MB."""
    source = tmp_path / "in.jsonl"
    names = ("x" * MAX_NAME, "x" * (MAX_NAME + 1), "x" * (MAX_NAME + 1))
    source.write_text("".join(json.dumps({**request(1), "custom_id": name}) + "\n" for name in names))
    with opened(source, tmp_path / "out.jsonl") as work:
        assert (work.total, work._requests.names) == (3, ["x" * MAX_NAME, None, None])
