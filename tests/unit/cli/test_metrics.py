"""`vcluster metrics` names what comes next: Prometheus, or the tunnel that it needs first."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.sim import make
from vllm_cluster.features.metrics import action, verb
from vllm_cluster.kernel.terminal.session import Session


# fault: features/metrics/verb.py: {config if done.reached else again} → {config}
@pytest.mark.parametrize(
    ("reached", "next_steps"),
    [
        (True, ["Wrote api-key to m. Next: prometheus --config.file=m/prometheus.yml"]),
        (
            False,
            [
                "nothing forwards 127.0.0.1:8000 to the API from this machine yet",
                "Wrote api-key to m. Next: vcluster endpoint --detach && vcluster metrics -o m",
            ],
        ),
    ],
)
def test_what_comes_next(monkeypatch: pytest.MonkeyPatch, *, reached: bool, next_steps: list[str]) -> None:
    done = action.MetricsFiles(Path("m"), "127.0.0.1:8000", reached, ("api-key",), ())
    texts: list[str] = []
    monkeypatch.setattr(action, "metrics", lambda *_, **__: done)
    monkeypatch.setattr(Session, "load", lambda _: make.inventory(2))
    monkeypatch.setattr(Session, "emit", lambda _, event: texts.append(event.text))
    verb.metrics(output=Path("m"))
    assert texts == next_steps
