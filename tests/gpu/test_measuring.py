"""The parts of the measuring program that need no host."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from tests.gpu import loading
from tests.gpu.__main__ import parser
from tests.gpu.cluster import Cluster, Failed, Run
from tests.gpu.executors import ByHand, Case, kv_tokens, of
from tests.gpu.report import Report, markdown
from tests.support import world


class _Hosts:
    """Two hosts, as far as a command line needs them."""

    inventory = world.inventory(2)
    head = "gpu1"


def _by_hand() -> ByHand:
    return ByHand(cast(Cluster, _Hosts()), "bench/llama8b", ["--load-format", "dummy"])


def test_both_executors_get_the_same_flags_and_only_one_gets_hosts() -> None:
    by_hand = _by_hand()
    ray = by_hand.argv(Case.read("ray:tp1pp2"), 0)
    head, worker = (by_hand.argv(Case.read("mp:tp1pp2"), rank) for rank in (0, 1))
    for argv in (ray, head, worker):
        assert argv[argv.index("--pipeline-parallel-size") + 1] == "2"
        assert argv[-2:] == ["--load-format", "dummy"]
    assert "--nnodes" not in ray
    assert head[head.index("--master-addr") + 1] == "10.0.0.1"
    assert ("--headless" in head, "--headless" in worker) == (False, True)
    assert (by_hand.hosts(Case("ray", 1, 2)), by_hand.hosts(Case("mp", 1, 2))) == (["gpu1"], ["gpu1", "gpu2"])


def test_cases_are_those_that_make_a_difference() -> None:
    assert of(2, 1) == ["ray:tp1pp2", "mp:tp1pp2", "ray:tp2pp1", "mp:tp2pp1"]
    assert of(1, 8) == ["ray:tp8pp1", "mp:tp8pp1"]
    with pytest.raises(ValueError, match="no case"):
        Case.read("ray:tp2")


def test_the_cache_size_that_the_last_start_logged() -> None:
    lines = (
        "GPU KV cache size: 1,024 tokens, Max\n(EngineCore) GPU KV cache size: 1,964,816 tokens, Maximum concurrency"
    )
    assert (kv_tokens(lines), kv_tokens("nothing")) == (1_964_816, None)


def test_phases_take_the_time_until_the_next_one() -> None:
    events = (
        {"event": "phase", "time": 100.0, "message": "connecting"},
        {"event": "start", "time": 100.5, "message": "pull"},
        {"event": "progress", "time": 101.5, "message": "loading"},
        {"event": "endpoint", "time": 104.0, "message": "http"},
    )
    run = Run(("serve",), 0, events, "", 5.0, 99.0)
    assert run.phases() == [("connecting", 1.5), ("loading", 2.5)]
    with pytest.raises(Failed, match="exit 3: no room"):
        Run(("up",), 3, ({"event": "error", "message": "no room"},), "", 1.0, 0.0).ok()


def test_a_report_is_kept_step_by_step_and_taken_up_again(tmp_path: Path) -> None:
    report = Report(tmp_path / "new" / "report")
    report.keep("up", {"seconds": 16.1, "phases": [{"seconds": 2.0, "what": "a|b"}, {"seconds": 1.0, "more": "x"}]})
    report.keep("bench", {"rounds": [], "broken_off": "no time was left"})
    again = Report.resumed(tmp_path / "new" / "report")
    assert (again.has("up"), again.has("bench"), again.has("heal")) == (True, False, False)
    page = (tmp_path / "new" / "report.md").read_text()
    assert page == markdown(again.steps)
    assert "| seconds | 16.1 |" in page
    assert "| 2.0 | a\\|b |  |" in page


def test_options_name_what_they_know(capsys: pytest.CaptureFixture[str]) -> None:
    options = parser().parse_args(["i.yaml", "--steps", "up,bench", "--at-once", "2,4"])
    assert (options.steps, options.at_once) == (["up", "bench"], [2, 4])
    assert isinstance(options, argparse.Namespace)
    with pytest.raises(SystemExit):
        parser().parse_args(["i.yaml", "--steps", "up,benhc"])
    assert "benhc: not one of" in capsys.readouterr().err


def test_the_programs_that_look_after_files_run(tmp_path: Path) -> None:
    snapshot = tmp_path / "hub/models--org--name/snapshots/abc"
    snapshot.mkdir(parents=True)
    (snapshot / "model-1.safetensors").write_bytes(b"x" * 5000)
    (tmp_path / "hub/models--org--name/refs").mkdir()
    (tmp_path / "hub/models--org--name/refs/main").write_text("abc\n")

    def run(source: str, argument: str) -> str:
        argv = [sys.executable, "-c", source, argument]
        environment = {**os.environ, "HF_HOME": str(tmp_path)}
        return subprocess.run(argv, capture_output=True, text=True, check=True, env=environment).stdout.strip()

    assert run(loading.FOLDER, "org/name") == str(snapshot)
    assert run(loading.FOLDER, "./folder") == "./folder"
    assert run(loading.DROP, str(snapshot)).split()[0] == "5000"
    compile(loading.WRITE, "write", "exec")
