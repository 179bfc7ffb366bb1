"""Every committed file that is made from the code: `make generate` writes them, a test holds that they are fresh."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tests.support import messages
from tools import failures, inventory, json_schemas, reference, security

ROOT = Path(__file__).parents[1]

PAGES: Mapping[str, Callable[[], str]] = {
    "SECURITY.md": security.page,
    "docs/reference/failures.md": failures.page,
    "docs/inventory.schema.json": inventory.schema,
    "docs/reference/checks.md": reference.checks,
    "docs/reference/commands.md": reference.commands,
    "docs/reference/events.md": reference.events,
    "docs/reference/exit-codes.md": reference.exit_codes,
    "docs/reference/inventory.md": inventory.page,
    "docs/reference/json/README.md": reference.json_index,
    "inventory.example.yaml": inventory.example,
}
# Files that are all made, a name each.
FOLDERS: Mapping[str, tuple[str, Callable[[], Mapping[str, str]]]] = {
    "docs/reference/json": ("*.json", json_schemas.texts),
    "tests/fixtures/messages": ("*.txt", messages.by_room),
}


def files() -> dict[str, str]:
    """The content of each, by its path."""
    pages = {name: make() for name, make in PAGES.items()}
    return pages | {f"{folder}/{name}": text for folder, (_, make) in FOLDERS.items() for name, text in make().items()}


def stale() -> Iterator[tuple[str, str | None]]:
    """Yield each file that differs from what the code makes, and what belongs there; None where nothing does."""
    made = files()
    there = {
        str(path.relative_to(ROOT)) for name, (ending, _) in FOLDERS.items() for path in (ROOT / name).glob(ending)
    }
    yield from ((name, None) for name in sorted(there - made.keys()))
    for name, text in made.items():
        if not (ROOT / name).exists() or (ROOT / name).read_text(encoding="utf-8") != text:
            yield name, text


def main() -> None:
    """Write those that are stale, and name them."""
    for name, text in stale():
        print(name)
        if text is None:
            (ROOT / name).unlink()
        else:
            (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
