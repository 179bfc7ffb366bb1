"""What joins the nodes is behind `backends`: a second way beside Ray should not cross the rooms."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from tests.support.modules import MODULES, nodes, room
from vllm_cluster.kernel.backends import BACKENDS, mp, ray
from vllm_cluster.kernel.backends.seam import Backend
from vllm_cluster.wire.backends import BackendName

RAY = re.compile(r"(?<![a-z])ray(?![a-z])|Ray(?![a-z])|(?<![A-Z])RAY(?![A-Z])")
# Where code names Ray.
HOMES = ("kernel/backends/", "serving/node/backends/", "kernel/images/", "kernel/apply/barrier.py")
# What people write or read under that name: the inventory's key and its default, a column, a key of JSON.
FOR_PEOPLE = {"features/images/render.py", "features/images/use.py", "kernel/inventory/model.py", "kernel/versions.py"}
# Literals without a space that are not texts: names of files, variables, processes and packages that are Ray's.
LITERALS = {
    "serving/translate/options.py": "options of earlier releases, as users paste them",
    "kernel/inventory/model.py": "the key's word",
    "wire/backends.py": "the names of the backends",
    "wire/order.py": "what earlier requests mean without one",
    "kernel/plan/placement.py": "what there is without one",
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
    "serving/status/status.py": "who counts the GPUs, as users see it",
    "kernel/checks/codes.py": "a finding's code",
    "kernel/checks/image.py": "a finding's code",
    "features/slurm/script.py": "the files that the front of a job is made of",
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


@pytest.mark.spans
def test_code_names_ray_in_its_own_rooms_alone() -> None:
    assert naming({room(path): set(given_names(path)) for path in MODULES}).keys() == FOR_PEOPLE


@pytest.mark.spans
def test_literals_of_ray_elsewhere_are_listed_with_their_reason() -> None:
    assert naming({room(path): set(literals(path)) for path in MODULES}).keys() == LITERALS.keys()


# What a module lacks of the seam is found here by mypy, since the registry finds modules by name.
TYPED: tuple[Backend, ...] = (mp, ray)


# fault: kernel/backends/mp.py: def start_argv(_: Role, *, address: str, → def start_argv(_: Role, address: str, *,
def test_each_backend_has_all_of_the_seam() -> None:
    calls = {name for name, member in vars(Backend).items() if inspect.isfunction(member) and not name.startswith("_")}
    for name, backend in BACKENDS.items():
        assert [one for one in get_type_hints(Backend) if not hasattr(backend, one)] == [], name
        for call in calls:
            there = inspect.signature(getattr(backend, call)).parameters.values()
            asked = list(inspect.signature(getattr(Backend, call)).parameters.values())[1:]
            assert [one.kind for one in there] == [one.kind for one in asked], f"{name}.{call}"
            assert {one.name for one in there} - {"_"} <= {one.name for one in asked}, f"{name}.{call}"
    assert {*BACKENDS} == {*get_args(BackendName)} == {name for name, one in BACKENDS.items() if one in TYPED}


# fault: wire/order.py: backend: Literal["", BackendName] = "" → backend: Literal["", "ray", "mp"] = ""
def test_the_names_of_the_backends_are_listed_once() -> None:
    """A third one is a name there and a module: inventory, option, request and status know it by that."""
    listing = [
        room(path)
        for path in MODULES
        for node in nodes(path)
        if isinstance(node, ast.Tuple | ast.List | ast.Set | ast.Dict)
        for words in [node.keys if isinstance(node, ast.Dict) else node.elts]
        if {*get_args(BackendName)} <= {one.value for one in words if isinstance(one, ast.Constant)}
    ]
    assert set(listing) == {"wire/backends.py"}
