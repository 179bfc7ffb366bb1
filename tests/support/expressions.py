"""Every regular expression of the package, and for each the texts that it nearly fits: what makes one slow."""

from __future__ import annotations

import ast
import importlib
import re
import re._constants as names  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, product
from pathlib import Path
from typing import Any

from tests.support.modules import MODULES, nodes, room

METHODS = frozenset({"search", "match", "fullmatch", "finditer", "findall", "sub", "subn", "split"})
# What runs elsewhere is read as text: its expressions are those that it has as literals.
_NOT_IMPORTED = re.compile(r"/on_host/|/on_head/|__main__")
# A repeat that is allowed fewer times takes little, wherever it begins.
_MANY = 40
# For a set that names what is not in it.
_ANY = "a1 -.:/=_,\"'[](){}<>\\@#*%A\t|;+"
_OF_KIND = {
    names.CATEGORY_DIGIT: "1",
    names.CATEGORY_NOT_DIGIT: "a-. ",
    names.CATEGORY_SPACE: " ",
    names.CATEGORY_NOT_SPACE: "a1-.:[",
    names.CATEGORY_WORD: "a1_",
    names.CATEGORY_NOT_WORD: "- .:",
}
_REPEATS = (names.MAX_REPEAT, names.MIN_REPEAT, names.POSSESSIVE_REPEAT)
Node = tuple[Any, Any]


@dataclass
class Expression:
    """One expression: in which file, by which name, and by which methods it is applied."""

    pattern: re.Pattern[Any]
    where: str
    methods: set[str] = field(default_factory=set)

    def seconds(self, text: str) -> float:
        """The processor's time that its slowest use takes on a text."""
        given = text.encode("latin-1", "replace") if isinstance(self.pattern.pattern, bytes) else text
        return max(self._timed(method, given) for method in self.methods)

    def _timed(self, method: str, text: Any) -> float:
        began = time.process_time()
        if method in ("match", "fullmatch", "search"):
            getattr(self.pattern, method)(text)
        else:
            for _ in self.pattern.finditer(text):
                pass
        return time.process_time() - began

    def near(self) -> set[tuple[str, str]]:
        """The begin of texts that it nearly fits, and what comes again and again: a long repeat, what is before it."""
        found = set[tuple[str, str]]()
        for before, body in _repeats(parser.parse(self.pattern.pattern, self.pattern.flags & ~re.UNICODE)):
            for first, again in product(_fitting(before)[:4], filter(None, _fitting(body)[:6])):
                found |= {(first, again), ("", first + again), ("", f"{first}{again} ")}
        return found


def every_expression() -> list[Expression]:
    """Each expression that a file names or applies, with its uses there, and elsewhere where its name is public."""
    uses, found = dict[str, set[str]](), dict[tuple[str | bytes, int], Expression]()
    for path in MODULES:
        for node in nodes(path):
            match node:
                case ast.Attribute(value=ast.Name(id=name) | ast.Attribute(attr=name), attr=method) if (
                    method in METHODS
                ):
                    uses.setdefault(_key(path, name), set()).add(method)
    for path in MODULES:
        for name, pattern, method in _in_file(path):
            one = found.setdefault((pattern.pattern, pattern.flags), Expression(pattern, f"{room(path)}: {name}"))
            one.methods |= {method} if method else uses.get(_key(path, name), {"search"})
    return list(found.values())


def _key(path: Path, name: str) -> str:
    return f"{room(path)}: {name}" if name.startswith("_") else name


def _in_file(path: Path) -> Iterator[tuple[str, re.Pattern[Any], str]]:
    """The name of each, empty where it has none, and the method that it is called by where it is called at once."""
    for node in nodes(path):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="re"), attr=method),
                args=[ast.Constant(value=str() | bytes() as text), *_],
            ) if method in METHODS:
                yield text if isinstance(text, str) else text.decode(), re.compile(text), method
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Call(
                    func=ast.Attribute(attr="compile"), args=[ast.Constant(value=str() | bytes() as text), *_]
                ),
            ):
                yield name, re.compile(text), ""
    if not _NOT_IMPORTED.search(str(path)):
        module = importlib.import_module(
            ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        )
        for name, value in vars(module).items():
            yield from ((name, pattern, "") for pattern in _held(value))


ROOT = Path(importlib.import_module("vllm_cluster").__file__ or "").parents[1]


def _held(value: object, depth: int = 3) -> Iterator[re.Pattern[Any]]:
    """The expressions in a value of a module."""
    if isinstance(value, re.Pattern):
        yield value
    elif depth and not isinstance(value, type):
        inner: Iterable[object] = ()
        if isinstance(value, list | tuple | set | frozenset):
            inner = value
        elif isinstance(value, dict):
            inner = value.values()
        elif hasattr(value, "__dataclass_fields__"):
            inner = (getattr(value, name, None) for name in value.__dataclass_fields__)
        for one in islice(inner, 1000):
            yield from _held(one, depth - 1)


def _repeats(sequence: Iterable[Node], before: Sequence[Node] = ()) -> Iterator[tuple[list[Node], Sequence[Node]]]:
    """What is before each long repeat, and what is repeated."""
    passed = list(before)
    for kind, value in sequence:
        if kind in _REPEATS:
            if value[1] >= _MANY:
                yield list(passed), value[2]
            yield from _repeats(value[2], passed)
        elif kind is names.BRANCH:
            for branch in value[1]:
                yield from _repeats(branch, passed)
        elif kind in (names.SUBPATTERN, names.ASSERT, names.ASSERT_NOT):
            yield from _repeats(value[-1], passed)
        elif kind is names.ATOMIC_GROUP:
            yield from _repeats(value, passed)
        passed.append((kind, value))


def _fitting(sequence: Iterable[Node]) -> list[str]:
    """Some texts that a part of an expression fits."""
    texts = [""]
    for kind, value in sequence:
        ends: Iterable[str] = ("",)
        if kind is names.LITERAL:
            ends = (chr(value),)
        elif kind is names.NOT_LITERAL:
            ends = [char for char in _ANY if ord(char) != value][:3]
        elif kind is names.ANY:
            ends = ("a", "-", " ")
        elif kind is names.IN:
            ends = _of_set(value)[:6]
        elif kind is names.BRANCH:
            ends = [text for branch in value[1] for text in _fitting(branch)[:2]][:8]
        elif kind is names.SUBPATTERN:
            ends = _fitting(value[-1])
        elif kind is names.ATOMIC_GROUP:
            ends = _fitting(value)
        elif kind in _REPEATS:
            least, most, body = value
            ends = [text * max(least, min(most, 1)) for text in _fitting(body)[:4]]
            ends += [""] if least == 0 else []
        texts = [text + end for text, end in product(texts, ends)][:40]
    return list(dict.fromkeys(texts))[:12]


def _of_set(items: Iterable[Node]) -> list[str]:
    """Some characters of a set."""
    inside, ranges, inverted = set[str](), list[range](), False
    for kind, value in items:
        if kind is names.NEGATE:
            inverted = True
        elif kind is names.LITERAL:
            inside.add(chr(value))
        elif kind is names.RANGE:
            inside |= {chr(value[0]), chr(value[1])}
            ranges.append(range(value[0], value[1] + 1))
        elif kind is names.CATEGORY:
            inside |= {*_OF_KIND[value]}
    if not inverted:
        return sorted(inside)
    return [char for char in _ANY if char not in inside and not any(ord(char) in one for one in ranges)] or ["a"]
