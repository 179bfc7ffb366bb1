"""Every error, fix and finding of the package, by folder: `make generate` writes them to tests/fixtures/messages/.

So the review of a change shows each one that it changes for users; the help of the verbs is in
docs/reference/commands.md. Found in the syntax tree: the texts of what is raised, of errors, findings and problems, of
what is called a fix, and of the variables of a function that end in one of these. What is in braces is left out, so
that the name of a variable is not a message.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache

from tests.support.modules import MODULES, nodes, room
from vllm_cluster.kernel import errors

# Where a fix is: the names of arguments and variables, and its place in what has no name for it.
FIX, FIXES = ("hint", "fix", "advice"), {"Finding": 3, "RequestProblem": 2}
# Calls whose texts are messages even where they are not raised.
_ERRORS = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}
_CALLS = {*_ERRORS, *FIXES, "NotChecked", "add_problem"}
_WORDS = re.compile(r"[^\W\d_]{2,}\S*\s+\S|\S\s+[^\W\d_]{2,}")
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def by_room() -> dict[str, str]:
    """The content of each file of the folder: one text a line, sorted, as JSON writes it."""
    found: dict[str, set[str]] = {}
    for path in MODULES:
        *folders, _ = room(path).split("/")
        found.setdefault("-".join(folders[:2]) or "package", set()).update(messages(nodes(path)))
    lines = {name: sorted(map(_line, found_there)) for name, found_there in found.items() if found_there}
    return {f"{name}.txt": "\n".join(there) + "\n" for name, there in lines.items()}


def messages(tree: Sequence[ast.AST]) -> set[str]:
    """The errors, fixes and findings of one file's nodes."""
    shown = [value for node in tree for value in _shown(node)]
    for function in (node for node in tree if isinstance(node, _Function)):
        shown += _assigned(function)
    return texts(part for value in shown for part in ast.walk(value))


def texts(parts: Iterable[ast.AST]) -> set[str]:
    """The texts of more than one word among nodes; a piece of an f-string is none of its own."""
    parts = list(parts)
    pieces = {id(piece) for node in parts if isinstance(node, ast.JoinedStr) for piece in _pieces(node)}
    return {text for node in parts if id(node) not in pieces and _WORDS.search(text := template(node))}


def template(node: ast.AST) -> str:
    """A string, an f-string or a command with {} for what is filled in; empty for any other node."""
    if isinstance(node, ast.JoinedStr):
        return "".join(template(part) or "{}" for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return template(node.value) if isinstance(node.value, ast.Call) else ""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Option":
        return template(node.args[0])
    if isinstance(node, ast.Call) and _name(node.func) == "command_line":
        texts = [template(word) or "{}" for word in node.args]
        words = " ".join(f"'{text}'" if " " in text else text for text in texts)
        return f"on {{}}: {words}" if node.keywords else words
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def fixes(node: ast.AST) -> Iterator[ast.expr]:
    """What a node gives as a fix."""
    if isinstance(node, ast.Call):
        yield from (word.value for word in node.keywords if word.arg in FIX)
        yield from node.args[FIXES.get(_name(node.func), len(node.args)) :][:1]
    elif isinstance(node, ast.Assign) and any(_name(to) in FIX for to in node.targets):
        yield node.value


def _shown(node: ast.AST) -> Iterator[ast.expr]:
    yield from fixes(node)
    if isinstance(node, ast.Raise) and node.exc:
        yield node.exc
    elif isinstance(node, ast.Call) and _name(node.func) in _CALLS:
        yield from node.args


def _assigned(function: _Function) -> Iterator[ast.expr]:
    """The values of variables that a function shows."""
    inside = list(ast.walk(function))
    parts = (part for node in inside for value in _shown(node) for part in ast.walk(value))
    names = {part.id for part in parts if isinstance(part, ast.Name)}
    for node in inside:
        if isinstance(node, ast.Assign | ast.AugAssign) and node.value:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if names & {_name(to) for to in targets}:
                yield node.value


def _pieces(node: ast.JoinedStr) -> Iterator[ast.AST]:
    """The pieces of an f-string that are not texts of their own: a text inside its braces is one."""
    yield from node.values
    for part in node.values:
        if isinstance(part, ast.FormattedValue) and isinstance(part.format_spec, ast.JoinedStr):
            yield part.format_spec
            yield from _pieces(part.format_spec)


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _line(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
