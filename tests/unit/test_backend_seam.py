"""What joins the nodes is behind `backends`: a second way beside Ray should not cross the rooms."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.modules import MODULES, nodes, room

RAY = re.compile(r"(?<![a-z])ray(?![a-z])|Ray(?![a-z])|(?<![A-Z])RAY(?![A-Z])")
# Where code names Ray.
HOMES = ("kernel/backends/", "serving/node/backends/", "kernel/images/", "kernel/apply/barrier.py")
# What people write or read under that name: the inventory's key and its default, a column, a key of JSON.
FOR_PEOPLE = {"features/images/render.py", "features/images/use.py", "kernel/inventory/model.py", "kernel/versions.py"}
# Literals without a space that are not texts: names of files, variables, processes and packages that are Ray's.
LITERALS = {
    "serving/serve/verb.py": "the option's word",
    "serving/translate/options.py": "options of earlier releases, as users paste them",
    "kernel/inventory/model.py": "the key's word",
    "wire/order.py": "the name of a backend",
    "kernel/plan/placement.py": "the name of a backend",
    "serving/explain/explain.py": "the name of a log, as users see it",
    "kernel/checks/docker.py": "names of containers of other launchers",
    "features/images/use.py": "the name of an image",
    "kernel/listeners.py": "the file that starts what listens",
    "features/logs/verb.py": "the option",
    "features/images/render.py": "the column",
    "features/logs/lines.py": "the mark of lines, as users see it",
    "wire/status.py": "the key of an earlier version",
    "kernel/inventory/container.py": "variables that users may not set; what reads an inventory imports no backend",
    "serving/explain/on_host/log_excerpt.py": "what runs in an image is one file",
    "features/logs/on_host/log_tail.py": "what runs in an image is one file",
    "serving/status/on_host/sample.py": "what runs in an image is one file",
    "serving/node/supervisor.py": "the mark of lines, as users see it",
    "features/logs/host.py": "how Ray copies a line of a rank",
    "serving/explain/logs.py": "names of files in an excerpt",
    "kernel/checks/codes.py": "a finding's code",
    "kernel/checks/image.py": "a finding's code",
}


def given_names(path: Path) -> Iterator[str]:
    """Every name in a file's code: of variables, attributes, arguments, functions, classes and imports."""
    for node in nodes(path):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.FunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name) | ast.keyword(arg=str(name)) | ast.alias(name=name):
                yield name


def literals(path: Path) -> Iterator[str]:
    """Every string of a file that has no space: a text for people has."""
    for node in nodes(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            text = node.value if isinstance(node.value, str) else node.value.decode(errors="replace")
            if not re.search(r"\s", text.strip()):
                yield text


def naming(words: dict[str, set[str]]) -> dict[str, set[str]]:
    """The files outside Ray's own with such words in them."""
    found = {file: {word for word in those if RAY.search(word)} for file, those in words.items()}
    return {file: those for file, those in found.items() if those and not file.startswith(HOMES)}


def test_code_names_ray_in_its_own_rooms_alone() -> None:
    assert naming({room(path): set(given_names(path)) for path in MODULES}).keys() == FOR_PEOPLE


def test_literals_of_ray_elsewhere_are_listed_with_their_reason() -> None:
    assert naming({room(path): set(literals(path)) for path in MODULES}).keys() == LITERALS.keys()
