"""Pages that are made from the code are fresh, and what pages name is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tools.docs import FILES
from tools.reference import EXIT_CODES
from vllm_cluster.cli.verbs import VERBS
from vllm_cluster.core import errors

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as hosting sites make them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", FILES)
def test_a_page_that_is_made_is_fresh(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == FILES[name](), "run `make docs` and commit what it writes"


def links(page: Path) -> Iterator[tuple[str, Path, str]]:
    """Each link to a file of this checkout or to a heading: as it is written, the file, the heading."""
    for match in LINK.finditer(page.read_text(encoding="utf-8")):
        yield match[0], (page.parent / match[1]).resolve() if match[1] else page, match[2] or ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    wrong = [text for text, to, head in links(page) if not to.exists() or (head and head not in anchors(to))]
    assert wrong == []


def test_every_page_can_be_found_from_the_index() -> None:
    """By links from docs/README.md, over other pages."""
    found: set[Path] = set()
    new = {ROOT / "docs" / "README.md"}
    while new:
        found |= new
        new = {to for page in new for _, to, _ in links(page) if to.suffix == ".md"} - found
    assert [str(page.relative_to(ROOT)) for page in PAGES if page not in found and page.parent != ROOT] == []


def test_every_exit_code_is_listed() -> None:
    """Those of the error tree and of the help of the verbs; 0, 10 and 130 need no error."""
    kinds = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.VclusterError)]
    codes = {kind.exit_code for kind in kinds} | {code for verb in VERBS.values() for code in verb.exits}
    assert codes | {0} == set(EXIT_CODES)
