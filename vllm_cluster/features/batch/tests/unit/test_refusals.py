"""What a batch refuses before any host is asked, and what it shows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.sim import make
from vllm_cluster.features.batch import action
from vllm_cluster.features.batch.on_head.files import BatchFiles
from vllm_cluster.features.batch.on_head.progress import Progress
from vllm_cluster.features.batch.on_head.row_file import RowFile
from vllm_cluster.kernel.errors import Locked, UsageError


def run(folder: Path, source: str = "in.jsonl", output: str = "out.jsonl") -> None:
    files = BatchFiles(folder / source, folder / output)
    action.answer_batch(action.Batch(make.inventory(1), files, {}, None, 60.0, 60.0, 0.0), lambda _: None)


def test_files_that_do_not_fit_are_refused_before_any_host_is_asked(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("{}\n")
    (tmp_path / "in.errors.jsonl").write_text("{}\n")
    (tmp_path / "link.jsonl").hardlink_to(tmp_path / "in.jsonl")
    (tmp_path / "mine.txt").write_text("notes\n")
    (tmp_path / "theirs.errors.txt").write_text("notes\n")
    for names, message in (
        ({"output": "link.jsonl"}, "link.jsonl is the input"),
        ({"source": "in.errors.jsonl", "output": "in.jsonl"}, "in.errors.jsonl is the input"),
        ({"output": "mine.txt"}, "mine.txt:1: not a row that vcluster batch writes"),
        ({"output": "theirs.txt"}, "theirs.errors.txt:1: not a row that vcluster batch writes"),
    ):
        before = {path.name: path.read_text() for path in tmp_path.iterdir()}
        with pytest.raises(UsageError, match=message):
            run(tmp_path, **names)
        assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before
    with pytest.raises(FileNotFoundError):
        run(tmp_path, source="missing.jsonl")


def test_an_output_that_cannot_be_a_file_is_a_wrong_call(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("{}\n")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    for output, message in (
        ("folder", "cannot write .*/folder: Is a directory"),
        ("missing/out.jsonl", "cannot write .*/out.jsonl: No such file or directory"),
        ("in.jsonl/out.jsonl", "cannot write .*/out.jsonl: Not a directory"),
        ("fifo", "fifo is not a file that rows can be added to"),
    ):
        with pytest.raises(UsageError, match=message):
            run(tmp_path, output=output)


@pytest.mark.parametrize(("seconds", "left"), [(None, ""), (0.2, ""), (61.0, ", about 1 min left")])
def test_no_time_left_is_not_shown(seconds: float | None, left: str) -> None:
    now = Progress(9, 8, 0, 1, 32, 5.0, seconds, 0, 0, 1.0)
    assert action.progress_event(now).text == f"answering 8/9, 5 tokens/s, 1 open{left}"


def test_a_second_run_over_one_output_waits_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("{}\n")
    other = RowFile(tmp_path / "out.jsonl")
    with pytest.raises(Locked, match="is being written by another run of vcluster batch"):
        run(tmp_path)
    other.close()


def test_an_output_that_is_whole_asks_no_host(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("\n")
    run(tmp_path)
    assert not (tmp_path / "out.jsonl").exists()
