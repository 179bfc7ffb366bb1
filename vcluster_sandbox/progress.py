"""Lines of progress that never stop for long."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, Queue
from threading import Thread

from vcluster_sandbox.local_docker import Report

# A person who sees nothing for longer looks for what is wrong.
SILENCE_SECONDS = 10.0


@contextmanager
def steady(report: Report, silence: float = SILENCE_SECONDS) -> Iterator[Report]:
    """Report as `report` does; where no line follows within the silence, the last one comes again with its time."""
    lines: Queue[str | None] = Queue()

    def repeat() -> None:
        last, began = "", time.monotonic()
        while True:
            try:
                line = lines.get(timeout=silence)
            except Empty:
                report(f"  {last.strip()}: {time.monotonic() - began:.0f} s so far")
                continue
            if line is None:
                return
            last, began = line, time.monotonic()

    def report_line(text: str) -> None:
        report(text)
        lines.put(text)

    repeating = Thread(target=repeat, daemon=True)
    repeating.start()
    try:
        yield report_line
    finally:
        lines.put(None)
        repeating.join(silence)
