"""The recorded logs: what was produced by breaking clusters, and what users reported."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from tests.support.paths import FIXTURES
from vllm_cluster.kernel.explain.diagnosis import Diagnosis, diagnose
from vllm_cluster.kernel.explain.scan import LogSource, scan

# When they were last written, as far as tests care.
NEWEST = datetime(2026, 12, 31, tzinfo=UTC).timestamp()
FOLDER = FIXTURES / "logs"
PRODUCED = sorted(path for path in FOLDER.glob("*.log") if not path.name.startswith("healthy"))
HEALTHY = sorted(FOLDER.glob("healthy*.log"))


def explained(*texts: str | bytes, together: bool = True) -> Diagnosis:
    """The verdict on logs called 0, 1, …, of one cluster or of anybody's."""
    parts: Iterable[bytes] = (text.encode() if isinstance(text, str) else text for text in texts)
    seen = [scan(LogSource(str(name), [(1, part)], newest=NEWEST)) for name, part in enumerate(parts)]
    return diagnose(seen, together=together)


def reported() -> list[tuple[str, str, str]]:
    """The blocks of the file: failure, source, text."""
    blocks = (FOLDER / "reported.txt").read_text().split("\n== ")[1:]
    heads = [block.split("\n", 1) for block in blocks]
    return [(*head.replace("note ", "note-").split(" ", 1), text) for head, text in heads]  # type: ignore[misc]


def failure_of(path: Path) -> str:
    """The failure that a recorded log shows: its name is SLUG.log or SLUG.VARIANT.log."""
    return path.name.split(".", 1)[0]
