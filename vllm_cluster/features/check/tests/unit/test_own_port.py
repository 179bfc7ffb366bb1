"""Whether the port of the API is looked at: what listens there is the cluster's own front while any replica runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.sim import make
from vllm_cluster.features.check import action


# fault: features/check/action.py: all(one.phase == "failed" for → all(one.phase == "failed" or True for
# fault: features/check/action.py: for one in node.replicas): → for one in node.replicas[:1]):
@pytest.mark.parametrize(
    ("phases", "looked_at"), [((), True), (("failed",), True), (("failed", "ready"), False), (("loading",), False)]
)
def test_the_port_is_not_another_programs_while_one_replica_answers(
    phases: tuple[str, ...], looked_at: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = SimpleNamespace(status=True, replicas=[SimpleNamespace(phase=phase) for phase in phases])
    monkeypatch.setattr(action, "NodeHandle", lambda *_: SimpleNamespace(state=lambda: state))
    monkeypatch.setattr(action, "endpoint", lambda *_: ["taken"])
    fleet: Any = SimpleNamespace(connections={"gpu1": None})
    facts: Any = {"gpu1": None}
    assert bool(action._endpoint(make.inventory(1), fleet, facts)) is looked_at
