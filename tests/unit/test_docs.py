"""Pages that are made from the code are fresh, and what pages name is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tools.generate import PAGES as MADE
from tools.generate import stale
from tools.reference import EXIT_CODES
from vllm_cluster.cli.verbs import VERBS
from vllm_cluster.kernel import errors

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as hosting sites make them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_what_is_made_from_the_code_is_fresh() -> None:
    """Pages, schemas and golden messages."""
    assert [name for name, _ in stale()] == [], "run `make generate` and commit what it writes"


@pytest.mark.parametrize("name", [name for name in MADE if name.endswith(".md")])
def test_a_page_that_is_made_has_no_empty_value(name: str) -> None:
    """A line such as `- Explained: no:` shows that the code has a case without words."""
    text = MADE[name]()
    assert re.findall(r"^- [\w ()]+:(?: no:)? *$", text, re.MULTILINE) == []


def test_the_reference_names_help_as_help_does() -> None:
    assert "| `-h, --help` |" in MADE["docs/reference/commands.md"]()


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


MADE_BY_HAND = [page for page in PAGES if str(page.relative_to(ROOT)) not in MADE and page.name != "promises.md"]
# NAME and the like in a path are the reader's.
PATH_NAMED = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|sh|toml|md))`|^--- (\S+)$", re.MULTILINE)
# What the recipe for a verb adds.
NEW = {f"vllm_cluster/features/uptime/{name}.py" for name in ("action", "feature", "verb")}


@pytest.mark.parametrize("page", MADE_BY_HAND, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_and_targets_that_a_page_names_are_there(page: Path) -> None:
    """Paths in backticks or at the head of a diff, and targets of make: a recipe must work as it is written."""
    text = page.read_text(encoding="utf-8")
    paths = {one or other for one, other in PATH_NAMED.findall(text)}
    paths = {path for path in paths if not re.search(r"[A-Z]{3}", path)} - NEW
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z-]+)", text))
    homes = (ROOT, ROOT / "vllm_cluster")
    lost = [path for path in sorted(paths) if not any((home / path).exists() for home in homes)]
    assert (lost, sorted(named - targets)) == ([], [])


def test_every_exit_code_is_listed() -> None:
    """Those of the error tree and of the help of the verbs; 0, 10 and 130 need no error."""
    kinds = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.VclusterError)]
    codes = {kind.exit_code for kind in kinds} | {code for verb in VERBS.values() for code in verb.exits}
    assert codes | {0} == set(EXIT_CODES)
