"""The parts of the measuring program that need no host."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.gpu.__main__ import parser
from tests.gpu.cluster import Failed, Run
from tests.gpu.replicas import CLIENT, ENDED
from tests.gpu.report import Report, markdown
from tests.support.waiting import until


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


def test_the_client_of_streams_counts_what_became_of_each(tmp_path: Path) -> None:
    """A server answers, cuts, closes and refuses in turn; each is a different outcome, and the end loses no row."""
    (tmp_path / "key").write_text("k")
    out = tmp_path / "streams.json"
    with ThreadingHTTPServer(("127.0.0.1", 0), ByTurns) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v1/completions"
        argv = [sys.executable, "-c", CLIENT, url, "m", "1", "5", str(out)]
        with subprocess.Popen(argv, env={**os.environ, "VCLUSTER_API_KEY_FILE": str(tmp_path / "key")}):
            until(lambda: ByTurns.asked > 4, 30)
            said = subprocess.run(["sh", "-c", ENDED, "sh", str(out)], capture_output=True, check=True, timeout=60)
        server.shutdown()
    outcomes = [outcome for _, _, outcome in json.loads(said.stdout)]
    assert outcomes[:4] == ["answered", "cut", "503 with Retry-After", "failed: ServerDisconnectedError"]


class ByTurns(BaseHTTPRequestHandler):
    """A stream whole, one cut after its first bytes, a refusal, a closed connection, and so on."""

    asked = 0

    def do_POST(self) -> None:
        turn, ByTurns.asked = ByTurns.asked % 4, ByTurns.asked + 1
        self.rfile.read(int(self.headers["Content-Length"]))
        if turn == 2:
            self.send_response(503)
            self.send_header("Retry-After", "3")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif turn != 3:
            self.send_response(200)
            self.send_header("Content-Length", "100")
            self.end_headers()
            stream = b"data: {}\n\n" + b"data: [DONE]\n\n" * (turn == 0)
            self.wfile.write(stream.ljust(100, b"\n") if turn == 0 else stream)
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Not on the screen of the tests."""
