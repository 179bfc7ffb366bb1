"""Every committed file that is made from the code: `make docs` writes them, and a test holds that they are fresh."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tests.support import json_schemas
from tools import failures, inventory, reference

ROOT = Path(__file__).parents[1]

FILES: Mapping[str, Callable[[], str]] = {
    "docs/failures.md": failures.page,
    "docs/inventory.schema.json": inventory.schema,
    "docs/reference/checks.md": reference.checks,
    "docs/reference/commands.md": reference.commands,
    "docs/reference/events.md": reference.events,
    "docs/reference/exit-codes.md": reference.exit_codes,
    "docs/reference/inventory.md": inventory.page,
    "docs/reference/json/README.md": reference.json_index,
    "inventory.example.yaml": inventory.example,
}


def main() -> None:
    """Write all of them."""
    for name, make in FILES.items():
        (ROOT / name).write_text(make(), encoding="utf-8")
    json_schemas.write()


if __name__ == "__main__":
    main()
