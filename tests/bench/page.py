"""docs/performance.md: each measurement writes its own section."""

from __future__ import annotations

from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "performance.md"


def write_section(title: str, text: str) -> None:
    """Replace the section of that title, or add it; the others stay."""
    head, *sections = PAGE.read_text().split("\n## ")
    rest = [section.rstrip("\n") for section in sections if section.split("\n", 1)[0] != title]
    PAGE.write_text("\n\n## ".join([head.rstrip("\n"), *rest, f"{title}\n\n{text.strip()}"]) + "\n")


def write_head(text: str) -> None:
    """Replace what is above the sections."""
    _, *sections = PAGE.read_text().split("\n## ")
    PAGE.write_text("\n\n## ".join([text.rstrip("\n"), *(section.rstrip("\n") for section in sections)]) + "\n")
