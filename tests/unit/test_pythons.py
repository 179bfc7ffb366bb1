"""Files that run on an older Python than the package compile and run there, and ruff gets that version."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tools.pythons import claimed, compiled, floors, imported, interpreter
from vllm_cluster.kernel.node.program import node_program

FLOORS = floors()


@pytest.mark.spans
def test_what_runs_elsewhere_has_a_floor() -> None:
    """A pattern that matches no file would let newer words through, as after a rename."""
    targets = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["per-file-target-version"]
    assert [pattern for pattern in targets if not list(ROOT.glob(pattern))] == []
    floored = {path.name for paths in FLOORS.values() for path in paths}
    assert {Path(name).name for name in node_program()} - floored == {"node.py"}  # what `supervisor.py` is called there


# fault: features/batch/on_head/lines.py: [0-9]{0,17})_( → [0-9]{0,17}+)_(
@pytest.mark.parametrize("version", sorted(FLOORS))
def test_it_is_of_that_python(version: str) -> None:
    minor = int(version.partition(".")[2])
    for path in FLOORS[version]:
        ast.parse(path.read_text(), feature_version=(3, minor))
    python = interpreter(version)
    assert python is None or compiled(python, FLOORS[version]) == ""
    # A regular expression, a decorator or a default is judged by that Python alone when the module is run.
    assert python is None or imported(python, FLOORS[version]) == ""


def test_what_does_not_compile_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "newer.py"
    file.write_text("def broken(:\n")
    python = interpreter(claimed()[0])
    assert python is not None
    assert "newer.py" in compiled(python, [file])


def test_the_oldest_python_that_is_claimed_is_the_one_that_is_needed() -> None:
    assert f'requires-python = ">={claimed()[0]}"' in (ROOT / "pyproject.toml").read_text()
