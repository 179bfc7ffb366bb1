"""Every text that a user may read, by room of the package: `make messages` writes them to tests/fixtures/messages/.

So the review of a change shows each word that it changes for users. Found in the syntax tree: every text of more than
one word, single words where they are shown too, and the help of verbs. What is in braces is left out, so that the
name of a variable is not a message.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from tests.support.modules import MODULES, nodes, room

FOLDER = Path(__file__).parents[1] / "fixtures" / "messages"
COMMAND = "make messages"
# Calls whose texts are shown even where they are one word.
SHOWN = re.compile(r"Event|Finding|NotChecked|Code|Stage|Option|Argument|Typer|confirm|add_column|print|\w+Error")
LETTER = re.compile(r"[^\W\d_]")
WORDS = re.compile(r"[^\W\d_]{2,}\S*\s+\S|\S\s+[^\W\d_]{2,}")


@cache
def by_room() -> dict[str, str]:
    """The content of each file of the folder: one text a line, sorted, as JSON writes it."""
    found: dict[str, set[str]] = {}
    for path in MODULES:
        first, *rest = room(path).split("/")
        name = first if rest else "package"
        found.setdefault(name, set()).update(messages(nodes(path), verbs=name == "cli"))
    lines = {name: sorted(map(_line, texts)) for name, texts in found.items() if texts}
    return {f"{name}.txt": "\n".join(texts) + "\n" for name, texts in lines.items()}


def messages(tree: Sequence[ast.AST], *, verbs: bool = False) -> set[str]:
    """The texts of one file's nodes; with `verbs` the docstrings of its functions too, which are the verbs' help."""
    calls = [node for node in tree if isinstance(node, ast.Call)]
    hidden = {id(node.value) for node in tree if isinstance(node, ast.Expr)} | {id(node) for node in _patterns(calls)}
    hidden |= {id(part) for node in tree if isinstance(node, ast.JoinedStr) for part in _parts(node)}
    shown = {
        id(node)
        for call in calls
        if SHOWN.fullmatch(_name(call.func))
        for argument in (*call.args, *(keyword.value for keyword in call.keywords))
        for node in ast.walk(argument)
    }
    texts = {
        text
        for node in tree
        if id(node) not in hidden and LETTER.search(text := template(node))
        if id(node) in shown or WORDS.search(text)
    }
    module = tree[0]
    body = module.body if verbs and isinstance(module, ast.Module) else []
    helps = (ast.get_docstring(node) for node in body if isinstance(node, ast.FunctionDef))
    return texts | {text for text in helps if text}


def template(node: ast.AST) -> str:
    """A string or an f-string with {} for what is filled in; empty for any other node."""
    if isinstance(node, ast.JoinedStr):
        return "".join(template(part) or "{}" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _parts(node: ast.JoinedStr) -> Iterator[ast.AST]:
    """The pieces of an f-string that are not texts of their own: a text inside its braces is one."""
    yield from node.values
    for part in node.values:
        if isinstance(part, ast.FormattedValue) and isinstance(part.format_spec, ast.JoinedStr):
            yield part.format_spec
            yield from _parts(part.format_spec)


def _patterns(calls: Sequence[ast.Call]) -> Iterator[ast.AST]:
    for call in calls:
        if isinstance(call.func, ast.Attribute) and _name(call.func.value) == "re":
            yield from ast.walk(call)


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _line(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def write() -> None:
    """Write the folder again."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path in FOLDER.glob("*.txt"):
        path.unlink()
    for name, content in by_room().items():
        (FOLDER / name).write_text(content)


if __name__ == "__main__":
    write()
