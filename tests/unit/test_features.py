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

from tests.support.figures import record
from tests.support.modules import PACKAGE
from tests.support.paths import ROOT

pytestmark = pytest.mark.spans

FEATURES = sorted(path.parent.name for path in (PACKAGE / "features").glob("*/feature.py"))
# Imports every module of the rest, as a program and not as it is sent to hosts.
IMPORT_ALL = """
import pkgutil, sys
from importlib import import_module
import vllm_cluster
for one in pkgutil.walk_packages(vllm_cluster.__path__, "vllm_cluster."):
    if not any(word in one.name for word in (".on_host.", ".serving.node.", ".tests", ".__main__")):
        import_module(one.name)
"""
# What `make test-fast` runs of the rest, and of a feature.
REST = ("tests/unit", "tests/property", "tests/sim/test_everywhere.py", "tests/sim/test_machine.py")
KINDS = ("unit", "property", "sim")


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


def spanning() -> list[str]:
    """The options that leave out tests which import a feature, by themselves or by a module of tests or tools."""
    found = set[str]()
    paths = [path for folder in ("tests", "tools") for path in (ROOT / folder).rglob("*.py")]
    files = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}
    while more := {
        one
        for one, path in files.items()
        if one not in found and any(it in found or it.startswith("vllm_cluster.features.") for it in at_import(path))
    }:
        found |= more
    return [f"--ignore={name.replace('.', '/')}.py" for name in sorted(found) if ".test_" in name]


LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "build", "dist")


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


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this tree without any feature, and so without the tests of any."""
    tree = tmp_path_factory.mktemp("bare")
    shutil.copytree(ROOT, tree, ignore=LEFT_OUT, dirs_exist_ok=True)
    for feature in FEATURES:
        shutil.rmtree(tree / "vllm_cluster" / "features" / feature)
    return tree


def run(tree: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run a program with the modules of a copy."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "", "COLUMNS": "100"}
    environment["VCLUSTER_DEPTH"] = "fast"
    return subprocess.run(
        [sys.executable, *argv], cwd=tree, env=environment, capture_output=True, text=True, check=False
    )


@cache
def help_rows() -> list[str]:
    """The help of this tree."""
    return run(ROOT, "-m", "vllm_cluster", "--help").stdout.splitlines()


ROW = re.compile(r"  ([a-z]+)(?:  |$)")


@pytest.mark.slow
@pytest.mark.promise("P56")
def test_the_rest_is_imported_and_the_help_lacks_its_verbs_alone(lacking: tuple[str, Path]) -> None:
    feature, tree = lacking
    done = run(tree, "-c", IMPORT_ALL)
    assert done.returncode == 0, done.stderr[-2000:]
    verbs = import_module(f"vllm_cluster.features.{feature}.feature").VERBS.keys()
    after = run(tree, "-m", "vllm_cluster", "--help").stdout.splitlines()
    shown = [(row[1] if (row := ROW.match(line)) else "", line) for line in help_rows()]
    assert verbs <= {name for name, _ in shown}
    assert after == [line for name, line in shown if name not in verbs]
    lost = ", ".join(sorted(verbs))
    figure = f"the rest is imported, and its help lacks {lost} alone"
    record("P56", f"features/{feature} deleted in a copy", figure, True)


def passed(tree: Path, marked: str, *argv: str) -> int:
    """How many tests of a copy pass; none of them fails."""
    options = ("-q", "-n", "4", "-p", "no:cacheprovider", "-m", f"not (deep or alone or {marked})")
    done = run(tree, "-m", "pytest", *options, *argv)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-500:]
    return int(re.findall(r"(\d+) passed", done.stdout)[-1])


@pytest.mark.deep
@pytest.mark.promise("P56")
def test_the_tests_of_the_rest_need_no_feature(bare: Path) -> None:
    """So they are green without any one of them too."""
    number = passed(bare, "slow or spans", *spanning(), *REST)
    record("P56", "all folders of features/ deleted in a copy", f"{number} tests of the rest pass", number > 2000)
    assert number > 2000


@pytest.mark.deep
@pytest.mark.promise("P56")
@pytest.mark.parametrize("feature", [name for name in FEATURES if (PACKAGE / "features" / name / "tests").exists()])
def test_the_tests_of_a_feature_need_no_other(bare: Path, feature: str) -> None:
    folder = bare / "vllm_cluster" / "features" / feature
    shutil.copytree(PACKAGE / "features" / feature, folder, ignore=LEFT_OUT)
    kinds = [str(folder / "tests" / kind) for kind in KINDS if (folder / "tests" / kind).exists()]
    try:
        number = passed(bare, "slow", *kinds)
    finally:
        shutil.rmtree(folder)
    record("P56", f"all but features/{feature} deleted in a copy", f"its {number} tests pass", number > 0)
