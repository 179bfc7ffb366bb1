"""A watch ends with nothing that happens to a host or a model; what its hosts answer is fed here."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import world
from tests.support.sim import make
from vllm_cluster.kernel.errors import ConnectionLost, VclusterError
from vllm_cluster.kernel.hosts.runtime import SYSTEM
from vllm_cluster.serving.status import watch as module
from vllm_cluster.serving.status.counters import RecentLoads
from vllm_cluster.serving.status.load import NodeSample, parse_sample
from vllm_cluster.serving.status.status import RUNNING, STOPPED, HostState
from vllm_cluster.serving.status.watch import View, watch

INVENTORY = make.inventory(2)
FACTS = world.hosts()
SECONDS = 0.05
# What a host may be waited for; a condition ends each wait.
LONG = 60.0


def status_of(serve: dict[str, Any] | None) -> str:
    """The status of a head whose Ray counts both hosts."""
    nodes = [{"id": name, "address": f"10.0.0.{name}", "alive": True, "gpus": 1} for name in ("1", "2")]
    ray = {"state": "up", "restarts": 0, "error": None, "version": "2", "nodes": nodes}
    return json.dumps({"v": 1, "role": "head", "updated": time.time(), "beat": 5.0, "group": ray, "serve": serve})


def served(name: str, phase: str = "ready", **more: object) -> dict[str, Any]:
    """A model that is served."""
    words: dict[str, Any] = {
        **{"generation": name, "model": name, "name": name, "host": "127.0.0.1", "port": 8000, "phase": phase},
        **{"detail": "", "progress": None, "since": time.time() - 10, "attempt": 1, "gpus": [2, 2]},
        **{"first_failure": None, "failure": None, "ready_at": None, "seconds_to_ready": None, "request": 1},
    }
    return {**words, **more}


def sample(tokens: float | None = None, serve: dict[str, Any] | None = None, **more: object) -> NodeSample:
    """A sample of a node now."""
    metrics = "" if tokens is None else f'vllm:generation_tokens_total{{engine="0"}} {tokens}'
    words = {"v": 1, "time": time.time(), "boot": 0.0, "processors": [1, 2], "cores": 2, "memory": [1, 2], "ranks": 1}
    words |= {"network": None}
    words |= {"gpus": [], "gpu_error": "", "status": status_of(serve), "metrics": metrics, "metrics_error": ""}
    return parse_sample({**words, **more})


@dataclass
class Lab:
    """Two hosts: `states` is what a look finds, `feeds` are their samples; an error in them breaks the connection."""

    states: dict[str, HostState | VclusterError] = field(default_factory=dict)
    feeds: dict[str, queue.Queue[NodeSample | VclusterError | None]] = field(default_factory=dict)
    views: list[View] = field(default_factory=list)

    def look(self, _inventory: object, connection: Any) -> HostState:
        found = self.states[connection.name]
        if isinstance(found, VclusterError):
            raise found
        return found

    def samples(self, node: Any, _seconds: float, **_: object) -> Iterator[NodeSample]:
        while (row := self.feeds[node.connection.name].get(timeout=LONG)) is not None:
            if isinstance(row, VclusterError):
                raise row
            yield row

    def feed(self, host: str, *rows: NodeSample | VclusterError | None) -> None:
        """What a host sends next; None is the end of its program."""
        for row in rows:
            self.feeds[host].put(row)

    def until(self, *steps: Any) -> list[View]:
        """Watch until each condition held once, in this order; each is a condition, and what is done when it holds."""
        left = list(steps)
        deadline = time.monotonic() + LONG

        def show(view: View) -> None:
            self.views.append(view)
            assert time.monotonic() < deadline, f"{len(left)} steps left: {self.views[-1]}"
            if left and left[0][0](view):
                left.pop(0)[1]()
            if not left:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            watch(INVENTORY, SECONDS, show)
        return self.views


def nothing() -> None:
    """No more to do."""


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    made = Lab()
    for name, role in (("gpu1", "head"), ("gpu2", "worker")):
        made.states[name] = HostState(RUNNING, "abc", role, 1, facts=FACTS[name])
        made.feeds[name] = queue.Queue()

    class Fleet:
        def __init__(self, *_: object) -> None:
            names = INVENTORY.hosts
            self.connections = {name: SimpleNamespace(name=name, runtime=SYSTEM) for name in names}

        def __enter__(self) -> Fleet:
            return self

        def __exit__(self, *_: object) -> None:
            for feed in made.feeds.values():
                feed.put(ConnectionLost("gpu1", "closed"))

    changes = {"Fleet": Fleet, "look_at_host": made.look, "samples": made.samples, "last_change": lambda _: None}
    changes |= {"NodeHandle": lambda connection, _: SimpleNamespace(connection=connection)}
    changes |= {"AGAIN_SECONDS": 0.01, "MAX_AGAIN_SECONDS": 0.05}
    for name, value in changes.items():
        monkeypatch.setattr(module, name, value)
    yield made


def problem(view: View, host: str) -> str:
    """What is wrong with a host."""
    return next(row.problem for row in view.status.hosts if row.host == host)


def tokens(view: View) -> float | None:
    """Tokens a second."""
    return view.model.generated_tokens_per_second if view.model else None


# fault: serving/status/watch.py: self.last = _Look(unseen(error)) → self._stopped.set()
def test_a_lost_host_is_a_row_with_its_reason_and_comes_back(lab: Lab) -> None:
    model = served("m")
    lab.feed("gpu1", *(sample(100 + n, model, boot=float(n)) for n in range(2)))
    lab.feed("gpu2", sample(), sample())

    def lose() -> None:
        lab.states["gpu2"] = ConnectionLost("gpu2", "no keepalive reply for 15 s")
        lab.feed("gpu2", ConnectionLost("gpu2", "the connection to its program broke"))

    def return_it() -> None:
        lab.states["gpu2"] = HostState(RUNNING, "abc", "worker", 1, facts=FACTS["gpu2"])
        lab.feed("gpu2", sample(), sample())

    views = lab.until(
        (lambda view: view.status.up and set(view.loads) == {"gpu1", "gpu2"}, lose),
        (lambda view: "no keepalive reply" in problem(view, "gpu2"), return_it),
        (lambda view: view.status.up and "gpu2" in view.loads, nothing),
    )
    lost = next(view for view in views if "no keepalive reply" in problem(view, "gpu2"))
    assert (lost.status.hosts[1].state, lost.status.unreachable, set(lost.loads)) == (
        "unreachable",
        ("gpu2",),
        {"gpu1"},
    )
    assert tokens(lost) == 1, "what the head's model does is still known"


def test_another_model_and_none_and_a_start(lab: Lab) -> None:
    lab.feed("gpu2", sample(), sample())
    lab.feed("gpu1", *(sample(n * 10, served("a"), boot=float(n)) for n in range(3)))
    start = served("b", "loading", progress=[1, 4])
    at = start["since"] + 10
    lab.until(
        (lambda view: tokens(view) == 10, lambda: lab.feed("gpu1", sample(serve=start, time=at))),
        (
            lambda view: view.model is None and view.status.served is True,
            lambda: lab.feed("gpu1", *(sample(n * 7, served("b"), boot=float(n)) for n in range(2))),
        ),
        (lambda view: tokens(view) == 7, lambda: lab.feed("gpu1", sample(serve=None))),
        (lambda view: view.model is None and view.status.served is False, nothing),
    )


def test_a_node_that_ends_is_looked_at_again(lab: Lab) -> None:
    lab.feed("gpu1", sample(), sample())
    lab.feed("gpu2", sample(), sample())

    def stop() -> None:
        lab.states["gpu2"] = HostState(STOPPED, "abc", "worker", 1, problem="the node is stopped")
        lab.feed("gpu2", None)

    lab.until(
        (lambda view: "gpu2" in view.loads, stop),
        (lambda view: problem(view, "gpu2") == "the node is stopped" and "gpu2" not in view.loads, nothing),
    )


def test_metrics_that_do_not_answer_are_reported(lab: Lab) -> None:
    lab.feed("gpu2", sample(), sample())
    lab.feed("gpu1", *(sample(n, served("a"), boot=float(n)) for n in range(2)))
    lab.until(
        (
            lambda view: view.model is not None,
            lambda: lab.feed("gpu1", sample(serve=served("a", "hung"), metrics_error="timed out")),
        ),
        (lambda view: view.model is None and view.metrics_error == "timed out", nothing),
    )


# fault: serving/status/watch.py: if serve and sample.metrics and self.name == self._inventory.head_name: → if serve and sample.metrics:
# fault: serving/status/watch.py: seen = replace(sample, status="", metrics="") → seen = sample
def test_a_worker_that_reports_a_model_costs_no_memory(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred hosts that each report megabytes of counters: those of the head alone are shown."""
    texts: list[str] = []
    monkeypatch.setattr(RecentLoads, "add", lambda _self, _serves, text, _at: texts.append(text))
    kept: list[NodeSample | None] = []
    look = module._Look

    def note(*words: Any) -> Any:
        kept.append(words[2] if len(words) > 2 else None)
        return look(*words)

    monkeypatch.setattr(module, "_Look", note)
    lab.feed("gpu1", sample(1, served("m")), sample(2, served("m")))
    lab.feed("gpu2", sample(77, served("m")), sample(77, served("m")))
    lab.until((lambda view: set(view.loads) == {"gpu1", "gpu2"}, nothing))
    assert texts and not any(" 77" in text for text in texts)
    assert not any(one.status or one.metrics for one in kept if one)


# fault: serving/status/watch.py: if late <= seconds + LATE_SECONDS: → if late >= 0:
def test_a_host_whose_samples_stay_away_has_their_age(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LATE_SECONDS", 0.1)
    lab.feed("gpu1", sample(), sample())
    lab.feed("gpu2", sample(), sample())
    lab.until((lambda view: "no sample for" in problem(view, "gpu2"), nothing))


def test_so_many_views_and_no_more(lab: Lab) -> None:
    lab.feed("gpu1", sample(), sample())
    lab.feed("gpu2", sample(), sample())
    views: list[View] = []
    watch(INVENTORY, SECONDS, views.append, number=3)
    assert len(views) == 3
