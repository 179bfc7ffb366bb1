"""YAML to plain data, and the line of everything in it."""

from __future__ import annotations

import math
import re
import warnings
from dataclasses import dataclass, field

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from vllm_cluster.kernel.inventory.problems import Loc, Problem
from vllm_cluster.kernel.inventory.words import make_printable, quote_value

_TAG = "tag:yaml.org,2002:"
_PLAIN_TAGS = {_TAG + kind for kind in ("int", "float", "bool", "null")}
# Of keys and values: 256 hosts with ten keys each have 6,000.
_MAX_WRITTEN = 20_000
# Aliases can make a small file expand to a huge one.
_MAX_NODES = 100_000
# The place of each value is as long as it is deep: 100,000 aliases at a depth of 280 took 254 MB. A recipe has 8.
_MAX_DEPTH = 32
_MAX_NUMBER = 1 << 64
_COLON = "mapping values are not allowed here"
_WITHOUT_SPACE = re.compile(r"[ \t]*([a-z_]{1,40}):[^ \t].*", re.ASCII)
_SYNTAX = {
    "found character '\\t' that cannot start any token": "a tab; YAML is indented with spaces",
    _COLON: 'an unexpected colon; check the indentation, and put values that hold ": " in quotes',
    "could not find expected ':'": "a key without its colon, or a line indented too little",
    "but found another document": "a second document begins (---); an inventory is one document",
    "found unexpected end of stream": "the file ends inside quotes",
}


@dataclass
class Document:
    """A file's data, the line of every place in it, and what was wrong on the way."""

    data: object = None
    lines: dict[Loc, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    # Until when its hosts are there, in seconds since 1970, where what lends them has an end.
    lent_until: float | None = None

    def line(self, loc: Loc) -> int:
        """The line of a place, or of its nearest parent."""
        while loc not in self.lines and loc:
            loc = loc[:-1]
        return self.lines.get(loc, 1)

    def add_problem(self, loc: Loc, text: str, line: int | None = None, example: tuple[str, ...] = ()) -> None:
        """Note something wrong at a place, with lines in which it would be right."""
        self.problems.append(Problem(self.line(loc) if line is None else line, loc, text, example))


def read_document(text: str, most: float = math.inf) -> Document:
    """Read one YAML document, of so many characters with what its aliases repeat.

    What cannot be read is among its problems.
    """
    document = Document()
    yaml = YAML(typ="safe", pure=True)
    yaml.Composer = _Composer
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a reused anchor is fine here
            node = yaml.compose(text)
            if node is not None:
                _YamlWalker(yaml, document, most).read_root(node)
    except MarkedYAMLError as error:
        _blame_syntax(document, error, text)
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        document.add_problem((), "an unprintable character; remove it or write it as an escape in double quotes", line)
    except _TooMuch as error:
        document.add_problem((), str(error))
    except RecursionError:
        document.add_problem((), "nested too deep to be an inventory")
    except Exception as error:  # the YAML library answers some broken directives with bare Python errors
        document.add_problem((), f"not YAML: {make_printable(str(error)) or type(error).__name__}")
    return document


def _blame_syntax(document: Document, error: MarkedYAMLError, written: str) -> None:
    mark = error.problem_mark or error.context_mark
    above = written.split("\n")[mark.line - 1] if mark is not None and mark.line else ""
    if mark is not None and error.problem == _COLON and (key := _WITHOUT_SPACE.fullmatch(above)):
        # YAML reads it as a text that continues, and stops at the colon of the next line.
        text = f"a colon without a space behind it: write `{make_printable(key[1])}: …`"
        document.add_problem((), text, mark.line)
        return
    problem = make_printable(str(error.problem or error.context or error))
    text = _SYNTAX.get(str(error.problem), f"not YAML: {problem}")
    begun = error.context_mark
    if begun is not None and mark is not None and begun.line != mark.line:
        text += f" (in what begins on line {begun.line + 1})"
    document.add_problem((), text, mark.line + 1 if mark is not None else 1)


class _TooMuch(Exception):
    """A file has more than is read."""


class _Composer(Composer):
    """The parser's own, which ends where a file has too many nodes: 256 kB of `?,` took 270 MB and 18 s."""

    count = 0

    def compose_node(self, parent: object, index: object) -> Node:
        self.count += 1
        if self.count > _MAX_WRITTEN:
            raise _TooMuch(f"more than {_MAX_WRITTEN} keys and values, the limit of an inventory")
        node: Node = super().compose_node(parent, index)
        return node


class _YamlWalker:
    """One walk over the nodes of a document."""

    def __init__(self, yaml: YAML, document: Document, most: float) -> None:
        self.yaml, self.most = yaml, most
        self.document = document
        self.open: set[int] = set()
        self.nodes = self.text = 0

    def read_root(self, node: Node) -> None:
        self.document.lines[()] = node.start_mark.line + 1
        self.document.data = self.read(node, ())

    def read(self, node: Node, loc: Loc) -> object:
        self.nodes += 1
        self.text += len(node.value)
        if id(node) in self.open:
            return self.refuse(node, loc, "an alias to something that it is itself part of")
        if len(loc) > _MAX_DEPTH:
            raise RecursionError  # as of the parser, which bears ten times that without aliases
        if self.nodes > _MAX_NODES or self.text > self.most:
            raise _TooMuch("aliases make this file too large")
        self.open.add(id(node))
        try:
            if isinstance(node, ScalarNode):
                return self.scalar(node, loc)
            if isinstance(node, MappingNode) and node.tag == _TAG + "map":
                return self.mapping(node, loc)
            if isinstance(node, SequenceNode) and node.tag == _TAG + "seq":
                return self.sequence(node, loc)
            return self.refuse(node, loc, f"the tag {quote_value(str(node.tag))} means nothing here; remove it")
        finally:
            self.open.discard(id(node))

    def refuse(self, node: Node, loc: Loc, text: str) -> object:
        """Add the problem; the value counts as absent."""
        self.document.add_problem(loc, text, node.start_mark.line + 1)
        return None

    def scalar(self, node: ScalarNode, loc: Loc) -> object:
        if node.tag == _TAG + "str":
            return str(node.value)
        if node.tag == _TAG + "timestamp":
            return self.refuse(node, loc, "reads as a date; put it in quotes")
        if node.tag not in _PLAIN_TAGS:
            return self.refuse(node, loc, f"the tag {quote_value(str(node.tag))} means nothing here; remove it")
        try:
            value: object = self.yaml.constructor.construct_object(node)
        except (ValueError, ArithmeticError, MarkedYAMLError, LookupError):
            return self.refuse(node, loc, "a number that cannot be read")
        # Python reads 0xff… of any length, and refuses to write it as a decimal.
        if isinstance(value, int) and abs(value) > _MAX_NUMBER:
            return self.refuse(node, loc, "a number that cannot be read")
        return value

    def sequence(self, node: SequenceNode, loc: Loc) -> list[object]:
        items: list[object] = []
        for index, item in enumerate(node.value):
            self.document.lines[(*loc, index)] = item.start_mark.line + 1
            items.append(self.read(item, (*loc, index)))
        return items

    def mapping(self, node: MappingNode, loc: Loc) -> dict[str, object]:
        own: dict[str, object] = {}
        merged: dict[str, object] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            self.text += len(key.value)
            if key.tag == _TAG + "merge":
                merged = {**self.merged(value, loc), **merged}
            elif not isinstance(key, ScalarNode) or key.tag != _TAG + "str":
                shape = quote_value(str(key.value)) if isinstance(key, ScalarNode) else "this"
                self.document.add_problem(loc, f"the key {shape} is not text; put it in quotes", line)
            elif key.value in own:
                first = self.document.lines[(*loc, key.value)]
                twice = f"written twice, first on line {first}; keep one"
                # The place keeps its first line, so the second value is not looked at.
                self.document.problems.append(Problem(line, (*loc, key.value), twice))
            else:
                # An empty value begins, for the parser, where the next token does.
                here = isinstance(value, ScalarNode) and value.value != ""
                self.document.lines[(*loc, key.value)] = value.start_mark.line + 1 if here else line
                own[key.value] = self.read(value, (*loc, key.value))
        return {**merged, **own}

    def merged(self, node: Node, loc: Loc) -> dict[str, object]:
        parts: list[Node] = node.value if isinstance(node, SequenceNode) else [node]
        found: dict[str, object] = {}
        for part in parts:
            if not isinstance(part, MappingNode):
                self.refuse(part, loc, "<< merges mappings (<<: *anchor), and this is none")
                continue
            kept, self.document.lines = self.document.lines, {}
            value = self.read(part, loc)
            merged, self.document.lines = self.document.lines, kept
            for place, line in merged.items():
                kept.setdefault(place, line)  # what is written here keeps its own line
            if isinstance(value, dict):
                found = {**value, **found}
        return found
