"""What may be sent into any image: the standard library alone, and nothing newer than Python 3.10."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_cluster.kernel.node.program import node_program

PROGRAM = node_program()
PYTHONS = [sys.executable, *filter(None, [shutil.which("python3.10")])]


def works(python: str) -> bool:
    # A version manager's shim is on PATH for versions that it cannot run.
    return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0


# The front runs on the HTTP library that vLLM itself needs, in a process of its own.
OF_VLLM = {"aiohttp", "multidict", "yarl", "uvloop"}
FRONT = tuple(f"/front{name}.py" for name in ("", "_door", "_metrics", "_models", "_proxy", "_refusal", "_replica"))


@pytest.mark.parametrize("path", sorted(PROGRAM))
def test_every_file_is_of_the_standard_library_and_of_python_3_10(path: str) -> None:
    tree = ast.parse(PROGRAM[path], feature_version=(3, 10))
    more = OF_VLLM if path.endswith(FRONT) else set()
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            files = {f"{name.replace('.', '/')}{end}" for end in (".py", "/__init__.py")}
            assert name.split(".")[0] in sys.stdlib_module_names | more or files & PROGRAM.keys(), name


# fault: kernel/node/program.py: one.name.endswith(".py") → one.name.endswith(".py") and one.name != "timing.py"
@pytest.mark.parametrize("python", [python for python in PYTHONS if works(python)])
def test_it_runs_where_nothing_else_is(python: str, tmp_path: Path) -> None:
    for path, content in PROGRAM.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    # -S: no site-packages, so nothing of this machine can be what makes it work.
    run = [python, "-S", str(tmp_path / "node.py")]
    usage = subprocess.run([*run, "--help"], capture_output=True, text=True, check=True, cwd="/", env={})
    assert "members" in usage.stdout
    (tmp_path / "status.json").write_text('{"v": 1}')
    environment = {"VCLUSTER_STATE": str(tmp_path)}
    status = subprocess.run([*run, "status"], capture_output=True, text=True, check=True, cwd="/", env=environment)
    assert status.stdout == '{"v": 1}\n'
