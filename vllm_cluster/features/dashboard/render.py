"""The page of the dashboard, and what it is fed with: the view now, the last half hour, and what changed in it."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from vllm_cluster.kernel.shell_line import Paste
from vllm_cluster.kernel.terminal.page import page
from vllm_cluster.serving.status.render_watch import view_document
from vllm_cluster.serving.status.watch import View
from vllm_cluster.wire.status import ServeStatus

MAX_POINTS, MAX_EVENTS = 900, 200
# In characters: a head's text may have a million, and the page is fed with all events every two seconds.
MAX_MESSAGE = 500
HTML, JSON = "text/html; charset=utf-8", "application/json"


class DashboardFeed:
    """Keeps what a page needs when it is opened late; written by one thread, read by others."""

    def __init__(self, paste: Paste) -> None:
        self._paste = paste
        self._before: Seen | None = None
        self._points: deque[dict[str, object]] = deque(maxlen=MAX_POINTS)
        self._events: deque[dict[str, object]] = deque(maxlen=MAX_EVENTS)
        self._whole = b"{}"

    def show(self, view: View) -> None:
        """Take a view."""
        self._points.append(_point(view))
        now = changes(self._before, view)
        self._events += [{"time": view.time, "message": message[:MAX_MESSAGE]} for message in now]
        self._before = Seen.of(view)
        whole = {"view": view_document(view, self._paste), "points": list(self._points), "events": list(self._events)}
        self._whole = json.dumps(whole, default=str).encode()

    def page(self) -> tuple[str, bytes]:
        """The page itself."""
        return HTML, page("vllm_cluster.features.dashboard", "dashboard").encode()

    def data(self) -> tuple[str, bytes]:
        """All that it shows."""
        return JSON, self._whole


def _point(view: View) -> dict[str, object]:
    uses = [gpu.use_percent for load in view.loads.values() for gpu in load.gpus if gpu.use_percent is not None]
    model = asdict(view.model) if view.model else {}
    return {"time": round(view.time, 1), "gpu_percent": sum(uses) / len(uses) if uses else None, **model}


@dataclass(frozen=True)
class Seen:
    """What the next view is compared with: a whole one holds all texts of the head's status."""

    name: str | None
    phases: Mapping[int, tuple[str, int]]
    states: Mapping[str, str]
    up: bool

    @classmethod
    def of(cls, view: View) -> Seen:
        """Take it of a view."""
        serve = _served(view)
        phases = {one.index: (one.phase, one.attempt) for one in _each(view)}
        return cls(
            serve.name if serve else None, phases, {host.host: host.state for host in view.status.hosts}, view.status.up
        )


def changes(before: Seen | None, now: View) -> Iterator[str]:
    """What differs from the view before, as sentences."""
    if before is None:
        return
    serve = _served(now)
    if before.name != (serve.name if serve else None):
        yield f"{serve.name} is served" if serve else "no model is served"
    for one in _each(now):
        if before.phases.get(one.index) != (one.phase, one.attempt):
            which = f" replica {one.index}" if len(_each(now)) > 1 else ""
            yield f"{one.name}{which}: {one.words}"
    for host in now.status.hosts:
        if host.host in before.states and before.states[host.host] != host.state:
            yield f"{host.host}: {host.state}" + (f": {host.problem}" if host.problem else "")
    if before.up != now.status.up:
        yield f"{now.status.cluster} is {'up' if now.status.up else 'not up'}"


def _each(view: View) -> tuple[ServeStatus, ...]:
    """The model, or each of its replicas."""
    return view.status.head.serves if view.status.head else ()


def _served(view: View) -> ServeStatus | None:
    return view.status.head.serve if view.status.head else None
