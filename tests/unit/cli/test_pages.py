"""Every command that a page shows is one of this program, with options that it has, also where no test runs it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_lines import parsed
from tests.support.paths import ROOT
from vllm_cluster.cli.verbs import VERBS

# Decisions and changes name options as they were.
PAGES = [
    path
    for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
    if path.name != "CHANGELOG.md" and path.parent.name != "adr"
]


def shown(text: str) -> Iterator[list[str]]:
    """The words behind `vcluster` of each command: in backticks, and at the beginning of a line of a block."""
    code = False
    for line in text.replace("\\\n", " ").splitlines():
        start = line.lstrip()
        code ^= start.startswith("```")
        found = re.findall(r"^(?:\$ )?vcluster (.*)", start) if code else re.findall(r"`vcluster ([^`]+)`", line)
        for command in found:
            # Up to a comment, or the next command of a line.
            one = re.split(r"  +# | (?:&&|\||;|>) ?", command)[0].replace("…", "")
            yield [word for word in shlex.split(one) if not re.fullmatch("-v+", word)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_command_of_a_page_can_be_parsed(page: Path) -> None:
    calls = [words for words in shown(page.read_text(encoding="utf-8")) if words and words[0] in VERBS]
    assert [(words, end) for words in calls if (end := parsed(words)) != 0] == []


def test_the_pages_show_many_commands() -> None:
    assert sum(len(list(shown(page.read_text(encoding="utf-8")))) for page in PAGES) > 200


def test_an_option_that_is_gone_is_found() -> None:
    calls = list(shown("Ask `vcluster status --ray`.\n```text\n$ vcluster up --yes   # now\n```\n"))
    assert calls == [["status", "--ray"], ["up", "--yes"]]
    assert [parsed(words) == 0 for words in calls] == [False, True]
