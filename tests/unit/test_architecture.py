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

from tests.support.modules import LONGEST_FILE, MODULES, PACKAGE, SANDBOX, imported, nodes, room
from tests.support.paths import ROOT, TEST_FOLDERS
from vllm_cluster.cli.verbs import VERBS

pytestmark = pytest.mark.spans

LONGEST_FUNCTION = 50
_WAYS_OUT = {"os", "io", "socket", "subprocess", "pathlib", "time", "random", "requests", "urllib", "tempfile"}
# A layer imports those before it, and no feature another.
LAYERS = ("wire", "kernel", "serving", "features", "cli")
# Within two of them: a row imports the rows before it, and nothing of its own row.
ROWS: dict[str, tuple[str, ...]] = {
    "kernel": (
        "clock events held listeners private_keys versions",
        "spread text",
        "shell_line",
        "errors explain facts",
        "laptop",
        "debug_log known_secrets",
        "inventory transport",
        "backends",
        "plan",
        "checks docker",
        "hosts",
        "lease links node",
        "images models",
        "apply",
        "assess",
        "addresses",
        "terminal",
        "hooks",
    ),
    "serving": (
        "api changing fit head hooks look_up node status stops verbs",
        "consent explain translate",
        "others",
        "ask_head cluster",
        "endpoint",
        "serve",
    ),
}
PURE = (
    *("kernel/backends/", "kernel/checks/", "kernel/facts/", "kernel/plan/", "serving/translate/"),
    *(f"serving/fit/{name}.py" for name in ("config_keys", "layouts", "model_config", "request", "weights")),
)
# What runs on hosts and in containers: with the standard library alone, as text or as a package of its own.
ELSEWHERE = re.compile(r"(?:serving/node|kernel/spread|.+/on_host)/")
ON_HEAD = "features/batch/on_head/"
# What works on hosts, and what a verb does.
OF_HOSTS = re.compile(
    r"kernel/(?:hosts|node|apply|lease|links|images|models|a\w+\.py)|serving/(?!fit/hub)|features/(?!batch/on_head)"
)
# What a verb shows and takes is there; it measures no time of hosts.
VERBAL = re.compile(r"kernel/terminal/.+|cli/.+|.+/(?:\w*verb|render\w*|question|open|translated)\.py")


def importers(*names: str) -> Iterator[str]:
    """The files that import any of the modules or something below them."""
    for path in MODULES:
        if any(found == name or found.startswith(f"{name}.") for found in imported(path) for name in names):
            yield room(path)


def place(name: str) -> tuple[int, int, str]:
    """Where a module is: the number of its layer, of its row in it, and its room or feature."""
    layer, _, rest = name.partition(".")
    room_of = rest.partition(".")[0]
    rows = [number for number, row in enumerate(ROWS.get(layer, ())) if room_of in row.split()]
    return LAYERS.index(layer), rows[0] if rows else -1, room_of


def goes_up(path: Path) -> set[str]:
    """What a file imports of a layer above, of another feature, or of a room of its layer that is not below."""
    layer, row, own = place(room(path).removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    found = set()
    for name in imported(path):
        below = name.removeprefix("vllm_cluster.")
        if below == name or below.partition(".")[0] not in LAYERS or below in LAYERS:
            continue
        its_layer, its_row, its = place(below)
        inside = its_layer == layer and its != own
        if its_layer > layer or (inside and (LAYERS[layer] == "features" or (layer in ORDERED and its_row >= row))):
            found.add(below)
    return found


ORDERED = {LAYERS.index(name) for name in ROWS}
OURS = [path for path in MODULES if path.is_relative_to(PACKAGE) and room(path).count("/")]


# fault: serving/consent.py: from vllm_cluster.serving.hooks import KEPT_ON_HEAD → import vllm_cluster.features.batch.jobs
# fault: kernel/plan/spec.py: from vllm_cluster.kernel.text import → from vllm_cluster.kernel.docker import client,
def test_no_import_goes_up() -> None:
    assert {room(path): up for path in OURS if (up := goes_up(path))} == {}


def test_every_room_has_a_row() -> None:
    assert {room(path).split("/")[0] for path in OURS} == set(LAYERS)
    for layer, rows in ROWS.items():
        there = {path.stem for path in (PACKAGE / layer).iterdir() if path.name not in ("__init__.py", "__pycache__")}
        assert there - {"on_host"} == {name for row in rows for name in row.split()}, layer


def test_the_sandbox_needs_the_recipes_alone() -> None:
    found = {name for path in MODULES if path.is_relative_to(SANDBOX) for name in imported(path)}
    ours = {name.split(".")[2] for name in found if name.startswith("vllm_cluster.kernel.")}
    assert ours <= set(OF_SANDBOX)
    above = tuple(f"vllm_cluster.{layer}" for layer in LAYERS if layer != "kernel")
    assert not {name for name in found if name.startswith(above)}


OF_SANDBOX = ("errors", "images", "laptop", "listeners", "shell_line", "text", "versions")


def test_the_pure_rooms_open_nothing() -> None:
    """No file, no socket, no clock, no random; explain and images unpack and download what is given to them."""
    found = {room(path): imported(path) & _WAYS_OUT for path in MODULES if room(path).startswith(PURE)}
    assert {path: names for path, names in found.items() if names} == {}


def test_verbs_measure_time_by_their_own_clock() -> None:
    """It counts the time asleep, and a simulation has another one."""
    system = ("time.monotonic", "time.sleep", "Deadline.after")
    found = {
        f"{room(path)}: {ast.unparse(node)}"
        for path in MODULES
        if OF_HOSTS.match(room(path))
        and not ELSEWHERE.match(room(path))
        and not VERBAL.fullmatch(room(path))
        and room(path) not in ("kernel/hosts/runtime.py", "serving/endpoint/detached.py")
        for node in nodes(path)
        if isinstance(node, ast.Attribute) and ast.unparse(node) in system
    }
    assert found == set()


@pytest.mark.parametrize(
    ("libraries", "home"),
    [
        (("rich",), r"kernel/terminal/|.+/render\w*\.py"),
        (("typer",), r"kernel/terminal/|cli/|.+/\w*verb\.py|serving/(?:api/question|serve/translated)\.py"),
        (("fabric", "paramiko", "invoke"), "kernel/transport/fabric/"),
        # The docker SDK reads the laptop's logins and sends them: no host is spoken to with it.
        (("docker",), "vcluster_sandbox/"),
        # The sandbox drives this machine's own Docker, and writes an inventory.
        (("requests", "urllib3"), "serving/fit/hub/|vcluster_sandbox/"),
        # In an image it is the image's own.
        (("huggingface_hub",), r"serving/fit/hub/|.+/on_host/|kernel/spread/"),
        (("ruamel",), "kernel/inventory/|vcluster_sandbox/"),
    ],
)
def test_each_library_has_one_home(libraries: tuple[str, ...], home: str) -> None:
    assert [path for path in importers(*libraries) if not re.match(home, path)] == []


# What a library hands over without a type, with the one module that takes it.
UNTYPED = {
    "kernel/terminal/program.py": "typer: the contexts and parameters of the parser, whose classes are private",
    "kernel/explain/catalogue.py": "tomllib: our own file of failures",
    "serving/node/request_check.py": "vLLM: the parser and the config of the image, imported by name",
    "serving/fit/hub/timed.py": "requests and urllib3: the arguments of the methods that it overrides",
    "serving/status/on_host/sample.py": "pynvml: the copy in the image's vLLM, loaded from its file",
}


# fault: kernel/facts/values.py: def items(value: object) -> list[object]: → def items(value: object) -> list[Any]:
def test_what_has_no_type_is_in_the_adapter_of_its_library() -> None:
    """Below the features a value has a type: what came from elsewhere was read at the border."""
    found = {
        room(path)
        for path in MODULES
        if room(path).startswith(("wire/", "kernel/", "serving/"))
        for node in nodes(path)
        if (isinstance(node, ast.Name) and node.id == "Any")
        or (isinstance(node, ast.Attribute | ast.alias) and ast.unparse(node).rpartition(".")[2] == "Any")
    }
    assert found == UNTYPED.keys()


# fault: kernel/images/wheels.py: done = own_python(run, argv, settings, → done = run([sys.executable, *argv],
def test_our_own_python_is_started_in_one_place() -> None:
    """Elsewhere it would import what lies in the current folder. What runs on hosts is another Python."""
    found = {
        room(path)
        for path in MODULES
        if not ELSEWHERE.match(room(path))
        for node in nodes(path)
        if isinstance(node, ast.Attribute | ast.Name | ast.alias)
        and ast.unparse(node).rpartition(".")[2] in ("executable", "_base_executable")
    }
    assert found == {"kernel/laptop.py"}


def test_what_runs_elsewhere_needs_the_standard_library_alone() -> None:
    remote = [path for path in MODULES if ELSEWHERE.match(room(path))]
    names = {(room(path), name) for path in remote for name in imported(path)}
    # _typeshed is there for the type checker alone.
    known = sys.stdlib_module_names | {"_typeshed"}
    outside = {(file, name) for file, name in names if name.split(".")[0] not in known}
    # The all-reduce is there to try the torch of the image.
    torch = {
        ("features/check/on_host/allreduce.py", "torch"),
        ("features/check/on_host/allreduce.py", "torch.distributed"),
    }
    # What asks the hub, and downloads from it, is for the image's own library.
    hub = {row for row in outside if row[0] in {"features/pull/on_host/hub_listing.py", "kernel/spread/download.py"}}
    hub = {row for row in hub if row[1].split(".")[0] == "huggingface_hub"}
    # The front has the HTTP library that vLLM needs itself and, where the image has it, the loop of vLLM's own server.
    front = {(file, name) for file, name in outside if file in FRONT and name.split(".")[0] in OF_FRONT}
    theirs = {
        row
        for row in outside
        for own in ("serving/node", "kernel/spread")
        if row[0].startswith(f"{own}/")
        and row[1].startswith((f"vllm_cluster.{own.replace('/', '.')}", "vllm_cluster.wire"))
    }
    # A rank of a Slurm job asks and watches vLLM as a node does; in front of its replicas is the front of a cluster.
    job = {row for row in outside if row[0] in JOB and row[1].startswith(("vllm_cluster.serving.node", WIRE))}
    # What shows the API key in a node has who listens there sent along; what reads folders, where their files lead;
    # what reads metrics, how; what reads JSON of others, its bounds.
    along = tuple(
        f"{WIRE}.{name}" for name in ("labels", "listeners", "inside", "keys", "metrics", "reading", "values")
    )
    sent = {row for row in outside if row[1].startswith(along)}
    assert outside - torch - hub - front - theirs - job - sent == set()


JOB = ["features/slurm/on_host/job_front.py", "features/slurm/on_host/step.py"]
WIRE = "vllm_cluster.wire"
FRONT = tuple(
    f"serving/node/front{name}.py" for name in ("", "_door", "_metrics", "_models", "_proxy", "_refusal", "_replica")
)
OF_FRONT = ("aiohttp", "multidict", "yarl", "uvloop")


def test_the_border_needs_the_standard_library_alone() -> None:
    """It is sent to hosts with the programs that run there."""
    names = {(room(path), name) for path in OURS if room(path).startswith("wire/") for name in imported(path)}
    assert {one for one in names if one[1].split(".")[0] not in sys.stdlib_module_names} == {
        one for one in names if one[1].startswith("vllm_cluster.wire")
    }


def test_a_batch_needs_the_standard_library_and_the_images_http_client_alone() -> None:
    """Its program runs on the head, with the border and what reads /proc; nothing else of this package is there."""
    names = {(room(path), name) for path in OURS if room(path).startswith(ON_HEAD) for name in imported(path)}
    outside = {(file, name) for file, name in names if name.split(".")[0] not in sys.stdlib_module_names}
    ours = ("vllm_cluster.features.batch.on_head", WIRE)
    assert {row for row in outside if not row[1].startswith(ours)} == {(f"{ON_HEAD}client.py", "aiohttp")}


def test_what_runs_elsewhere_is_read_and_never_imported() -> None:
    """Of the two that are packages, each module imports its own."""
    packages = {"serving.node": "serving/node/", "kernel.spread": "kernel/spread/"}
    for name, own in packages.items():
        found = [path for path in importers(f"vllm_cluster.{name}") if not path.startswith(own)]
        assert found == (JOB if name == "serving.node" else [])
    alone = [path.parent for path in OURS if path.parent.name == "on_host"]
    names = {f"vllm_cluster.{folder.relative_to(PACKAGE).as_posix().replace('/', '.')}" for folder in alone}
    assert list(importers(*names)) == []


def folder(module: str) -> str:
    """The folder of tests that a module is in: `sim` of `tests.sim.test_machine`, `pull` for those of the feature."""
    words = [*module.removeprefix("vllm_cluster.").split("."), ""]
    return words[1]


def test_no_test_imports_another_test_or_another_folder_of_tests() -> None:
    """Each folder runs alone, and a test is moved or removed alone: what two folders share is in tests/support."""
    wrong = []
    for path in sorted(path for top in TEST_FOLDERS for path in top.rglob("*.py")):
        own = folder(".".join(path.relative_to(ROOT).parts))
        for name in imported(path):
            if not OF_TESTS.match(name):
                continue
            tests = any(part.startswith("test_") for part in name.split("."))
            if tests or folder(name) not in (own, "support"):
                wrong.append(f"{path.relative_to(ROOT)} imports {name}: move what they share to tests/support")
    assert wrong == []


OF_TESTS = re.compile(r"tests\.|vllm_cluster\.features\.\w+\.tests\b")


# fault: features/bench/tests/unit/test_measured.py: from vllm_cluster.features.bench.render import → from vllm_cluster.features.logs.render import LogWriter,
def test_tests_of_a_feature_import_no_other() -> None:
    """They go with its folder, and with no other."""
    found = {
        path.relative_to(ROOT).as_posix(): others
        for top in TEST_FOLDERS[1:]
        for path in top.rglob("*.py")
        if (others := {name for name in imported(path) if of_feature(name) not in ("", top.parent.name)})
    }
    assert len(TEST_FOLDERS) > 10
    assert found == {}


def of_feature(module: str) -> str:
    """The feature that a module is of, or none."""
    return module.removeprefix("vllm_cluster.features.").split(".")[0] if ".features." in module else ""


# What every call waits for, beside the standard library and the table of each feature: all that the program's own help
# needs.
ALWAYS = {
    *(
        "cli",
        "cli.main",
        "cli.verbs",
        "features",
        "kernel",
        "kernel.hooks",
        "serving",
        "serving.verbs",
        "wire",
        "wire.labels",
    ),
    *(f"kernel.{name}" for name in ("errors", "laptop", "private_keys", "shell_line", "terminal", "text")),
    *(
        f"kernel.terminal.{name}"
        for name in ("called", "edge", "exits", "help", "labels", "output", "printable", "verb")
    ),
}
# And, with typer, what a verb, its help and completion wait for.
PARSER = {"cli.app", *(f"kernel.terminal.{name}" for name in ("options", "program", "removed", "settings", "values"))}
PARSER |= {"kernel.terminal.typed", "kernel.terminal.words"}
# And of a verb that takes an inventory.
SESSION = {"kernel.terminal.session", "kernel.inventory"}
SESSION |= {f"kernel.inventory.{name}" for name in ("find", "problems", "words")}
LOADED = """
import sys, typer
typers = set(sys.modules)
sys.argv = ['vcluster', *sys.argv[1:]]
from vllm_cluster.cli.main import main
try: main()
except SystemExit: pass
ours = {name for name in set(sys.modules) - typers if name.split('.')[0] not in sys.stdlib_module_names}
print(*sorted(name for name in ours if not name.startswith('typer.')), file=sys.stderr)
"""


# fault: cli/verbs.py: from __future__ import annotations → import pydantic
@pytest.mark.parametrize(
    ("argv", "environment", "more"),
    [
        (["--help"], {}, set()),
        ([], {}, set()),
        (
            ["serve", "--help"],
            {},
            {*PARSER, *SESSION, "serving.serve.verb", "kernel.terminal.completion", "wire.backends"},
        ),
        (
            ["status", "--no-such-option"],
            {},
            {*PARSER, *SESSION, "serving.status.verb", "kernel.terminal.completion"},
        ),
        (
            ["status", "-i", "missing.yaml"],
            {},
            {*PARSER, *SESSION, "serving.status.verb", "kernel.terminal.completion", "kernel.terminal.errors"},
        ),
        ([], {"COMP_WORDS": "vcluster st", "COMP_CWORD": "1"}, PARSER),
        (
            [],
            {"COMP_WORDS": "vcluster check -i x ", "COMP_CWORD": "4"},
            {*PARSER, *SESSION, "features.check.verb", "kernel.terminal.completion"},
        ),
        (
            [],
            {"COMP_WORDS": "vcluster serve ", "COMP_CWORD": "2"},
            {*PARSER, *SESSION, "serving.serve.verb", "kernel.terminal.completion", "wire.backends"},
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
    loaded = set(done.stderr.splitlines()[-1].split()) - {"vllm_cluster"}
    tables = {f"features.{one.parent.name}" for one in (PACKAGE / "features").glob("*/feature.py")}
    tables |= {f"{name}.feature" for name in tables}
    every = {*ALWAYS, *tables, *more, *(name.rpartition(".")[0] for name in more)}
    assert loaded == {f"vllm_cluster.{name}" for name in every}


def test_the_programs_own_help_needs_no_parser() -> None:
    """Typer takes longer to load than all the rest: the help is there in the time of a bare interpreter and a half."""
    script = LOADED.replace("import sys, typer", "import sys") + "print('typer' in sys.modules, file=sys.stderr)\n"
    done = subprocess.run([sys.executable, "-c", script, "--help"], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "False"


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


# fault: kernel/apply/members.py: hint=command_line("vcluster", "up", Option("--forget"), name) → hint=f"vcluster up --forget {name}"
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
        'f"Wrote {path}. Then run vcluster check"',
        'f"on {host}: nvidia-smi, then {run}"',
        'f"{name} has version {version}; this vcluster reads {other}"',
    ],
)
def test_a_sentence_is_none(source: str) -> None:
    assert composed(ast.parse(source)) == []


# Where words are that a person typed, or that ssh is called with: with their options they are one command again.
TYPED = (
    *(f"{name}/verb.py" for name in ("features/exec", "serving/endpoint", "serving/status")),
    # A file of this machine, for one that was typed.
    "kernel/inventory/find.py",
    # What is behind `--` is vLLM's; before it a deployment has names alone.
    "kernel/plan/placement.py",
    "serving/serve/serve.py",
    *(f"kernel/terminal/{name}.py" for name in ("edge", "removed", "typed")),
    *(f"kernel/transport/{name}.py" for name in ("command_line", "connect_errors", "ssh_config")),
)


# What makes a command of the words that it is given: those of slurm are of the machine where they are typed.
COMPOSERS = ("command_line", "line", "line_there", "there")


def _begins(node: ast.expr) -> str:
    """How a literal word begins; empty where its beginning is a value."""
    return next(_pieces(node), None) or ""


def unmarked(tree: ast.AST, name: str = "") -> list[int]:
    """The lines of a file with an option in a command that is not marked, or a value that is marked as one."""
    found = []
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name | ast.Attribute):
            continue
        called = call.func.id if isinstance(call.func, ast.Name) else call.func.attr
        if called in COMPOSERS:
            words = [each for word in call.args for each in _literals(word)]
            found += [word.lineno for word in words if _begins(word).startswith("-")]
        elif isinstance(call.func, ast.Attribute):
            continue
        elif called == "Option" and len(call.args) == 1 and not call.keywords:
            (word,) = call.args
            if not (_begins(word) or (isinstance(word, ast.Name) and word.id.isupper())):
                found.append(word.lineno)
        elif called == "typed_words" and name not in TYPED:
            found.append(call.lineno)
    return found


def _literals(word: ast.expr) -> Iterator[ast.expr]:
    """The words of a list that is put among others, and both of two of which one is taken."""
    if isinstance(word, ast.Starred):
        yield from _literals(word.value)
    elif isinstance(word, ast.List | ast.Tuple):
        for one in word.elts:
            yield from _literals(one)
    elif isinstance(word, ast.IfExp):
        yield from (*_literals(word.body), *_literals(word.orelse))
    elif isinstance(word, ast.BoolOp):
        for one in word.values:
            yield from _literals(one)
    else:
        yield word


# fault: features/slurm/render.py: line("stop", state.job, Option("--yes")) → line("stop", state.job, "--yes")
# fault: serving/others.py: [command_line("vcluster", verb, one) for → [command_line("vcluster", verb, Option(one)) for
# fault: kernel/plan/room.py: command_line("vcluster", "stop", first.deployment.name) → command_line("vcluster", "stop", "--yes")
def test_only_a_literal_is_an_option_of_a_printed_command() -> None:
    """A model that a head had named `-iFILE` made the line to paste one about an inventory of the head's choice."""
    paths = [path for path in MODULES if PACKAGE in path.parents and room(path) != "kernel/shell_line.py"]
    found = {room(path): unmarked(ast.parse(path.read_text()), room(path)) for path in paths}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ('command_line("vcluster", "pull", model, "--cancel")', [1]),
        ('command_line("vcluster", "pull", model or "--cancel")', [1]),
        ('command_line("vcluster", "pull", *(["--as", name] if name else []))', [1]),
        ('command_line("vcluster", "pull", f"--as={name}")', [1]),
        ('command_line("vcluster", "pull", Option(model))', [1]),
        ('command_line("vcluster", "pull", *typed_words(words))', [1]),
        ('node.line("stop", job, "--yes")', [1]),
        ('there("sinfo", "-o", "%P")', [1]),
        ('command_line("vcluster", "pull", model, Option("--cancel"), Option(f"--as={name}"), Option(SHARE))', []),
    ],
)
def test_an_option_that_is_not_marked_is_found(source: str, lines: list[int]) -> None:
    assert unmarked(ast.parse(source)) == lines


# Where lines are made that act on the inventory of the call: by a session, and of a call that has none yet.
PASTED = ("kernel/shell_line.py", "kernel/terminal/edge.py", "kernel/terminal/session.py")


def pasted(tree: ast.AST) -> list[int]:
    """The lines of a file that make a text one to paste, called or handed on."""
    annotations = [
        each
        for node in ast.walk(tree)
        for each in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if each is not None
    ]
    typed = {id(name) for each in annotations for name in ast.walk(each)}
    return [
        node.lineno
        for node in ast.walk(tree)
        if (isinstance(node, ast.Name) and node.id == "Pasted" and id(node) not in typed)
        or (isinstance(node, ast.Attribute) and node.attr == "Pasted")
        or (isinstance(node, ast.alias) and node.name == "Pasted" and node.asname)
    ]


# fault: serving/status/render.py: _fixes(paste(fix)) → _fixes(Pasted(fix))
# fault: serving/explain/render.py: tuple(map(paste, fixes)) → tuple(map(Pasted, fixes))
def test_a_line_to_paste_has_the_inventory_of_its_call() -> None:
    """`explain -i other.yaml` had printed `vcluster up`, which is of the cluster of this folder."""
    paths = [path for path in MODULES if PACKAGE in path.parents and room(path) not in PASTED]
    found = {room(path): pasted(ast.parse(path.read_text())) for path in paths}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ('to_paste("fix: ", Pasted(fix))', [1]),
        ("show_status(found, Pasted)", [1]),
        ("shell_line.Pasted(fix)", [1]),
        ("from vllm_cluster.kernel.shell_line import Pasted as Line", [1]),
        ("from vllm_cluster.kernel.shell_line import Pasted", []),
        ("def show(line: Pasted, *more: Pasted) -> tuple[Pasted, ...]: ...", []),
    ],
)
def test_a_line_to_paste_that_is_made_elsewhere_is_found(source: str, lines: list[int]) -> None:
    assert pasted(ast.parse(source)) == lines


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
    found = {room(path): written(ast.parse(path.read_text())) for path in MODULES if not ELSEWHERE.match(room(path))}
    # The second one runs on a host, too, and its text is made fit to be shown here.
    assert {name for name, lines in found.items() if lines} == {
        "kernel/terminal/output.py",
        "kernel/images/for_docker.py",
    }


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
