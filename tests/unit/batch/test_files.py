"""The files of a batch: what a line may be, what is answered, and what is left of a torn output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_cluster.batch.answered import Answered
from vllm_cluster.batch.lines import (
    BadLine,
    BatchLine,
    Place,
    answer_row,
    checksum,
    error_row,
    options_checksum,
    parse,
    place_of,
)
from vllm_cluster.batch.output import RowFile
from vllm_cluster.batch.problems import BatchProblem, InUse
from vllm_cluster.batch.source import Source

PLACE = Place(3, 1, 7)


def request(number: int, **body: Any) -> dict[str, Any]:
    return {"custom_id": f"r{number}", "method": "POST", "url": "/v1/completions", "body": {"prompt": "a", **body}}


def write(path: Path, count: int, **body: Any) -> Path:
    path.write_text("".join(json.dumps(request(number, n=number, **body)) + "\n" for number in range(count)))
    return path


def rows(source: Path, copies: int = 1) -> list[bytes]:
    """The rows of an output in which all is answered."""
    opened = Source(source, copies, 0).open(Answered(copies))
    return [answer_row(parse(raw, place, copies, "m", {}), {"model": "m"}) for place, raw in opened]


@pytest.mark.parametrize(
    ("raw", "why", "custom_id"),
    [
        (b"{", "not JSON: a key in double quotes is expected, at character 2", None),
        (b'{"custom_id": "a\tb"}', "not JSON: a string has a line break, a tab or another control character", None),
        (b'{"custom_id": "a', "not JSON: a string has no closing quote, at character 15", None),
        (b'{"custom_id" "a"}', "not JSON: a colon is missing, at character 14", None),
        (rb'{"custom_id": "\d"}', "not JSON: a backslash is before a character that it does not escape", None),
        (b"{} {}", "not JSON: more follows after the end of the value: write one request a line", None),
        (b"[" * 100_000, "not JSON: nested too deeply", None),
        (b"\xff\xfe", "not UTF-8 text", None),
        (b"9" * 5000, "not JSON: a number has too many digits", None),
        (b"7", "must be an object, got a number", None),
        (b"{}", "custom_id must be a string, got none", None),
        (json.dumps({**request(1), "method": "GET"}).encode(), 'method must be POST, got "GET"', "r1"),
        (json.dumps({**request(1), "url": "/v1/models"}).encode(), "url must be one of /v1/chat/completions ", "r1"),
        (json.dumps({**request(1), "url": {}}).encode(), "url must be one of ", "r1"),
        (json.dumps({**request(1), "body": "x"}).encode(), "body must be an object, got a string", "r1"),
        (json.dumps(request(1, stream=True)).encode(), "body.stream must be false", "r1"),
    ],
)
def test_a_line_without_a_request_has_its_reason(raw: bytes, why: str, custom_id: str | None) -> None:
    with pytest.raises(BadLine) as caught:
        parse(raw, PLACE, 1, "m", {})
    assert (caught.value.message[: len(why)], caught.value.custom_id) == (why, custom_id)


def test_a_line_comes_before_the_options_and_the_served_model() -> None:
    line = parse(json.dumps(request(1, top_p=1, model="lora")).encode(), PLACE, 2, "m", {"top_p": 0.5, "seed": 1})
    assert line == BatchLine(
        PLACE, "r1-1", "/v1/completions", {"model": "lora", "top_p": 1, "seed": 1, "prompt": "a"}, own_model=True
    )
    plain = parse(json.dumps(request(1)).encode(), PLACE, 1, "m", {})
    assert (plain.body["model"], plain.own_model, plain.custom_id) == ("m", False, "r1")


def test_rows_have_the_form_of_openais_batches() -> None:
    line = parse(json.dumps(request(1)).encode(), PLACE, 1, "m", {})
    answer = json.loads(row := answer_row(line, {"id": "cmpl-1", "model": "m"}))
    assert answer == {
        "id": "batch_req_3.1_00000007",
        "custom_id": "r1",
        "response": {"status_code": 200, "request_id": "cmpl-1", "body": {"id": "cmpl-1", "model": "m"}},
        "error": None,
    }
    bad = json.loads(other := error_row(PLACE, None, None, "invalid_line", "not JSON"))
    assert (bad["line"], bad["response"], bad["error"]) == (3, None, {"code": "invalid_line", "message": "not JSON"})
    assert place_of(row) == place_of(other) == PLACE


def test_an_array_of_prompts_is_an_input(tmp_path: Path) -> None:
    path = tmp_path / "prompts.json"
    path.write_text(json.dumps(["one", [{"role": "user", "content": "two"}], 3]))
    found = list(Source(path, 2, 0).open(Answered(2)))
    assert [(place.line, place.copy) for place, _ in found] == [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (3, 2)]
    first, chat = (parse(raw, place, 2, "m", {}) for place, raw in (found[1], found[2]))
    assert (first.custom_id, first.path, first.body["prompt"]) == ("prompt-1-2", "/v1/completions", "one")
    assert (chat.path, chat.body["messages"][0]["content"]) == ("/v1/chat/completions", "two")
    with pytest.raises(BadLine, match="must be an object, got a number"):
        parse(found[4][1], found[4][0], 2, "m", {})
    path.write_text('["a",\n oops]')
    with pytest.raises(BatchProblem, match=r"prompts\.json:2: not a JSON array"):
        Source(path, 1, 0)


def test_empty_lines_a_byte_order_mark_and_a_missing_newline_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(
        b"\xef\xbb\xbf" + json.dumps(request(1)).encode() + b"\r\n\n  \n" + json.dumps(request(4)).encode()
    )
    found = [
        (place.line, parse(raw, place, 1, "m", {}).custom_id) for place, raw in Source(path, 1, 0).open(Answered(1))
    ]
    assert found == [(1, "r1"), (4, "r4")]


def test_a_line_without_end_takes_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm_cluster.batch.source.MAX_LINE", 100)
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'{"a": "' + b"x" * 1000 + b'"}\n' + json.dumps(request(2)).encode()[:90] + b"\n")
    found = list(Source(path, 1, 0).open(Answered(1)))
    assert [(place.line, len(raw)) for place, raw in found] == [(1, 80), (2, 89)]


@settings(deadline=None)
@given(cut=st.integers(0, 2000), copies=st.integers(1, 3), junk=st.sampled_from([b"", b"\0\0\0", b'{"id": "batch_']))
def test_an_output_cut_anywhere_is_continued_without_loss_or_repeat(
    cut: int, copies: int, junk: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    source = write(folder / "in.jsonl", 6)
    whole = rows(source, copies)
    # As answers come: in another order.
    content = b"".join(reversed(whole))[:cut]
    kept = content[: content.rfind(b"\n") + 1]
    (folder / "out.jsonl").write_bytes(content + (junk if kept else b""))
    file = RowFile(folder / "out.jsonl")
    answered, _ = file.read(copies)
    opened = Source(source, copies, 0)
    assert opened.count(answered, file.path) == 6 * copies
    file.begin()
    for place, raw in opened.open(answered):
        file.append(answer_row(parse(raw, place, copies, "m", {}), {"model": "m"}))
    file.close()
    assert sorted((folder / "out.jsonl").read_bytes().splitlines(keepends=True)) == sorted(whole)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"hello", "out.jsonl:1: not a row that vcluster batch writes"),
        (b'{"id": "batch_req_x"}\n', "out.jsonl:1: not a row that vcluster batch writes"),
        (b'{"id": "batch_req_1.1_00000001", "custom_id": 1}\nhello\n', "out.jsonl:2: not a row"),
        (b'{"id": "batch_req_1.1_00000001", "custom_id": 1}\n' * 2, "out.jsonl has two answers to line 1"),
        (b'{"id": "batch_req_1.2_00000001", "custom_id": 1}\n', "made with --repeat 2 or more, got --repeat 1"),
        (b'{"id": "batch_req_99999999999999999.1_00000001", "c": 1}\n', "names line 99999999999999999"),
    ],
)
def test_another_file_is_refused_and_left_as_it_is(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(content)
    file = RowFile(path)
    with pytest.raises(BatchProblem) as caught:
        file.read(1)
    assert why in caught.value.message
    assert caught.value.usage
    file.close()
    assert path.read_bytes() == content


# fault: batch/source.py: if answered.checksum(number, copy) not in (0, wanted): → if not wanted:
def test_answers_to_another_input_or_with_other_options_are_refused(tmp_path: Path) -> None:
    first = write(tmp_path / "in.jsonl", 3)
    answered = Answered(1)
    for row in rows(first):
        place = place_of(row)
        assert place
        answered.add(place, "out")
    assert Source(first, 1, 0).count(answered, Path("out")) == 3
    # A longer input is the same one.
    assert Source(write(first, 5), 1, 0).count(answered, Path("out")) == 5
    for source in (
        Source(write(tmp_path / "short.jsonl", 2), 1, 0),
        Source(write(tmp_path / "other.jsonl", 3, seed=1), 1, 0),
        Source(first, 1, options_checksum({"seed": 1})),
    ):
        with pytest.raises(BatchProblem, match="out holds the answers to another input than"):
            source.count(answered, Path("out"))


def test_two_runs_do_not_write_one_file(tmp_path: Path) -> None:
    file = RowFile(tmp_path / "out.jsonl")
    with pytest.raises(InUse, match="another run of vcluster batch writes"):
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


@settings(deadline=None)
@given(st.integers(1, 10**6), st.integers(1, 1000), st.binary())
def test_a_place_is_read_as_it_was_written(line: int, copy: int, raw: bytes) -> None:
    place = Place(line, copy, checksum(raw))
    assert place_of(error_row(place, "x", None, "c", "m")) == place
