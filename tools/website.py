"""The pages as a site, in build/site: `make docs`.

The site has the folders of this checkout, so that each link leads where it leads in a checkout. Its navigation is
docs/README.md. What is wrong ends the build: a link to a page, an anchor or a file that is not there, and what a page
would load from another place, since the site works without internet.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build"
PAGES, SITE = BUILD / "pages", BUILD / "site"
CONFIG, NAVIGATION = "docs/site/zensical.toml", "nav = []\n"
BUILD_SECONDS = 120
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|mailto:)([^)#\s]*)(?:#[^)\s]*)?\)")
# What a browser loads by itself with a page.
LOADED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("link", "href")}

Entry = dict[str, "str | list[str | Entry]"]


def links(page: Path) -> Iterator[tuple[str, Path]]:
    """Yield the text and the file of each link to a file of this checkout."""
    for match in LINK.finditer(page.read_text(encoding="utf-8")):
        if match[2]:
            yield match[1], (page.parent / match[2]).resolve()


def navigation(root: Path = ROOT) -> list[str | Entry]:
    """Return the first pages, and each section of docs/README.md with the pages that it links."""
    index = root / "docs" / "README.md"
    named = {root / "README.md", index}
    before, *sections = index.read_text(encoding="utf-8").split("\n## ")
    parts: list[str | Entry] = []
    for section in sections:
        entries = _entries(section, index, named)
        if entries:
            parts.append({section.splitlines()[0]: entries} if len(entries) > 1 else entries[0])
    return [{"vcluster": "README.md"}, {"All pages": "docs/README.md"}, *_entries(before, index, named), *parts]


def _entries(text: str, index: Path, named: set[Path]) -> list[str | Entry]:
    """The pages that a part of the index links and that no part before it has."""
    entries: list[str | Entry] = []
    for title, target in LINK.findall(text):
        page = (index.parent / target).resolve()
        if page.suffix == ".md" and page not in named:
            named |= {page, *_folder(page)}
            entries.append(_entry(title, page, index.parents[1]))
    return entries


def _entry(title: str, page: Path, root: Path) -> Entry:
    """A page; the README of a folder has the other pages of its folder below it."""
    name = title[:1].upper() + title[1:]
    folder = _folder(page)
    if not folder:
        return {name: str(page.relative_to(root))}
    return {name: [str(path.relative_to(root)) for path in (page, *folder)]}


def _folder(page: Path) -> list[Path]:
    if page.name != "README.md":
        return []
    linked = [path for _, path in links(page) if path.parent == page.parent and path.suffix == ".md"]
    there = sorted(path for path in page.parent.glob("*.md") if path != page)
    return list(dict.fromkeys([*(path for path in linked if path != page), *there]))


def stage() -> None:
    """Copy the pages, and the files that they link, to build/pages, and the configuration beside it."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(ROOT / "docs", PAGES / "docs", ignore=shutil.ignore_patterns("*.toml"))
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    linked = [path for page in pages for _, path in links(page) if path.is_file()]
    for path in {*ROOT.glob("*.md"), *(path for path in linked if path.is_relative_to(ROOT))}:
        copy = PAGES / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    config = (ROOT / CONFIG).read_text(encoding="utf-8").replace(NAVIGATION, f"nav = {_toml(navigation())}\n", 1)
    (BUILD / "zensical.toml").write_text(config, encoding="utf-8")


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{json.dumps(key)} = {_toml(one)}' for key, one in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value)


class _Page(HTMLParser):
    """The anchors of a page of the site, its links, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = {"", "top"}
        self.links: list[tuple[str, bool]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep what links, or can be linked to."""
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.anchors.add(value)
            if name in ("href", "src") and value:
                self.links.append((value, (tag, name) in LOADED))


def problems(site: Path) -> Iterator[str]:
    """Yield what is wrong in the pages of a built site."""
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        # Its links are those of the server that shows it in the place of a page that is not there.
        if path.name == "404.html":
            continue
        for link, loaded in dict.fromkeys(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if loaded and parts.scheme != "data":
                    yield f"{path.relative_to(site)}: loads {link}"
                continue
            to = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not to.is_file():
                yield f"{path.relative_to(site)}: {link}: there is no such file"
            elif to in pages and unquote(parts.fragment) not in pages[to].anchors:
                yield f"{path.relative_to(site)}: {link}: there is no such anchor"


def main() -> int:
    """Build the site, and look at all of its links."""
    stage()
    shutil.rmtree(SITE, ignore_errors=True)
    # In build, since it clears the folder .cache beside its configuration, where the sandbox keeps its own.
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    built = subprocess.run(command, cwd=BUILD, timeout=BUILD_SECONDS, check=False)
    wrong = list(problems(SITE)) if SITE.exists() else []
    print("\n".join(wrong), end="\n" if wrong else "")
    if built.returncode or wrong:
        return 1
    print(f"{SITE.relative_to(ROOT)}/index.html: {len(list(SITE.rglob('*.html'))) - 1} pages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
