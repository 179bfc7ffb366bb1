"""Pages that are made from the code are fresh, and what pages name is there."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tools.generate import PAGES as MADE
from tools.generate import stale
from tools.reference import EXIT_CODES
from tools.website import CONFIG, NAVIGATION, navigation, problems
from vllm_cluster.cli.verbs import VERBS
from vllm_cluster.kernel import errors

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
# What users read: all pages but those of the reference and of developers.
DEVELOPERS = {"promises", "architecture", "performance", "gpu-performance"}
OF_USERS = [ROOT / "README.md"] + [
    page
    for page in sorted((ROOT / "docs").rglob("*.md"))
    if not {"adr", "reference", "developers"} & {*page.parts} and page.stem not in DEVELOPERS
]
MAX_WORDS, MAX_WORDS_OF_A_PAGE = 25_000, 900
# A sentence of more words than this is long; of all sentences of users' pages, this share may be.
LONG_SENTENCE, MAX_LONG = 25, 0.05
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


def named_in(entries: object) -> list[str]:
    """The pages of a part of the site's navigation, in its order."""
    if isinstance(entries, str):
        return [entries]
    parts = entries.values() if isinstance(entries, dict) else entries if isinstance(entries, list) else ()
    return [page for part in parts for page in named_in(part)]


def test_the_navigation_of_the_site_names_every_page_once() -> None:
    """It is docs/README.md: a page that this does not link is in no list of the site."""
    assert f"\n{NAVIGATION}" in (ROOT / CONFIG).read_text(encoding="utf-8")
    assert sorted(named_in(navigation())) == sorted(str(page.relative_to(ROOT)) for page in PAGES)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ('<a href="other.html#there">', None),
        ('<a href="#here">', None),
        ('<a href="https://vllm.ai">', None),
        ('<a href="gone.html">', "index.html: gone.html: there is no such file"),
        ('<a href="other.html#gone">', "index.html: other.html#gone: there is no such anchor"),
        ('<a href="#gone">', "index.html: #gone: there is no such anchor"),
        ('<img src="gone.png">', "index.html: gone.png: there is no such file"),
        ('<script src="https://example.org/shim.js">', "index.html: loads https://example.org/shim.js"),
        ('<link rel="stylesheet" href="//example.org/font.css">', "index.html: loads //example.org/font.css"),
    ],
)
def test_what_is_wrong_in_a_built_site_is_named(text: str, wrong: str | None, tmp_path: Path) -> None:
    """Links to pages, anchors and files; and all that would need the internet."""
    (tmp_path / "index.html").write_text(f'<p id="here">{text}')
    (tmp_path / "other.html").write_text('<p id="there">')
    assert list(problems(tmp_path)) == ([wrong] if wrong else [])


@pytest.mark.deep
def test_the_site_is_built() -> None:
    """With what `make docs` installs for it."""
    done = subprocess.run(["make", "docs"], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, f"build/site/index.html: {len(PAGES)} pages"), done


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


def sentences(page: str) -> list[str]:
    """The sentences of a page: of its paragraphs and lists, without blocks of code, tables and headings."""
    prose = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
    prose = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", prose)
    blocks = [block for block in re.split(r"\n\s*\n|\n(?=[-*] |\d+\. )", prose) if block.strip()]
    kept = [block for block in blocks if not block.lstrip().startswith(("#", "|", "<!--"))]
    return [one for block in kept for one in re.split(r"(?<=[.!?])\s+", " ".join(block.split())) if one]


def test_sentences_are_those_of_paragraphs_and_lists() -> None:
    page = "# A title.\n\nOne [link. Two](there.md) three.\n\n| a | b. |\n\n```sh\nnone.\n```\n\n- four\n- five six?\n"
    assert sentences(page) == ["One link.", "Two three.", "- four", "- five six?"]


def test_there_is_no_more_to_read_than_people_read() -> None:
    """60,000 words were counted once, and first-time users read few of them."""
    words = {str(page.relative_to(ROOT)): len(page.read_text(encoding="utf-8").split()) for page in OF_USERS}
    assert {page: number for page, number in words.items() if number > MAX_WORDS_OF_A_PAGE} == {}
    assert sum(words.values()) <= MAX_WORDS


def test_sentences_are_short() -> None:
    """Of all users' pages together: one that is long here and there is read all the same."""
    every = [one for page in OF_USERS for one in sentences(page.read_text(encoding="utf-8"))]
    long = [one for one in every if len(one.split()) > LONG_SENTENCE]
    assert len(long) <= MAX_LONG * len(every), "\n".join(long)
