"""`vcluster status --watch` on a real cluster: real counters, and what breaks under it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.breaks import root
from tests.support.hosts import Sandbox
from tests.support.json_schemas import validate
from tests.support.paths import VCLUSTER
from tests.support.served import ready_since
from tests.support.terminal import CTRL_C, Terminal

pytestmark = [pytest.mark.e2e, pytest.mark.deep]

LONG = 120.0
View = dict[str, Any]


class Watched:
    """Views as they come."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self._lines = process.stdout
        self.seen: list[View] = []

    def until(self, condition: Callable[[View], object], seconds: float = LONG) -> View:
        """The first view for which it holds."""
        deadline = time.monotonic() + seconds
        for line in self._lines:
            validate(["status", "--watch", "--json"], line)
            view: View = json.loads(line)
            self.seen.append(view)
            if condition(view):
                return view
            assert time.monotonic() < deadline, f"it did not become so within {seconds:.0f} s: {line}"
        raise AssertionError("it ended")


@contextmanager
def watching(sandbox: Sandbox) -> Iterator[Watched]:
    """`vcluster status --watch` beside a test; ends with Ctrl-C, as people end it."""
    process = sandbox.start("status", "--watch", "1", "--json")
    try:
        yield Watched(process)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (130, "")
    finally:
        process.kill()
        process.communicate()


@pytest.mark.cluster("served")
def test_a_request_makes_tokens_and_all_ranks_are_there(sandbox: Sandbox) -> None:
    with watching(sandbox) as watched:
        first = watched.until(lambda view: view["model"] is not None)
        assert first["up"]
        assert first["serving"]["phase"] == "ready"
        ranks = {host: load["ranks"] for host, load in first["loads"].items()}
        assert ranks == {host["host"]: host["gpus"] for host in first["hosts"]}
        assert all(0 <= load["cpu_percent"] <= 100 and load["memory_used_bytes"] for load in first["loads"].values())
        sandbox.vcluster("complete", "Hello", "--max-tokens", "64").ok()
        busy = watched.until(lambda view: (view["model"] or {}).get("generated_tokens_per_second", 0) > 1)
        assert busy["model"]["prompt_tokens_per_second"] > 0
        head, _ = busy["hosts"]
        assert busy["loads"][head["host"]]["sent_bytes_per_second"] > 0
        timed = watched.until(lambda view: view["model"] and view["model"]["next_token_p95_seconds"])
        assert 0 < timed["model"]["first_token_p50_seconds"] <= timed["model"]["first_token_p95_seconds"]


@pytest.mark.cluster("served")
def test_on_a_terminal_and_in_a_pipe(sandbox: Sandbox) -> None:
    variables = {**os.environ, **sandbox.environment, "VCLUSTER_INVENTORY": str(sandbox.inventory)}
    with Terminal([VCLUSTER, "status", "--watch"], env=variables) as terminal:
        shown = terminal.until("KV cache")
        assert "\x1b[?1049h" in shown, "it has a screen of its own"
        terminal.press(CTRL_C)
        assert terminal.end() == 130
        assert "\x1b[?1049l" in terminal.shown
    piped = sandbox.vcluster("status", "--watch", "0.5", "--count", "2").ok()
    assert [("ready" in line, "KV cache" in line) for line in piped.out.splitlines()] == [(True, True)] * 2


@pytest.mark.cluster("served", leaves="changed")
def test_a_rank_a_node_and_a_model_go_under_it(sandbox: Sandbox) -> None:
    """The view continues: a rank that is killed and comes back, a node that is restarted, a model that is stopped."""
    with watching(sandbox) as watched:
        watched.until(lambda view: view["model"])
        root(sandbox, "gpu2", "docker exec vcluster-sandbox pkill -9 -f RayWorker")
        watched.until(lambda view: view["serving"]["phase"] != "ready")
        assert watched.seen[-1]["model"] is None
        watched.until(lambda view: view["serving"]["phase"] == "ready" and view["model"], 240)
        assert ready_since(sandbox) is not None
        root(sandbox, "gpu2", "docker restart vcluster-sandbox")
        watched.until(lambda view: view["hosts"][1]["problem"] or "gpu2" not in view["loads"])
        watched.until(lambda view: view["up"] and view["serving"]["phase"] == "ready" and view["model"], 300)
        sandbox.vcluster("stop", "--yes").ok()
        watched.until(lambda view: view["served"] is False and view["model"] is None)
