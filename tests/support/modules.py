"""The modules of the package and of the sandbox beside it, as files to be read."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import vcluster_sandbox
import vllm_cluster

PACKAGE = Path(vllm_cluster.__file__).parent
SANDBOX = Path(vcluster_sandbox.__file__).parent
LONGEST_FILE = 400
# Neither is a module of the package: the sandbox's recipes in a wheel, and the tests of a feature.
_OTHERS = {"_docker", "tests"}
MODULES = sorted(
    path for root in (PACKAGE, SANDBOX) for path in root.rglob("*.py") if not _OTHERS & {*path.relative_to(root).parts}
)


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Every node of a module of the package, itself the first: several tests read them all."""
    return tuple(ast.walk(ast.parse(path.read_text())))


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
    """The path within the package, as `kernel/plan/diff.py`; of the sandbox `vcluster_sandbox/hosts.py`."""
    return path.relative_to(PACKAGE if path.is_relative_to(PACKAGE) else SANDBOX.parent).as_posix()
