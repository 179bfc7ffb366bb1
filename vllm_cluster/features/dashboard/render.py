"""The page of the dashboard, and what it is fed with: the view now, the last half hour, and what changed in it."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict

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

    def __init__(self, paste: Callable[[str], str]) -> None:
        self._paste = paste
        self._before: View | None = None
        self._points: deque[dict[str, object]] = deque(maxlen=MAX_POINTS)
        self._events: deque[dict[str, object]] = deque(maxlen=MAX_EVENTS)
        self._whole = b"{}"

    def show(self, view: View) -> None:
        """Take a view."""
        self._points.append(_point(view))
        now = changes(self._before, view)
        self._events += [{"time": view.time, "message": message[:MAX_MESSAGE]} for message in now]
        self._before = view
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


def changes(before: View | None, now: View) -> Iterator[str]:
    """What differs from the view before, as sentences."""
    if before is None:
        return
    was, serve = _served(before), _served(now)
    if (was and was.name) != (serve and serve.name):
        yield f"{serve.name} is served" if serve else "no model is served"
    earlier = {one.index: (one.phase, one.attempt) for one in _each(before)}
    for one in _each(now):
        if earlier.get(one.index) != (one.phase, one.attempt):
            which = f" replica {one.index}" if len(_each(now)) > 1 else ""
            yield f"{one.name}{which}: {one.words}"
    states = {host.host: (host.state, host.problem) for host in before.status.hosts}
    for host in now.status.hosts:
        if host.host in states and states[host.host][0] != host.state:
            yield f"{host.host}: {host.state}" + (f": {host.problem}" if host.problem else "")
    if before.status.up != now.status.up:
        yield f"{now.status.cluster} is {'up' if now.status.up else 'not up'}"


def _each(view: View) -> tuple[ServeStatus, ...]:
    """The model, or each of its replicas."""
    return view.status.head.serves if view.status.head else ()


def _served(view: View) -> ServeStatus | None:
    return view.status.head.serve if view.status.head else None
