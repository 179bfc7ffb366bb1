"""The folder of a measurement: of two runs one has it, and a file that comes meanwhile stays."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from typer.testing import CliRunner

from vllm_cluster.cli.app import app
from vllm_cluster.features.bench import action as bench
from vllm_cluster.features.bench.folder import own_folder
from vllm_cluster.kernel.errors import Locked, UsageError

NAMES = ("results.json", "report.html")


# fault: features/bench/folder.py: _lock(lock, path) → None
def test_two_runs_do_not_write_to_one_folder(tmp_path: Path) -> None:
    """Two that began before the first result took each other's."""
    folder = tmp_path / "made" / "out"
    with own_folder(folder, NAMES) as one:
        with (
            pytest.raises(Locked, match="out is being written by another run of vcluster bench"),
            own_folder(folder, NAMES),
        ):
            pass
        one.write("results.json", "first")
        one.write("results.json", "second")
    assert (folder / "results.json").read_text() == "second"
    with pytest.raises(UsageError, match=r"already has results\.json"), own_folder(folder, NAMES):
        pass


# fault: features/bench/folder.py: if new: → if not new:
def test_a_folder_without_results_is_left_as_it_was(tmp_path: Path) -> None:
    with own_folder(tmp_path / "new", NAMES):
        assert (tmp_path / "new").is_dir()
    (tmp_path / "old").mkdir()
    with own_folder(tmp_path / "old", NAMES):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


# fault: features/bench/folder.py: os.O_CREAT | os.O_EXCL | → os.O_CREAT |
# fault: features/bench/folder.py: elif not self._is_own(path): → elif False:
@pytest.mark.parametrize("wrote", [False, True])
@pytest.mark.parametrize("link", [False, True])
def test_a_file_that_comes_meanwhile_is_not_replaced(wrote: bool, link: bool, tmp_path: Path) -> None:
    mine, path = tmp_path / "mine", tmp_path / "out" / "results.json"
    mine.write_text("mine")
    with own_folder(path.parent, NAMES) as folder:
        if wrote:
            folder.write(path.name, "first")
            path.unlink()
            folder.write(path.name, "first")
            path.unlink()
        path.symlink_to(mine) if link else path.hardlink_to(mine)
        with pytest.raises(UsageError, match=r"results\.json was put there by another program meanwhile"):
            folder.write(path.name, "second")
    assert (path.read_text(), path.is_symlink()) == ("mine", link)


# fault: features/bench/verb.py: finally:  # also → except ZeroDivisionError:  # also
def test_figures_are_shown_though_the_page_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, shown = tmp_path / "out", Mock(return_value=[])

    def measured(*_: object) -> Any:
        (folder / "report.html").write_text("mine")
        return {"v": 1, "figure": 7}

    monkeypatch.setattr(bench, "measure_model", measured)
    monkeypatch.setattr("vllm_cluster.features.bench.render.report", lambda _: "a page")
    monkeypatch.setattr("vllm_cluster.features.bench.render.bench_lines", shown)
    (tmp_path / "i.yaml").write_text(
        "version: 1\ncluster: lab\nimage: vllm:1\nmodel_cache: /m\nhosts:\n  gpu1: {address: 10.0.0.1}\n"
    )
    call = ["bench", "--json", "-i", str(tmp_path / "i.yaml"), "--output", str(folder)]
    done = CliRunner().invoke(app, call)
    assert (done.exit_code, '"figure"' in done.stdout, (folder / "report.html").read_text()) == (2, True, "mine")


# fault: features/bench/folder.py: errno.ENOLCK, errno.ENOTSUP → errno.ENOLCK
def test_a_folder_that_cannot_be_locked_is_used_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(errno.ENOTSUP, "no")))
    with own_folder(tmp_path, NAMES) as folder:
        folder.write("results.json", "here")
    assert (tmp_path / "results.json").read_text() == "here"
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(errno.EIO, "broken")))
    with pytest.raises(OSError, match="broken"), own_folder(tmp_path / "x", NAMES):
        pass
