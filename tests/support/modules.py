"""The package's modules, as files to be read."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import vllm_cluster

PACKAGE = Path(vllm_cluster.__file__).parent
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "_docker" not in path.parts)


@cache
def imported(path: Path) -> frozenset[str]:
    """Every module that a file names in an import, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(names)


def room(path: Path) -> str:
    """The path within the package, as `core/diff.py`."""
    return path.relative_to(PACKAGE).as_posix()
