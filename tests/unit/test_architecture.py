"""The import rule, the sizes that keep a room readable, and what start-up may load."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.modules import MODULES, PACKAGE, SANDBOX, imported, nodes, room
from tests.support.paths import ROOT
from vllm_cluster.cli.verbs import VERBS

LONGEST_FILE = 400
LONGEST_FUNCTION = 50
_WAYS_OUT = {"os", "io", "socket", "subprocess", "pathlib", "time", "random", "requests", "urllib", "tempfile"}
PURE = ("backends", "checks", "core", "facts", "fit", "translate")
# What every room may use; its modules use each other alone.
GROUND = "the ground"
GROUND_MODULES = {"__version__", *(path.stem for path in PACKAGE.glob("*.py") if path.stem != "__main__")}
_JUDGEMENT = frozenset({"inventory", "facts", "backends", "core"})
_BELOW = _JUDGEMENT | {"fit", "explain", "images", "transport", "checks", "docker"}
# What each room may import in addition to the ground.
MAY_IMPORT: dict[str, frozenset[str]] = {
    **dict.fromkeys(("inventory", "facts", "fit", "explain", "images", "transport"), frozenset()),
    "batch": frozenset(),
    "backends": frozenset({"inventory", "images"}),
    "translate": frozenset({"backends", "inventory"}),
    "hub": frozenset({"fit"}),
    "vcluster_sandbox": frozenset({"images"}),
    "core": frozenset({"inventory", "facts", "backends"}),
    "checks": _JUDGEMENT,
    "docker": frozenset({"core", "facts", "transport"}),
    "run": _BELOW | {"batch"},
    "actions": _BELOW - {"transport"} | {"run", "hub", "batch"},
    "cli": frozenset(
        {
            *("actions", "batch", "core", "checks", "fit", "explain", "facts", "inventory", "translate"),
            "vcluster_sandbox",
        }
    ),
    "remote": frozenset(),
    "wire": frozenset(),
}
# What every room may use too, and what runs elsewhere: it needs the standard library alone.
BORDER = "wire"
# The files that import from another room yet; none is added.
EXCEPTIONS: dict[str, set[str]] = {
    "features/init/action.py": {"transport"},
    "kernel/terminal/paste.py": {"run", "transport"},
    "features/check/render.py": {"run"},
    "serving/serve/verb.py": {"transport"},
    "kernel/terminal/words.py": {"backends"},
    "kernel/plan/node_status.py": {"explain"},
    "serving/fit/layouts.py": {"backends"},
    "serving/fit/request.py": {"backends"},
    "kernel/images/contents.py": {"checks"},
}


def importers(*names: str) -> Iterator[str]:
    """The files that import any of the modules or something below them."""
    for path in MODULES:
        if any(found == name or found.startswith(f"{name}.") for found in imported(path) for name in names):
            yield room(path)


def rooms(path: Path) -> set[str]:
    """The other rooms that a file imports from; the ground is one room."""
    names = {name.split(".")[1] for name in imported(path) if name.startswith("vllm_cluster.")}
    names |= {name.split(".")[0] for name in imported(path) if name.split(".")[0] == SANDBOX.name}
    return {GROUND if name in GROUND_MODULES else name for name in names} - {own(path)}


def own(path: Path) -> str:
    """The room that a file is in."""
    first = room(path).split("/")[0].removesuffix(".py")
    return GROUND if first in GROUND_MODULES else first


def test_no_import_goes_up() -> None:
    """A room imports those of its row and the ground, and no other; what still does is listed, and goes."""
    found: dict[str, set[str]] = {}
    for path in MODULES:
        up = rooms(path) - {GROUND, BORDER} - MAY_IMPORT.get(own(path), frozenset())
        if up and own(path) in (*MAY_IMPORT, GROUND):
            found[room(path)] = up
    assert found == EXCEPTIONS


def test_every_room_has_a_row() -> None:
    assert {own(path) for path in MODULES} - {"__main__", GROUND} == set(MAY_IMPORT)


def test_the_pure_rooms_open_nothing() -> None:
    """No file, no socket, no clock, no random; explain and images unpack and download what is given to them."""
    found = {room(path): imported(path) & _WAYS_OUT for path in MODULES if own(path) in PURE}
    assert {path: names for path, names in found.items() if names} == {}


def test_verbs_measure_time_by_their_own_clock() -> None:
    """It counts the time asleep, and a simulation has another one."""
    system = ("time.monotonic", "time.sleep", "Deadline.after")
    found = {
        f"{room(path)}: {ast.unparse(node)}"
        for path in MODULES
        if own(path) in ("run", "actions")
        and room(path) not in ("kernel/hosts/runtime.py", "serving/endpoint/detached.py")
        for node in nodes(path)
        if isinstance(node, ast.Attribute) and ast.unparse(node) in system
    }
    assert found == set()


@pytest.mark.parametrize(
    ("libraries", "home"),
    [
        (("rich",), "cli/render/"),
        (("typer",), "cli/"),
        (("fabric", "paramiko", "invoke"), "transport/fabric/"),
        # The docker SDK reads the laptop's logins and sends them: no host is spoken to with it.
        (("docker",), "vcluster_sandbox/"),
        (("requests", "urllib3"), "hub/"),
        (("huggingface_hub",), "hub/"),
        (("ruamel",), "inventory/"),
    ],
)
def test_each_library_has_one_home(libraries: tuple[str, ...], home: str) -> None:
    # The sandbox drives this machine's own Docker, and writes an inventory.
    allowed: tuple[str, ...] = (home, "vcluster_sandbox/") if {"requests", "ruamel"} & set(libraries) else (home,)
    # In an image it is the image's own.
    allowed += ("remote/",) if "huggingface_hub" in libraries else ()
    assert [path for path in importers(*libraries) if not path.startswith(allowed)] == []


# fault: kernel/images/wheels.py: done = own_python(run, argv, settings, → done = run([sys.executable, *argv],
def test_our_own_python_is_started_in_one_place() -> None:
    """Elsewhere it would import what lies in the current folder. What runs on hosts is another Python."""
    found = {
        room(path)
        for path in MODULES
        if own(path) != "remote"
        for node in nodes(path)
        if isinstance(node, ast.Attribute | ast.Name | ast.alias)
        and ast.unparse(node).rpartition(".")[2] in ("executable", "_base_executable")
    }
    assert found == {"kernel/laptop.py"}


def test_what_runs_elsewhere_needs_the_standard_library_alone() -> None:
    remote = [path for path in MODULES if own(path) == "remote"]
    names = {(room(path), name) for path in remote for name in imported(path)}
    outside = {(file, name) for file, name in names if name.split(".")[0] not in sys.stdlib_module_names}
    # The all-reduce is there to try the torch of the image.
    torch = {
        ("features/check/on_host/allreduce.py", "torch"),
        ("features/check/on_host/allreduce.py", "torch.distributed"),
    }
    # What asks the hub, and downloads from it, is for the image's own library.
    hub = {row for row in outside if row[0] in {"features/pull/on_host/hub_files.py", "kernel/spread/download.py"}}
    hub = {row for row in hub if row[1].split(".")[0] == "huggingface_hub"}
    # The front has the HTTP library that vLLM needs itself and, where the image has it, the loop of vLLM's own server.
    front = {(file, name) for file, name in outside if file in FRONT and name.split(".")[0] in OF_FRONT}
    theirs = {
        row
        for row in outside
        for own in ("node", "pull")
        if row[0].startswith(f"remote/{own}/")
        and row[1].startswith((f"vllm_cluster.remote.{own}", "vllm_cluster.wire"))
    }
    assert outside - torch - hub - front - theirs == set()


FRONT = tuple(f"remote/node/{name}.py" for name in ("front", "front_door", "front_proxy"))
OF_FRONT = ("aiohttp", "multidict", "yarl", "uvloop")


def test_the_border_needs_the_standard_library_alone() -> None:
    """It is sent to hosts with the programs that run there."""
    names = {(room(path), name) for path in MODULES if own(path) == BORDER for name in imported(path)}
    assert {one for one in names if one[1].split(".")[0] not in sys.stdlib_module_names} == {
        one for one in names if one[1].startswith("vllm_cluster.wire")
    }


def test_a_batch_needs_the_standard_library_and_the_images_http_client_alone() -> None:
    """Its program runs on the head, where nothing else of this package is, not even the ground."""
    names = {(room(path), name) for path in MODULES if own(path) == "batch" for name in imported(path)}
    outside = {(file, name) for file, name in names if name.split(".")[0] not in sys.stdlib_module_names}
    asks = {(f"batch/{name}.py", "aiohttp") for name in ("client", "runner")}
    ours = ("vllm_cluster.features.batch.on_head", f"vllm_cluster.{BORDER}")
    assert {row for row in outside if not row[1].startswith(ours)} == asks


def test_what_runs_elsewhere_is_read_and_never_imported() -> None:
    assert [
        path for path in importers("vllm_cluster.remote") if not path.startswith(("remote/node/", "remote/pull/"))
    ] == []


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
    "app", "edge", "help", "options", "program", "removed", "render", "render.output", "render.text",
    "session", "values", "verbs", "words",
}  # fmt: skip
BESIDE = {
    "errors",
    "kernel.inventory.find",
    "kernel.inventory.problems",
    "kernel.inventory.words",
    "laptop",
    "shell_line",
    "text",
}
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


# fault: cli/app.py: from __future__ import annotations → import pydantic
@pytest.mark.parametrize(
    ("argv", "environment", "more"),
    [
        (["--help"], {}, set()),
        (["serve", "--help"], {}, {"serving.serve.verb", "kernel.terminal.completion"}),
        (["status", "--no-such-option"], {}, {"serving.status.verb", "kernel.terminal.completion"}),
        (
            ["status", "-i", "missing.yaml"],
            {},
            {
                "serving.status.verb",
                "kernel.terminal.completion",
                "cli.render",
                "kernel.terminal.errors",
                "kernel.terminal.text",
            },
        ),
        ([], {"COMP_WORDS": "vcluster st", "COMP_CWORD": "1"}, set()),
        (
            [],
            {"COMP_WORDS": "vcluster check -i x ", "COMP_CWORD": "4"},
            {"features.check.verb", "kernel.terminal.completion"},
        ),
        (
            [],
            {"COMP_WORDS": "vcluster serve ", "COMP_CWORD": "2"},
            {"serving.serve.verb", "kernel.terminal.completion"},
        ),
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
    loaded -= {"vllm_cluster.core", "vllm_cluster.kernel.inventory"}
    ours = {f"vllm_cluster.cli.{name}" for name in AT_START}
    assert loaded == ours | {f"vllm_cluster.{name}" for name in BESIDE | more}


def test_help_loads_nothing_heavy() -> None:
    """The help of one verb after the other, in one process: what none of them loads, no verb does."""
    script = (
        "import sys\n"
        "from vllm_cluster.cli.app import app\n"
        "for verb in sys.argv[1:]:\n"
        "    try: app([*verb.split(), '--help'], prog_name='vcluster')\n"
        "    except SystemExit as end: assert end.code == 0\n"
        "heavy = {'docker', 'vcluster_sandbox', 'fabric', 'paramiko', 'pydantic', 'rich', 'requests', 'ruamel'}\n"
        "print(sorted(heavy & sys.modules.keys()), file=sys.stderr)\n"
    )
    verbs = ["", "up", "serve", "fit", "check", "explain", "status", "exec", "sandbox up"]
    done = subprocess.run([sys.executable, "-c", script, *verbs], capture_output=True, text=True, check=True)
    assert done.stdout.count("Usage: vcluster ") == len(verbs)
    assert done.stderr.splitlines()[-1] == "[]"


# What begins a command of a shell; what follows it within the command must come by `shell_line`, which quotes it.
_REST = r"[ ](?:(?!:\s|\.\s|,\s)[^;()\n])*"
_COMMAND = re.compile(
    rf"""(?:^|[\s`'"(|&])(?:
      (?:vcluster[ ](?:{"|".join(VERBS)})\b | docker[ ][a-z]+)(?:{_REST})? | ip[ ](?:addr|link|neigh|route)\b{_REST}
    | (?:chronyc|chmod|chown|cp|curl|echo|export|hf|kill|mkdir|modprobe|nc|nvidia-smi|prometheus|rm|sudo){_REST}
    | (?:ssh-[a-z-]+|systemctl|xargs|-[iFo]){_REST} | (?:df|du|kill|ls|ps|ss|stat|tail|ssh)[ ]-\S+{_REST} | ssh[ ]
    )\Z""",
    re.VERBOSE,
)


def _pieces(node: ast.expr) -> Iterator[str | None]:
    """The constant texts of an f-string, of `+`, of % and of `format`, with None for each value."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        for part in node.values:
            yield from _pieces(part)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield from _pieces(node.left)
        yield from _pieces(node.right)
    elif filled := _filled(node):
        for at, text in enumerate(re.split(r"%[sdr]|\{[^{}]*\}", filled)):
            yield from ([None] if at else [])
            yield text
    else:
        yield None


def _filled(node: ast.expr) -> str:
    """The constant text that % or `format` fills in; empty for any other node."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        text: ast.expr = node.left
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        text = node.func.value
    else:
        return ""
    return text.value if isinstance(text, ast.Constant) and isinstance(text.value, str) else ""


def _composes(node: ast.expr) -> bool:
    text = ""
    for piece in _pieces(node):
        if piece is None and _COMMAND.search(text):
            return True
        text += "\0" if piece is None else piece
    return False


def composed(tree: ast.AST) -> list[int]:
    """The lines of a file on which a text composes a command."""
    return [node.lineno for node in ast.walk(tree) if isinstance(node, ast.expr) and _composes(node)]


# fault: kernel/apply/members.py: hint=command_line("vcluster", "up", "--forget", name) → hint=f"vcluster up --forget {name}"
def test_no_text_composes_a_command() -> None:
    """A value in a command is quoted as a word of it: what a host calls itself could else be more than that."""
    adapter = "kernel/shell_line.py"
    paths = [path for path in MODULES if PACKAGE in path.parents and room(path) != adapter]
    found = {room(path): composed(ast.parse(path.read_text())) for path in paths}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "source",
    [
        'f"vcluster pull {model}"',
        'f"or: vcluster models rm {model}, then vcluster up"',
        '"vcluster logs " + host',
        '"docker rm -f %s" % name',
        '"on {}: sudo chown -R {} /x".format(host, user)',
        'f"on {host}: docker exec {node} vllm serve"',
        'f"try `ssh {where}`"',
        'f"ssh -F {file} gpu1"',
        'f"vcluster up{option}"',
    ],
)
def test_a_composed_command_is_found(source: str) -> None:
    assert composed(ast.parse(source))


@pytest.mark.parametrize(
    "source",
    [
        """f"{command_line('vcluster', 'pull', model)} downloads them once\"""",
        'f"docker load failed: {why}"',
        'f"{name}: ssh refuses its configuration: {text}"',
        'f"Wrote {path}. Next: vcluster check"',
        'f"on {host}: nvidia-smi, then {run}"',
        'f"{name} has version {version}; this vcluster reads {other}"',
    ],
)
def test_a_sentence_is_none(source: str) -> None:
    assert composed(ast.parse(source)) == []


def written(tree: ast.AST) -> list[int]:
    """The lines of a file on which it writes to the terminal, or makes a text or a console of rich."""
    return [getattr(node, "lineno", 0) for node in ast.walk(tree) if _writes(node)]


def _writes(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        wanted = {name.name for name in node.names}
        return node.module in ("rich", "rich.console", "rich.text") and bool(wanted & {"print", "Console", "Text"})
    if not isinstance(node, ast.Call):
        return False
    called = ast.unparse(node.func)
    return called in ("print", "typer.echo", "typer.secho") or bool(
        re.search(r"std(?:out|err)(?:\.buffer)?\.write", called)
    )


# fault: serving/status/render_history.py: out(f"No history of {cluster}.") → print(f"No history of {cluster}.")
def test_one_file_writes_to_the_terminal() -> None:
    """Text from elsewhere could else steer it: a colour, a title, the clipboard, a direction."""
    found = {
        room(path): written(ast.parse(path.read_text())) for path in MODULES if not room(path).startswith("remote/")
    }
    assert {name for name, lines in found.items() if lines} == {"kernel/terminal/output.py"}


@pytest.mark.parametrize(
    "source",
    [
        "print(x)",
        "sys.stdout.write(x)",
        "sys.stderr.buffer.writelines(x)",
        "typer.echo(x)",
        "from rich.text import Text",
    ],
)
def test_a_way_around_it_is_found(source: str) -> None:
    assert written(ast.parse(source)) == [1]


def test_files_and_functions_stay_readable() -> None:
    long_files = {room(path): lines for path in MODULES if (lines := len(path.read_text().splitlines())) > LONGEST_FILE}
    long_functions = [
        f"{room(path)}:{node.lineno} {node.name}"
        for path in MODULES
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= LONGEST_FUNCTION
    ]
    assert (long_files, long_functions) == ({}, [])
