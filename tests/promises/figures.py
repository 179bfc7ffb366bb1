"""What a promise's attack measured, kept as one small file each for the table that shows them."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "build" / "promises"


def record(promise: str, attack: str, figure: str, passed: bool) -> None:
    """Keep the figure of one attack on one promise; a later run replaces it."""
    slug = re.sub(r"[^a-z0-9]+", "-", attack.lower()).strip("-")
    row = {"promise": promise, "attack": attack, "figure": figure, "passed": passed}
    FOLDER.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**row, "date": datetime.now(UTC).strftime("%Y-%m-%d")}, indent=1)
    (FOLDER / f"{promise}-{slug}.json").write_text(text + "\n")
