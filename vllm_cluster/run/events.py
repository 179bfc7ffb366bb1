"""What happens while a verb runs, as data that is rendered for people or written as JSON lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["phase", "plan", "start", "done", "failed", "progress", "note", "warning", "result", "error"]


@dataclass(frozen=True)
class Event:
    """One thing that happened; `data` is for machines, `text` for people."""

    kind: Kind
    text: str
    host: str | None = None
    data: Mapping[str, object] = field(default_factory=dict)


Emit = Callable[[Event], None]
