"""What this program uses of libraries that they do not promise to keep: a release that lacks it fails here, by name.

Each library in the table has an upper bound in pyproject.toml, so that users get no release that this has not seen.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import socket
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paramiko
import pytest
import typer

from tests.support.modules import MODULES
from tests.support.paths import ROOT
from vllm_cluster.kernel.laptop import cache_folder
from vllm_cluster.kernel.transport import fabric
from vllm_cluster.kernel.transport.fabric.keepalive import LISTS
from vllm_cluster.kernel.versions import RAY

# Where each is, with the parameters that it takes; None where it is not called.
PRIVATE = {
    "paramiko.Channel._feed": "self, m",
    "paramiko.Channel._feed_extended": "self, m",
    "paramiko.Transport._channel_handler_table": None,
    "paramiko.Transport._filter_algorithm": "self, type_",
    "paramiko.Transport._parse_debug": "self, m",
    "paramiko.Transport._parse_disconnect": "self, m",
    "paramiko.Transport._parse_ext_info": "self, msg",
    "paramiko.Transport._parse_newkeys": "self, m",
    "paramiko.Transport._preferred_keys": None,
    "paramiko.Transport._send_message": "self, data",
    "paramiko.Transport._send_user_message": "self, data",
    "paramiko.Transport._verify_key": "self, host_key, sig",
    "paramiko.agent.AgentSSH._close": "self",
    "paramiko.agent.AgentSSH._connect": "self, conn",
    "paramiko.auth_handler.AuthHandler._parse_service_accept": "self, m",
    "paramiko.buffered_pipe.BufferedPipe.set_event": "self, event",
    "paramiko.packet.Packetizer.complete_handshake": "self",
}
# Of Ray, which is not installed here: files of its wheel, and the names that must be in them.
OF_RAY = {
    "ray/_raylet.so": ("GcsClientOptions", "allow_cluster_id_nil", "fetch_cluster_id_if_nil"),
    "ray/_private/state.py": (
        "class GlobalState",
        "def _initialize_global_state(self, gcs_options",
        "def node_table(self)",
        "def available_resources_per_node(self)",
    ),
}
# Used only where it is there: nothing breaks without it.
OPTIONAL = {
    "_run_in_subprocess": "vllm.model_executor.models.registry; saves an import of 9 s",
    "_actions": "argparse, of vLLM's parser; names the flag that was meant",
    "_asdict": "collections.namedtuple, which documents it",
    "_replace": "the same",
    "_Hash": "hashlib in typeshed, for mypy alone",
    "_typeshed.ReadableBuffer": "for mypy alone",
    "_typeshed.WriteableBuffer": "for mypy alone",
}


def found(path: str) -> Any:
    """What a dotted path leads to."""
    module, names = path, list[str]()
    while True:
        try:
            value: Any = importlib.import_module(module)
        except ModuleNotFoundError:
            module, _, name = module.rpartition(".")
            names.insert(0, name)
        else:
            break
    for name in names:
        value = getattr(value, name)
    return value


@pytest.mark.parametrize("path", PRIVATE)
def test_a_private_part_is_as_we_use_it(path: str) -> None:
    value, parameters = found(path), PRIVATE[path]
    if parameters is not None:
        assert ", ".join(inspect.signature(value).parameters) == parameters


def test_preferred_keys_are_names() -> None:
    names = found("paramiko.Transport._preferred_keys")
    assert isinstance(names, tuple)
    assert {"ssh-ed25519", "rsa-sha2-512"} <= set(names)


def test_every_list_of_algorithms_is_filtered() -> None:
    """What ssh_config does not allow is left out there, of all that paramiko offers."""
    offered = [name for name in vars(paramiko.Transport) if name.startswith("preferred_")]
    assert {f"preferred_{kind}" for kind in LISTS} == {*offered} - {"preferred_compression"}
    for name in offered:
        assert "self._filter_algorithm(" in inspect.getsource(vars(paramiko.Transport)[name].fget)


def test_connections_and_channels_of_paramiko_have_what_we_read() -> None:
    """Attributes without an underscore that no page of its documentation names."""
    here, there = socket.socketpair()
    with here, there:
        transport, channel = paramiko.Transport(here), paramiko.Channel(1)
        assert hasattr(transport.clear_to_send, "is_set")
        assert hasattr(transport.clear_to_send_lock, "acquire")
        assert {"auth_handler", "packetizer"} <= vars(transport).keys()
        names = {
            "remote_chanid",
            "event",
            "event_ready",
            "eof_received",
            "status_event",
            "exit_status",
            "closed",
            "lock",
            "transport",
        }
        assert names <= vars(channel).keys()
        transport.close()


def test_paramiko_asks_a_socket_whether_it_is_closed_by_a_private_name() -> None:
    """`Wire._closed` is there for this line alone."""
    assert "self.sock._closed" in inspect.getsource(paramiko.Transport)


def test_a_parameter_of_typer_is_converted_where_we_replace_it() -> None:
    app = typer.Typer()

    @app.command()
    def verb(number: int = typer.Option(1, min=0)) -> None:
        """A verb with one option."""

    command: Any = typer.main.get_command(app)
    (option,) = (one for one in command.params if one.name == "number")
    assert option.type_descriptor.annotation is int
    assert (option.min, option.max, option.is_flag, option.count) == (0, None, False, False)
    option.process_value = lambda _, value: f"ours: {value}"
    with command.make_context("verb", ["--number", "7"]) as context:
        assert context.params["number"] == "ours: 7"
    assert option.value_is_missing(None)


@pytest.fixture(scope="module")
def ray_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ray's wheel: the one that `up` brought to a host before, or the same from an index."""
    pattern = f"ray-{RAY}-*linux*.whl"
    there = sorted(cache_folder().glob(f"wheels/*/{pattern}"))
    if not there:
        folder = tmp_path_factory.mktemp("wheel")
        argv = ["download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(folder), f"ray=={RAY}"]
        subprocess.run([sys.executable, "-m", "pip", *argv], check=True, timeout=280)
        there = sorted(folder.glob("ray-*.whl"))
    return there[0]


@pytest.mark.parametrize("file", OF_RAY)
def test_a_private_part_of_ray_is_as_we_use_it(file: str, ray_wheel: Path) -> None:
    """Without it a node would ask by `ray.init`, which costs a job in Ray and a second each time."""
    with zipfile.ZipFile(ray_wheel) as wheel:
        content = wheel.read(file)
    assert [name for name in OF_RAY[file] if name.encode() not in content] == []


def uses() -> Iterator[tuple[str, str]]:
    """Each private name of the package's code that the package itself does not define, and where it is used."""
    own: set[str] = set()
    used: dict[str, str] = {}
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            where = f"{path.name}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                own.add(node.name)
            elif isinstance(node, ast.Attribute):
                if isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name) and node.value.id == "self":
                    own.add(node.attr)
                elif not (isinstance(node.value, ast.Name) and node.value.id == "os"):
                    used[node.attr] = where
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                own.add(node.id)
            elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("vllm_cluster"):
                used |= {f"{node.module}.{name.name}": where for name in node.names if "._" in f".{node.module}"}
            elif isinstance(node, ast.Constant) and re.fullmatch(r"[a-z]+(\.[a-z]+)*\._\w+(\.\w+)*", str(node.value)):
                used[str(node.value)] = where
    for name, where in used.items():
        if re.search(r"(^|\.)_(?!_)", name) and name not in own and not name.endswith("__"):
            yield name, where


def test_every_private_part_is_in_the_table() -> None:
    """The test below finds the parts of a class that one of the package is based on."""
    listed = {*PRIVATE, *(path.rpartition(".")[2] for path in PRIVATE), *OPTIONAL}
    texts = " ".join([*OF_RAY, *(name for names in OF_RAY.values() for name in names)]).replace("/", ".")
    assert [f"{where}: {name}" for name, where in uses() if name not in listed and name not in texts] == []


def test_what_our_classes_use_of_their_bases_is_in_the_table() -> None:
    """`self._connect` of a class that is based on paramiko's: its name may be one of the package's elsewhere."""
    missing = []
    for found_module in pkgutil.iter_modules(fabric.__path__, f"{fabric.__name__}."):
        module = importlib.import_module(found_module.name)
        for kind in vars(module).values():
            if not (isinstance(kind, type) and kind.__module__ == module.__name__):
                continue
            theirs = {part for base in kind.__mro__[1:] if base is not object for part in vars(base)}
            used = set(re.findall(r"(?:self|super\(\))\.(_[a-z]\w+)|def (_[a-z]\w+)", inspect.getsource(kind)))
            parts = {part for pair in used for part in pair if part in theirs}
            missing += [f"{kind.__name__}.{part}" for part in parts if not any(p.endswith(f".{part}") for p in PRIVATE)]
    assert missing == []


def test_a_library_whose_private_parts_we_use_has_an_upper_bound() -> None:
    needs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    bounded = {re.split(r"[<>=]", need)[0] for need in needs if "<" in need}
    assert {path.partition(".")[0] for path in PRIVATE} - bounded == set()
