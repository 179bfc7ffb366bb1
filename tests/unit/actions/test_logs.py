"""What `logs` shows of the lines that it reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.clock import Clock
from tests.support.sim import make
from vllm_cluster.actions import logs as action
from vllm_cluster.core.log_lines import SECOND, Line, LogRequest


def test_what_repeats_is_counted_though_the_log_is_quiet_when_its_window_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    shown: list[Line] = []
    clock.now = 100.0
    # What was there; nothing; nothing, when the 5 s of the first line are over.
    turns: Iterator[list[Line] | None] = iter(
        [[Line(99 * SECOND, "gpu1", "vllm", f"step {n}") for n in range(3)], [], [], None]
    )

    def take(_seconds: float) -> list[Line] | None:
        clock.now += 3.0
        return next(turns)

    @contextmanager
    def reading(*_: object) -> Iterator[Any]:
        yield (
            SimpleNamespace(take=take),
            [SimpleNamespace(host="gpu1", failure=None, bug=None, polls=0, opened=Event())],
        )

    monkeypatch.setattr(action, "_reading", reading)
    asked = LogRequest(("gpu1",), follow=True)
    runtime: Any = SimpleNamespace(clock=clock)
    found = action.logs(make.inventory(1), asked, print, shown.extend, fold=True, last=10, runtime=runtime)
    assert found
    assert [line.text for line in shown] == ["step 0", "step 2 [repeated 2 times on gpu1]"]
