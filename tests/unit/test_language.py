"""Plain English of the field: the names in the package, its texts and its pages."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.support.modules import MODULES, PACKAGE, nodes, room
from tests.support.paths import ROOT, TEST_FOLDERS
from vllm_cluster.kernel.backends.seam import Backend

# Hosts, files and programs do none of these, and people are called by what they do.
WORD = re.compile(
    r"\b(?:tell|tells|told|telling|say|says|said|saying|stand|stands|stood|standing|mend|mends|mended|mending|heed|heeds"
    r"|reckon|reckons|reckoned|anew|nobody|somebody|besides|wish|wishes|wished|hear|hears|heard|obey|ours|things?"
    r"|whatever)\b",
    re.IGNORECASE,
)
PHRASES = re.compile(
    r"(?<!there )\b(?:is|are) no (?!longer\b)\w+|\bfor ever\b|\bof ours\b|\bas told\b|\bthere already\b|\bin words\b"
    r"|\bgo(?:es|ing)? on\b",
    re.IGNORECASE,
)
# A limit is MAX_ or MIN_ and what is limited.
SUPERLATIVE = re.compile(r"_?(?:MOST|LEAST|LONGEST|LARGEST|SMALLEST|OLDEST|NEWEST)(?:_|$)")
# What is beside the package, and explained in plain English too.
BESIDE = [path for top in (ROOT / "scripts", *TEST_FOLDERS, ROOT / "tools") for path in sorted(top.rglob("*.py"))]
PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def names(tree: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """Every name that a file gives, with its line."""
    for node in tree:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.alias) and node.asname:
            yield node.lineno, node.asname


def definitions(path: Path) -> Iterator[tuple[int, str]]:
    """The name of a file, and those of its functions and classes."""
    yield 1, path.stem
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name


def texts(tree: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """Every text of a file and its line, docstrings too; not the patterns that match what other programs print."""
    patterns = {
        id(part)
        for call in tree
        if isinstance(call, ast.Call) and ast.unparse(call.func).startswith("re.")
        for part in ast.walk(call)
    }
    for node in tree:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in patterns:
            yield node.lineno, node.value


def comments(path: Path) -> Iterator[tuple[int, str]]:
    """The comments of a file of Python, or of a shell script; none where no line has such a word, which is quick."""
    if not wrong(path.read_text()):
        return
    if path.suffix == ".py":
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string
    else:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if line.lstrip().startswith("#"):
                yield number, line


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """The docstrings of a file; none where no line has such a word."""
    for node in nodes(path) if wrong(path.read_text()) else ():
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
            yield getattr(node, "lineno", 1), text


def prose(page: str) -> Iterator[tuple[int, str]]:
    """The lines of a page that are not code."""
    code = False
    for number, line in enumerate(page.splitlines(), 1):
        code ^= line.lstrip().startswith("```")
        if not code:
            yield number, re.sub(r"`[^`]*`", "", line)


def wrong(text: str) -> str | None:
    """The first banned word or phrase of a text."""
    found = WORD.search(text) or PHRASES.search(text)
    return found[0] if found else None


def wrong_name(name: str) -> str | None:
    """The first banned word or phrase of a name."""
    return wrong(" ".join(part.lower() for part in PARTS.findall(name)))


def explained() -> Iterator[tuple[Path, Iterator[tuple[int, str]]]]:
    """What people read of each file: texts and comments of the package, pages, and what explains tests and tools."""
    for path in [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]:
        yield path, prose(path.read_text())
    for path in MODULES:
        yield path, texts(nodes(path))
    for path in (*MODULES, *sorted(PACKAGE.rglob("*.sh"))):
        yield path, comments(path)
    # A test may quote what others print.
    for path in BESIDE:
        yield path, docstrings(path)
        yield path, comments(path)


def test_every_text_is_plain_english() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {word!r} in {' '.join(text.split())[:100]!r}"
        for path, lines in explained()
        for number, text in lines
        if (word := wrong(text))
    ]
    assert found == []


def test_every_name_is_of_plain_words() -> None:
    found = [
        f"{room(path)}:{line}: {name}"
        for path in MODULES
        for line, name in names(nodes(path))
        if wrong_name(name) or SUPERLATIVE.match(name)
    ]
    assert found == []


def test_every_test_has_a_plain_name() -> None:
    """And what helps it: a variable may hold what another program wrote."""
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in BESIDE
        for line, name in definitions(path)
        if wrong_name(name)
    ]
    assert len(BESIDE) > 100
    assert found == []


def test_a_class_is_named_once_in_the_package() -> None:
    places = defaultdict(list)
    for path in MODULES:
        for node in nodes(path):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{room(path)}:{node.lineno}")
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


# Contracts: what starts a program that runs elsewhere, and what each backend has, which is one way to do it.
STARTS = "main"
BACKENDS = "kernel/backends"
OF_A_BACKEND = frozenset(name for name in vars(Backend) if not name.startswith("_"))


def public(tree: ast.Module) -> set[str]:
    """The functions and classes that a module has for others."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")}


def named_twice(modules: Mapping[str, set[str]]) -> dict[str, list[str]]:
    """The public names that two modules of a layer have, and which; `modules` are by their path in the package."""
    places: dict[tuple[str, str], set[str]] = defaultdict(set)
    for path, found in modules.items():
        layer, folder = path.split("/")[0], path.rpartition("/")[0]
        for name in found - {STARTS}:
            places[layer, name].add(folder if folder == BACKENDS and name in OF_A_BACKEND else path)
    return {name: sorted(where) for (_, name), where in places.items() if len(where) > 1}


# fault: serving/node/front.py: async def run_front( → async def serve(
def test_a_function_is_named_once_in_its_layer() -> None:
    """A call shows what it does, without a look at the import: there were four functions `place`."""
    ours = [path for path in MODULES if path.is_relative_to(PACKAGE)]
    assert named_twice({room(path): public(ast.parse(path.read_text())) for path in ours}) == {}


def test_a_name_of_two_modules_is_found() -> None:
    seam = {"kernel/backends/ray.py": {"parts", "made"}, "kernel/backends/mp.py": {"parts", "main"}}
    assert named_twice({**seam, "kernel/plan/diff.py": {"main"}, "serving/head.py": {"made"}}) == {}
    assert set(named_twice({**seam, "kernel/plan/diff.py": {"parts"}, "kernel/text.py": {"made"}})) == {"parts", "made"}


def test_no_module_hides_behind_an_underscore() -> None:
    """All modules are internal."""
    assert [room(path) for path in MODULES if re.match(r"_[a-z]", path.name)] == []


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("The host tells its name.", "tells"),
        ("gpu1 is no host", "is no host"),
        ("there is no host", None),
        ("it is no longer there", None),
        ("The run goes on.", "goes on"),
        ("foretelling", None),
    ],
)
def test_a_banned_word_is_found(text: str, word: str | None) -> None:
    assert wrong(text) == word


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("test_a_host_says_so", "says"),
        ("_HostTells", "tells"),
        ("test_a_folder_is_no_model", "is no model"),
        ("test_essays_are_answered", None),
    ],
)
def test_a_banned_word_of_a_name_is_found(name: str, word: str | None) -> None:
    assert wrong_name(name) == word


# fault: kernel/plan/node_status.py: its node has not joined → its node is not on the roll
def test_no_text_for_people_names_the_roll() -> None:
    """The list of the nodes that are here has that name in the code alone: for users a node has joined, or has not."""
    described = {
        id(node.body[0].value)
        for path in MODULES
        for node in nodes(path)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if node.body and isinstance(node.body[0], ast.Expr)
    }
    found = [
        f"{room(path)}:{node.lineno}: {node.value!r}"
        for path in MODULES
        for node in nodes(path)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in described
        if re.search(r"\b[Rr]oll\b", node.value) and " " in node.value.strip()
    ]
    assert found == []
