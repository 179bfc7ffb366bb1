"""The import rule, the sizes that keep a room readable, and what start-up may load."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.modules import MODULES, PACKAGE, imported, room
from tests.support.paths import ROOT

LONGEST_FILE = 300
LONGEST_FUNCTION = 50
_WAYS_OUT = {"os", "io", "socket", "subprocess", "pathlib", "time", "random", "requests", "urllib", "tempfile"}


def importers(*names: str) -> Iterator[str]:
    """The files that import any of the modules or something below them."""
    for path in MODULES:
        if any(found == name or found.startswith(f"{name}.") for found in imported(path) for name in names):
            yield room(path)


def test_the_core_knows_no_way_out() -> None:
    rooms = ("transport", "run", "cli", "actions", "docker", "sandbox", "hub")
    outside = importers(*(f"vllm_cluster.{name}" for name in rooms))
    assert [path for path in outside if path.split("/")[0] in ("core", "engine", "explain", "inventory", "fit")] == []


def test_what_fits_is_reckoned_without_looking() -> None:
    """No file, no socket, no clock, and nothing of hosts or inventories."""
    names = {name for path in PACKAGE.glob("fit/*.py") for name in imported(path)}
    outside = {name for name in names if name.startswith("vllm_cluster.")} | (names & _WAYS_OUT)
    assert {name for name in outside if not name.startswith(("vllm_cluster.fit", "vllm_cluster.backends"))} == set()


@pytest.mark.parametrize(
    ("libraries", "home"),
    [
        (("rich",), "cli/render/"),
        (("typer",), "cli/"),
        (("fabric", "paramiko", "invoke"), "transport/fabric/"),
        # The docker SDK reads the laptop's logins and sends them: no host is spoken to with it.
        (("docker",), "sandbox/"),
        (("requests", "urllib3"), "hub/"),
        (("ruamel",), "inventory/"),
    ],
)
def test_each_library_has_one_home(libraries: tuple[str, ...], home: str) -> None:
    # The sandbox drives this machine's own Docker, and writes an inventory.
    allowed = (home, "sandbox/") if {"requests", "ruamel"} & set(libraries) else (home,)
    assert [path for path in importers(*libraries) if not path.startswith(allowed)] == []


def test_the_node_needs_the_standard_library_alone() -> None:
    names = {(path.name, name) for path in PACKAGE.glob("node/*.py") for name in imported(path)}
    outside = {(file, name) for file, name in names if name.split(".")[0] not in sys.stdlib_module_names}
    # The collective is there to try the torch of the image.
    torch = {("collective.py", "torch"), ("collective.py", "torch.distributed")}
    assert {row for row in outside - torch if not row[1].startswith("vllm_cluster.run.node_program")} == set()


def folder(module: str) -> str:
    """The folder of tests that a module is in: `sim` of `tests.sim.test_machine`."""
    return [*module.split("."), ""][1]


def test_no_test_imports_another_test_or_another_folder_of_tests() -> None:
    """Each folder runs alone, and a test is moved or removed alone: what two folders share is in tests/support."""
    wrong = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        own = folder(".".join(path.relative_to(ROOT).parts))
        for name in imported(path):
            if not name.startswith("tests."):
                continue
            tests = any(part.startswith("test_") for part in name.split("."))
            if tests or folder(name) not in (own, "support"):
                wrong.append(f"{path.relative_to(ROOT)} imports {name}: move what they share to tests/support")
    assert wrong == []


# What help and completion wait for, beside typer and the standard library.
AT_START = {
    "app",
    "complete",
    "edge",
    "help",
    "options",
    "program",
    "session",
    "values",
    "verbs",
    "words",
}
BESIDE = {"errors", "inventory.find", "inventory.problems", "inventory.words", "laptop", "text"}
LOADED = """
import sys, typer
typers = set(sys.modules)
sys.argv = ['vcluster', *sys.argv[1:]]
from vllm_cluster.cli.app import main
try: main()
except SystemExit: pass
ours = {name for name in set(sys.modules) - typers if name.split('.')[0] not in sys.stdlib_module_names}
print(*sorted(name for name in ours if not name.startswith('typer.')), file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("argv", "environment", "more"),
    [
        (["--help"], {}, set()),
        (["serve", "--help"], {}, {"cli.serve"}),
        (["status", "--no-such-option"], {}, {"cli.status"}),
        (["status", "-i", "missing.yaml"], {}, {"cli.status", "cli.render", "cli.render.errors", "cli.render.text"}),
        ([], {"COMP_WORDS": "vcluster st", "COMP_CWORD": "1"}, set()),
        ([], {"COMP_WORDS": "vcluster facts -i x ", "COMP_CWORD": "4"}, {"cli.facts"}),
        ([], {"COMP_WORDS": "vcluster serve ", "COMP_CWORD": "2"}, {"cli.serve"}),
    ],
)
def test_what_needs_no_host_waits_for_no_library(argv: list[str], environment: dict[str, str], more: set[str]) -> None:
    """A list rather than a time: not pydantic, not YAML, not rich, and no other verb."""
    complete = {"_VCLUSTER_COMPLETE": "complete_bash"} if environment else {}
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *argv],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **complete, **environment},
    )
    loaded = set(done.stderr.splitlines()[-1].split()) - {"vllm_cluster", "vllm_cluster.cli"}
    loaded -= {"vllm_cluster.core", "vllm_cluster.inventory"}
    ours = {f"vllm_cluster.cli.{name}" for name in AT_START}
    assert loaded == ours | {f"vllm_cluster.{name}" for name in BESIDE | more}


@pytest.mark.parametrize(
    "verb", [[], ["up"], ["serve"], ["fit"], ["check"], ["facts"], ["explain"], ["bundle"], ["sandbox", "up"]]
)
def test_help_loads_nothing_heavy(verb: list[str]) -> None:
    script = (
        "import sys; sys.argv = ['vcluster', *sys.argv[1:], '--help']\n"
        "from vllm_cluster.cli.app import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'docker', 'fabric', 'paramiko', 'pydantic', 'rich', 'requests', 'ruamel'}\n"
        "print(sorted(heavy & sys.modules.keys()), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, *verb], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"


def test_files_and_functions_stay_readable() -> None:
    long_files = {room(path): lines for path in MODULES if (lines := len(path.read_text().splitlines())) > LONGEST_FILE}
    long_functions = [
        f"{room(path)}:{node.lineno} {node.name}"
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= LONGEST_FUNCTION
    ]
    assert (long_files, long_functions) == ({}, [])
