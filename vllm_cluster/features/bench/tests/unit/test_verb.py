"""The command line of `vcluster bench`: its options, and the comparison of two folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vllm_cluster.cli.app import app
from vllm_cluster.features.bench import action as bench
from vllm_cluster.kernel.errors import UsageError


def refused(*argv: str) -> str:
    done = CliRunner().invoke(app, ["bench", *argv])
    return done.exception.message if isinstance(done.exception, UsageError) else done.output


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("a", "b"), "one model is measured at a time; two folders are compared with --compare"),
        (("--compare", "a"), "--compare needs two folders"),
        (("--compare", "a", "b", "c"), "--compare needs two folders"),
        (("--preset", "x"), "--preset must be guides, vllm, one, cpu, got 'x'"),
        (("--concurrency", "1,x"), "--concurrency must be numbers from 1 to 10000, got '1,x'"),
        (("--concurrency", "0"), "--concurrency must be numbers from 1 to 10000, got '0'"),
    ],
)
def test_bad_options_are_reported(argv: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = refused(*argv)
    assert message in shown + capsys.readouterr().err


def result(folder: Path, rate: float) -> Path:
    folder.mkdir()
    runs = [
        {"repetition": number, "figures": {"output_throughput": rate * (1 + number / 100), "p50_ttft_ms": 5.0 + number}}
        for number in range(4)
    ]
    point = {"concurrency": 16, "input": 128, "output": 128, "prompts": 64}
    (folder / "results.json").write_text(json.dumps({"v": 1, "points": [{"point": point, "runs": runs}]}))
    return folder


def test_a_folder_without_a_result_is_a_wrong_call(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    one = str(result(tmp_path / "a", 100.0))
    assert f"--compare: no folder {tmp_path / 'nothere'}" in refused("--compare", one, str(tmp_path / "nothere"))
    assert f"--compare: {tmp_path / 'empty'} has no results.json" in refused("--compare", one, str(tmp_path / "empty"))


# fault: features/bench/render.py: within the noise of {row.runs[0]} → within the noise of {row.runs[0] + 1}
def test_two_folders_are_compared(tmp_path: Path) -> None:
    one, other = result(tmp_path / "a", 100.0), result(tmp_path / "b", 200.0)
    shown = CliRunner().invoke(app, ["bench", "--compare", str(one), str(other)]).output.splitlines()
    assert shown[1].split() == ["16", "tokens/s", "102", "203", "+100.0", "%", "better"]
    assert shown[2].endswith("within the noise of 4 and 4 runs")
    document = json.loads(CliRunner().invoke(app, ["bench", "--json", "--compare", str(one), str(other)]).output)
    assert [row["different"] for row in document["rows"]] == [True, False]


FIGURES = {"output_throughput": 9.0, "p50_ttft_ms": 5.0, "p50_tpot_ms": 1.0, "p50_e2el_ms": 8.0, "p99_e2el_ms": 9.0}
DOCUMENT = {
    "v": 1,
    "name": "m",
    "versions": {"vllm": "0.32.0", "vcluster": "0.1.0"},
    "image": "i",
    "started": "2026-01-01",
    "flags": [],
    "hosts": [{"name": "gpu1", "gpus": [], "driver": "", "hcas": [], "interface": "eth0"}],
    "points": [
        {
            "point": {"concurrency": 1, "input": 8, "output": 8, "prompts": 8},
            "runs": [{"repetition": 0, "figures": FIGURES}],
        }
    ],
}


def described(folder: Path) -> Path:
    path = folder / "inventory.yaml"
    path.write_text("version: 1\ncluster: lab\nimage: vllm:1\nmodel_cache: /m\nhosts:\n  gpu1: {address: 10.0.0.1}\n")
    return path


def test_a_report_is_written_and_json_stays_one_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "measure_model", lambda *_: DOCUMENT)
    inventory, folder = described(tmp_path), tmp_path / "out"
    folder.mkdir()
    before = inventory.read_text()
    call = ["bench", "-i", str(inventory), "--output", str(folder)]
    assert json.loads(CliRunner().invoke(app, [*call, "--json"]).stdout) == DOCUMENT
    assert ([path.name for path in folder.iterdir()], inventory.read_text()) == (["report.html"], before)
    (folder / "report.html").unlink()
    assert f"Wrote results.json and report.html to {folder}" in CliRunner().invoke(app, call).stdout.replace("\n", "")


# fault: features/bench/verb.py: loaded.cluster), (RESULTS, REPORT)) as made → loaded.cluster), (RESULTS,)) as made
# fault: features/bench/folder.py: if os.path.lexists(path / name)] → if (path / name).exists()]
@pytest.mark.parametrize("name", ["results.json", "report.html", "a link"])
def test_no_file_of_a_persons_own_is_replaced(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of that name was: only results were looked for."""
    monkeypatch.setattr(bench, "measure_model", lambda *given: given[-1](DOCUMENT) or DOCUMENT)
    folder = tmp_path / "out"
    folder.mkdir()
    if name == "a link":
        (folder / (name := "report.html")).symlink_to(tmp_path / "mine")
    else:
        (folder / name).write_text("mine")
    call = ("-i", str(described(tmp_path)), "--output")
    assert f"out already has {name}, which would be replaced" in refused(*call, str(folder)).replace("\n", "")
    assert [path.name for path in folder.iterdir()] == [name]
    assert (folder / name).is_symlink() or (folder / name).read_text() == "mine"
    assert "Wrote results.json" in refused(*call, str(tmp_path / "other"))
