"""Events as they happen: a live picture on a terminal, lines elsewhere, JSON lines for programs."""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from vllm_cluster.kernel.events import Event
from vllm_cluster.kernel.plan.plan import Plan
from vllm_cluster.kernel.terminal.output import console, document, err, folded, styled
from vllm_cluster.kernel.terminal.plan import plan_document
from vllm_cluster.kernel.terminal.printable import plain, wants_color
from vllm_cluster.kernel.text import by_hosts

if TYPE_CHECKING:
    from rich.console import Group

# More rows than this do not fit a terminal: then only hosts that failed have one.
ROWS = 16
# A phase of a start that continues has a line as often as this: with the time between two looks, at least each 10 s.
STILL_SECONDS = 8.0
# A verb that is over within this needs no line that it has begun.
QUICK_SECONDS = 1.0


def renderer(as_json: bool, verbosity: int, color: str) -> tuple[Callable[[Event], None], Callable[[], None]]:
    """The way to show events, and the way to end it."""
    if as_json:
        return json_lines, lambda: None
    if verbosity < 0:
        return quiet, lambda: None
    if verbosity == 0 and sys.stderr.isatty() and wants_color(color, stdout=False):
        live = LiveRenderer()
        return live.show, live.close
    lines = LineRenderer(verbosity)
    return lines.show, lines.close


def json_lines(event: Event) -> None:
    """One JSON object a line on standard output."""
    known = {key: plan_document(value) if isinstance(value, Plan) else value for key, value in event.data.items()}
    row: dict[str, object] = {"v": 1, "time": round(time.time(), 3), "event": event.kind, "message": event.text}
    if event.host:
        row["host"] = event.host
    # One write a line: threads of several hosts emit events at the same time.
    document({**row, **known})


def quiet(event: Event) -> None:
    """Only the result and warnings."""
    if event.kind in ("result", "warning"):
        err(_line(event))


class Passed:
    """Which phases of a start are new in an event: those that are over, and whether another one has begun."""

    def __init__(self) -> None:
        self._attempt: object = None
        self._count = 0
        self._phase: object = None

    def news(self, event: Event) -> tuple[list[tuple[str, float]], bool]:
        """The phases that are over since the last event, with their seconds; and whether this is another phase."""
        data = event.data
        if data["attempt"] != self._attempt:
            self._attempt, self._count, self._phase = data["attempt"], 0, None
        phases = data["phases"]
        over = list(phases)[self._count :] if isinstance(phases, list | tuple) else []
        self._count += len(over)
        changed = data["phase"] != self._phase
        self._phase = data["phase"]
        return over, changed


def _text(event: Event) -> str:
    """The words of an event without the name of its host, which goes before them: the message of an error has it."""
    return plain(event.text.removeprefix(f"{event.host}: ") if event.host else event.text)


def _line(event: Event) -> str:
    mark = {"failed": "failed: ", "warning": "warning: ", "done": "done: "}.get(event.kind, "")
    return (f"{event.host}: " if event.host else "") + mark + _text(event)


class LineRenderer:
    """A line an event on standard error, with the seconds since the start; what takes long has more lines."""

    def __init__(self, verbosity: int) -> None:
        self._started = self._shown = time.monotonic()
        self._verbosity = verbosity
        # Of each replica of a start by its number.
        self._passed: dict[object, Passed] = {}
        self._moved: dict[str | None, float] = {}
        # What hosts and replicas are at, and since when; with no name what the verb itself is at.
        self._under_way: dict[str, tuple[str, float]] = {}
        self._over = threading.Event()
        self._repeating: threading.Thread | None = None
        self._held: str | None = None
        self._timer = threading.Timer(QUICK_SECONDS, self._release)
        self._timer.daemon = True
        self._lock = threading.Lock()

    def show(self, event: Event) -> None:
        """Write the event's line; of a start a line each phase, of a transfer one now and then.

        The beginning of an operation shows only with -v.
        """
        over, now = "", time.monotonic()
        passed, changed = list[tuple[str, float]](), True
        if "phases" in event.data:
            passed, changed = self._passed.setdefault(event.data.get("replica"), Passed()).news(event)
            over = "".join(f"  ({phase} took {seconds:.0f} s)" for phase, seconds in passed[-1:])
        self._note(event, now, changed=changed)
        if not changed:
            return  # it is repeated with its time
        if not event.text or (event.kind == "start" and self._verbosity < 1):
            return
        if event.kind == "progress" and "bytes" in event.data:
            if now - self._moved.get(event.host, -STILL_SECONDS) < STILL_SECONDS:
                return
            self._moved[event.host] = now
        self._shown = now
        line = f"{now - self._started:6.1f}s  {_line(event)}{over}"
        if event.kind == "phase" and self._held is None:
            # Of a verb that is over at once this would be all, above its one line.
            self._held = line
            self._timer.start()
            return
        self._release()
        err(line)

    def _note(self, event: Event, now: float, *, changed: bool) -> None:
        """Remember what is under way, until that or its phase is over; what moves bytes has lines of its own.

        What has not `changed` is a phase that continues, in other words.
        """
        key = event.host or (f"replica {event.data['replica']}" if "replica" in event.data else "")
        # Threads of several hosts come here at the same time.
        with self._lock:
            if event.kind in ("phase", "result"):
                self._under_way.clear()
            if event.kind in ("done", "failed", "result") or event.data.get("phase") in ("ready", "failed"):
                self._under_way.pop(key, None)
            elif event.text and event.kind in ("phase", "start", "progress") and "bytes" not in event.data:
                since = now if changed else self._under_way.get(key, ("", now))[1]
                self._under_way[key] = (_text(event), since)
                if self._repeating is None:
                    # It ends with the renderer, also where that is left without being closed.
                    weak = weakref.ref(self)
                    self._repeating = threading.Thread(target=_repeat, args=(weak, self._over), daemon=True)
                    self._repeating.start()

    def repeat(self) -> None:
        """Name what is under way, where nothing has been written for so long: the hosts', or else the verb's own."""
        with self._lock:
            now, at = time.monotonic(), dict(self._under_way)
        if not at or now < self._shown + STILL_SECONDS:
            return
        self._shown = now
        self._release()
        if len(at) > 1:
            at.pop("", None)
        # A replica is named by its own words.
        named = {key: "" if key.startswith("replica ") else key for key in at}
        for text, hosts in by_hosts((text, named[key]) for key, (text, _) in at.items()).items():
            since = min(began for words, began in at.values() if words == text)
            what = f"  {hosts}: {text}" if hosts else text
            err(f"{now - self._started:6.1f}s  {what}  (for {now - since:.0f} s)")

    def _release(self) -> None:
        with self._lock:
            line, self._held = self._held, ""
        if line:
            err(line)

    def close(self) -> None:
        """Leave out the first line, where nothing came after it."""
        self._over.set()
        self._timer.cancel()
        with self._lock:
            self._held = ""


def _repeat(weak: weakref.ref[LineRenderer], over: threading.Event) -> None:
    while not over.wait(QUICK_SECONDS) and (renderer := weak()):
        renderer.repeat()
        del renderer


class LiveRenderer:
    """One row a host below what has happened so far, redrawn at most ten times a second."""

    def __init__(self) -> None:
        from rich.live import Live as RichLive

        self._console = console(stderr=True)
        self._rows: dict[str, tuple[str, str]] = {}
        self._phase = self._line = ""
        self._passed = Passed()
        self._started = self._since = time.monotonic()
        self._lock = threading.Lock()
        self._live = RichLive(console=self._console, refresh_per_second=8, transient=True, get_renderable=self._picture)
        self._live.start()

    def show(self, event: Event) -> None:
        """Take the event into the picture; what should stay goes above it."""
        text = _text(event)
        if "phases" in event.data:
            self._show_start(event)
        if event.kind in ("phase", "result"):
            self._phase_is_over()
        if event.kind == "result":
            text += f"  ({time.monotonic() - self._started:.1f} s)"
        with self._lock:
            if event.kind == "phase" or (event.kind == "progress" and not event.host):
                self._phase = text
            elif event.host and event.kind in ("start", "progress", "done", "failed"):
                self._rows[event.host] = (event.kind, text)
        if event.kind in ("note", "warning", "result", "failed") and text:
            style = {"warning": "yellow", "failed": "red", "result": "bold green"}.get(event.kind, "")
            host = f"{event.host}: " if event.host else ""
            self._keep("", f"{host}{text}", style)

    def _keep(self, mark: str, text: str, style: str = "") -> None:
        """A line that stays above the picture."""
        shown = folded(text, self._console.width, len(mark))
        self._console.print(styled((mark, "green"), (shown, style)), soft_wrap=True)

    def _phase_is_over(self) -> None:
        """Lines that stay for the phase before and what it did; its rows go, but for those of hosts that failed."""
        now = time.monotonic()
        with self._lock:
            over, self._phase = self._phase, ""
            since, self._since = self._since, now
            done = [(host, text) for host, (kind, text) in self._rows.items() if kind == "done"]
            self._rows = {host: row for host, row in self._rows.items() if row[0] == "failed"}
        for host, text in done if len(done) <= ROWS else []:
            self._keep("  ✓", f" {host}  {text}")
        if over:
            self._keep("✓", f" {over}  {now - since:.1f} s")

    def _show_start(self, event: Event) -> None:
        """A line that stays for each phase that is over, and below the picture the last line of vLLM's log."""
        over, changed = self._passed.news(event)
        for phase, seconds in over:
            self._keep("  ✓", f" {plain(phase):<12}{seconds:7.1f} s")
        self._line = plain(str(event.data["last_line"]))
        if changed and event.data["phase"] == "ready":
            self._keep("  ✓", f" {plain(event.text)}")

    def _picture(self) -> Group:
        from rich.console import Group
        from rich.spinner import Spinner
        from rich.table import Table

        seconds = time.monotonic() - self._started
        with self._lock:
            phase, rows = self._phase, dict(self._rows)
        table = Table.grid(padding=(0, 2))
        marks = {"done": ("✓", "green"), "failed": ("✗", "red")}
        for host, (kind, text) in rows.items():
            if len(rows) > ROWS and kind != "failed":
                continue
            mark, style = marks.get(kind, ("·", "cyan"))
            table.add_row(
                styled((f"  {mark}", style)), styled((host, "bold")), styled(text, overflow="ellipsis", no_wrap=True)
            )
        line = [styled((f"  {self._line}", "dim"), overflow="ellipsis", no_wrap=True)] if self._line else []
        spinner = Spinner("dots", styled(f" {phase}  {seconds:.0f} s", overflow="ellipsis", no_wrap=True))
        return Group(spinner, table, *line)

    def close(self) -> None:
        """Take the picture away; what was printed above it stays."""
        self._live.stop()
