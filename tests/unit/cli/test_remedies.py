"""Every command that a message names is one of this program, with options that it has: a remedy can be pasted."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest

from tests.support.messages import PACKAGE, by_room, template
from vllm_cluster.cli import edge
from vllm_cluster.cli.app import app
from vllm_cluster.cli.session import Session
from vllm_cluster.cli.verbs import VERBS, WITHOUT_INVENTORY
from vllm_cluster.errors import VclusterError
from vllm_cluster.events import Event

TEXTS = sorted({line for content in by_room().values() for line in content.splitlines()})
# A verb of ours, and the options and placeholders right behind it; what comes then is a sentence.
COMMAND = re.compile(r"\bvcluster ([a-z-]+)((?: (?:--?[a-z][\w-]*(?:=\S+)?|\{\}|[A-Z][A-Z_]+\b…?|\d+\b))*)")
SENTENCE = re.compile(r"\b(?:run|say|try) (?:vcluster|up|down|--)")


def commands() -> list[str]:
    """Each command in the texts, its placeholders filled in."""
    found = (match for text in TEXTS for match in COMMAND.finditer(text) if match[1] in VERBS)
    return sorted({f"{one[1]}{one[2]}".replace("{}", "X").replace("…", "") for one in found})


def parsed(words: list[str]) -> object:
    """The exit code of a command line that is parsed and not run, or its error."""
    try:
        app([words[0], "--help", *words[1:]], prog_name="vcluster")
    except SystemExit as end:
        return end.code
    except VclusterError as error:
        return error
    return None


def test_the_texts_name_many_commands() -> None:
    assert len(commands()) > 20
    assert {"status", "up", "down", "serve MODEL", "tunnel --port 0"} <= set(commands())


@pytest.mark.parametrize("command", commands())
def test_a_command_in_a_message_is_one_that_exists(command: str) -> None:
    words = shlex.split(command)
    # What follows an option in a message may be its value, or the rest of a sentence.
    assert parsed(words) == 0 or parsed([*words, "1"]) == 0


def test_no_remedy_wraps_a_command_in_a_sentence() -> None:
    """`run vcluster up` cannot be pasted; `vcluster up` can."""
    hints = {
        template(word.value)
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        for word in node.keywords
        if word.arg == "hint"
    }
    assert len(hints) > 50
    assert [hint for hint in hints if SENTENCE.search(hint)] == []


@pytest.mark.parametrize("verb", [name for name in VERBS if name not in WITHOUT_INVENTORY])
def test_a_remedy_has_the_inventory_of_the_call(verb: str) -> None:
    text = edge.with_inventory(f"vcluster {verb}", Path("a b.yaml"))
    assert text == f"vcluster {verb} -i 'a b.yaml'"
    assert parsed(shlex.split(text)[1:]) == 0
    assert edge.with_inventory(text, Path("other")) == text


@pytest.mark.parametrize(("path", "option"), [(Path("lab.yaml"), " -i lab.yaml"), (None, "")])
def test_a_command_in_a_warning_has_the_inventory_too(
    path: Path | None, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Session(path, as_json=False).emit(Event("warning", "its node may still run; vcluster up --forget gpu2"))
    assert f"; vcluster up{option} --forget gpu2\n" in capsys.readouterr().err
