"""What happens while a verb runs, as data that is rendered for people or written as JSON lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["phase", "plan", "start", "done", "failed", "progress", "note", "warning", "result", "error", "log"]


@dataclass(frozen=True)
class Event:
    """One fact about a running verb; `data` is for machines, `text` for people."""

    kind: Kind
    text: str
    host: str | None = None
    data: Mapping[str, object] = field(default_factory=dict)


Emit = Callable[[Event], None]


def warn_once(emit: Emit, *more: Kind) -> Emit:
    """Passes warnings, and events of these kinds, on a single time: a verb that looks again finds mostly the same."""
    kinds = ("warning", *more)
    shown: set[tuple[str | None, str]] = set()

    def show(event: Event) -> None:
        warning = (event.host, event.text)
        if event.kind not in kinds or warning not in shown:
            emit(event)
        if event.kind in kinds:
            shown.add(warning)

    return show


def show_waiting_once(emit: Emit) -> Callable[[str], None]:
    """Shows once, and not at every attempt, who holds the lease that a verb waits for."""
    shown: set[str] = set()

    def show(holder: str) -> None:
        if holder not in shown:
            shown.add(holder)
            emit(Event("progress", f"waiting for {holder}"))

    return show
