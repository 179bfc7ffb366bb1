"""Each feature can be left out: the tree without its folder is whole, lacks its verbs, and nothing else."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from tests.support.modules import PACKAGE
from tests.support.paths import ROOT

FEATURES = sorted(path.parent.name for path in (PACKAGE / "features").glob("*/feature.py"))
# Imports every module of the rest, as a program and not as it is sent to hosts.
IMPORT_ALL = """
import pkgutil, sys
from importlib import import_module
import vllm_cluster
for one in pkgutil.walk_packages(vllm_cluster.__path__, "vllm_cluster."):
    if not any(word in one.name for word in (".on_host.", ".serving.node.", ".__main__")):
        import_module(one.name)
"""
# What names every feature in its tables, or reads the repository: the rest of these has no such file.
OF_THE_WHOLE = ("test_architecture.py", "test_features.py", "test_pictures.py")


@cache
def at_import(path: Path) -> frozenset[str]:
    """Every module that a file imports as it is imported itself."""
    found = set[str]()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return frozenset(found)


@cache
def users(feature: str) -> frozenset[str]:
    """The modules of tests and tools that cannot be imported without a feature: those that import it, and theirs."""
    name, found = f"vllm_cluster.features.{feature}", set[str]()
    paths = [path for folder in ("tests", "tools") for path in (ROOT / folder).rglob("*.py")]
    files = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}
    while more := {
        one
        for one, path in files.items()
        if one not in found and any(it in found or f"{it}.".startswith(f"{name}.") for it in at_import(path))
    }:
        found |= more
    return frozenset(found)


LEFT_OUT = shutil.ignore_patterns("__pycache__", ".*_cache")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package, which is compiled once for all features."""
    tree = tmp_path_factory.mktemp("package")
    for name in ("vllm_cluster", "vcluster_sandbox", "docker"):
        shutil.copytree(ROOT / name, tree / name, ignore=LEFT_OUT)
    return tree


@pytest.fixture(params=FEATURES)
def lacking(request: pytest.FixtureRequest, package: Path, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The package without a feature, which comes back."""
    feature = str(request.param)
    folder = package / "vllm_cluster" / "features" / feature
    folder.rename(tmp_path / feature)
    yield feature, package
    (tmp_path / feature).rename(folder)


@pytest.fixture(params=FEATURES)
def without(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A copy of this tree without a feature and what tests it."""
    feature = str(request.param)
    for name in ("vllm_cluster", "vcluster_sandbox", "tests", "tools", "docs", "docker"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=LEFT_OUT)
    for path in (*ROOT.glob("*.toml"), *ROOT.glob("*.md"), *ROOT.glob("*.yaml"), ROOT / "Makefile"):
        shutil.copy(path, tmp_path)
    shutil.rmtree(tmp_path / "vllm_cluster" / "features" / feature)
    for name in users(feature):
        path = tmp_path / (name.replace(".", "/") + ".py")
        if path.exists():
            path.unlink()
    yield feature, tmp_path
    shutil.rmtree(tmp_path)


def run(tree: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run a program with the modules of a copy."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "", "COLUMNS": "100"}
    return subprocess.run(
        [sys.executable, *argv], cwd=tree, env=environment, capture_output=True, text=True, check=False
    )


@cache
def help_rows() -> list[str]:
    """The help of this tree."""
    return run(ROOT, "-m", "vllm_cluster", "--help").stdout.splitlines()


ROW = re.compile(r"  ([a-z]+)(?:  |$)")


@pytest.mark.slow
def test_the_rest_is_imported_and_the_help_lacks_its_verbs_alone(lacking: tuple[str, Path]) -> None:
    feature, tree = lacking
    done = run(tree, "-c", IMPORT_ALL)
    assert done.returncode == 0, done.stderr[-2000:]
    verbs = import_module(f"vllm_cluster.features.{feature}.feature").VERBS.keys()
    after = run(tree, "-m", "vllm_cluster", "--help").stdout.splitlines()
    shown = [(row[1] if (row := ROW.match(line)) else "", line) for line in help_rows()]
    assert verbs <= {name for name, _ in shown}
    assert after == [line for name, line in shown if name not in verbs]


@pytest.mark.deep
def test_tests_of_the_rest_are_collected(without: tuple[str, Path]) -> None:
    """No test of another feature imports it."""
    _, tree = without
    ignored = [f"--ignore-glob=*/{name}" for name in OF_THE_WHOLE]
    done = run(tree, "-m", "pytest", "-q", "--co", "-p", "no:cacheprovider", *ignored, "tests/unit", "tests/sim")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-500:]
