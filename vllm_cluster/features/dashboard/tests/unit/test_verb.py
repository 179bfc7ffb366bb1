"""`vcluster dashboard --prometheus` names what comes next: Prometheus, or the tunnel that it needs first."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.in_process import run
from tests.support.sim import make
from vllm_cluster.features.dashboard import prometheus, verb
from vllm_cluster.kernel.terminal.session import Session


# fault: features/dashboard/verb.py: {config if done.reached else again} → {config}
@pytest.mark.parametrize(
    ("reached", "next_steps"),
    [
        (True, ["Wrote api-key to m. Then run prometheus --config.file=m/prometheus.yml"]),
        (
            False,
            [
                "nothing forwards 127.0.0.1:8000 to the API from this machine yet",
                "Wrote api-key to m. Then run vcluster endpoint --detach && vcluster dashboard --prometheus m",
            ],
        ),
    ],
)
def test_what_comes_next(monkeypatch: pytest.MonkeyPatch, *, reached: bool, next_steps: list[str]) -> None:
    done = prometheus.MetricsFiles(Path("m"), "127.0.0.1:8000", reached, ("api-key",), ())
    texts: list[str] = []
    monkeypatch.setattr(prometheus, "write_metrics", lambda *_, **__: done)
    monkeypatch.setattr(Session, "load", lambda _: make.inventory(2))
    monkeypatch.setattr(Session, "emit", lambda _, event: texts.append(event.text))
    verb.dashboard(prometheus=Path("m"))
    assert texts == next_steps


@pytest.mark.parametrize("words", [["--target", "a:1"]], ids=" ".join)
def test_options_for_the_files_need_the_option_that_writes_them(words: list[str], tmp_path: Path) -> None:
    done = run("dashboard", *words, cwd=tmp_path)
    fix = " ".join(["fix: vcluster dashboard", *words, "--prometheus"])
    assert (done.returncode, done.stderr) == (2, f"error: {words[0]} needs --prometheus\n{fix}\n")
