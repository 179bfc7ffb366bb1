"""The parts of the measuring program that need no host."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from tests.gpu.__main__ import parser
from tests.gpu.cluster import Failed, Run
from tests.gpu.report import Report, markdown


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
