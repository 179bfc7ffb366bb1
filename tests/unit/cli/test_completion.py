"""What TAB offers, in each shell: hosts and models by name, without a connection."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from string import ascii_lowercase
from typing import Any, get_args

import pytest

from tests.support.in_process import run
from vllm_cluster.features.logs import verb as logs_verb
from vllm_cluster.kernel.explain.catalogue import FAILURES
from vllm_cluster.kernel.terminal.completion import (
    MAX_MODELS,
    complete_failures,
    complete_host_list,
    complete_hosts,
    complete_models,
    complete_served,
    complete_unserved,
    forget_model,
    remember_model,
    remember_served,
    remember_stopped,
    row_key,
)

INVENTORY = """version: 1
cluster: lab
hosts:
  # a note
  gpu1:
    address: 10.0.0.1
    ssh: {user: me}

  "gpu-2":
    address: 10.0.0.2
  other: {address: 10.0.0.3}
image: org/image:tag
"""


class Typed:
    """The words so far."""

    def __init__(self, inventory: Path) -> None:
        self.params: Mapping[str, Any] = {"inventory": inventory}


@pytest.fixture
def inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An inventory, and a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "inventory.yaml"
    path.write_text(INVENTORY)
    return path


def test_hosts_are_those_of_the_inventory(inventory: Path) -> None:
    assert complete_hosts(Typed(inventory), [], "") == ["gpu1", "gpu-2", "other"]
    assert complete_hosts(Typed(inventory), [], "gpu") == ["gpu1", "gpu-2"]


def test_failures_are_those_of_the_catalogue_once_a_letter_is_typed(inventory: Path) -> None:
    typed = Typed(inventory)
    offered = [name for letter in ascii_lowercase for name in complete_failures(typed, [], letter)]
    assert sorted(offered) == sorted(FAILURES)
    assert complete_failures(typed, [], "") == []  # the shell offers files


def test_a_list_of_hosts_is_completed_behind_its_last_comma(inventory: Path) -> None:
    assert complete_host_list(Typed(inventory), [], "g") == ["gpu1", "gpu-2"]
    assert complete_host_list(Typed(inventory), [], "gpu1,") == ["gpu1,gpu-2", "gpu1,other"]
    assert complete_host_list(Typed(inventory), [], "gpu1,other,g") == ["gpu1,other,gpu-2"]


@pytest.mark.parametrize("text", ["", "hosts:", "hosts: [", "\0", "hosts:\n  ", "cluster: a\nhosts: {a: {}}\n"])
def test_a_file_without_an_inventory_offers_nothing(text: str, inventory: Path) -> None:
    inventory.write_text(text)
    assert complete_hosts(Typed(inventory), [], "") == []
    assert complete_hosts(Typed(inventory / "missing"), [], "") == []


# fault: kernel/terminal/completion.py: if not path.is_file():  # a → if not path.exists():  # a
def test_a_named_pipe_is_not_waited_for(inventory: Path, tmp_path: Path) -> None:
    """Each TAB of the shell was held."""
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    found: list[list[str]] = []
    asking = threading.Thread(target=lambda: found.append(complete_hosts(Typed(pipe), [], "")), daemon=True)
    asking.start()
    asking.join(20)
    assert found == [[]]


def test_models_are_those_served_last_first(inventory: Path) -> None:
    for number in range(MAX_MODELS + 5):
        remember_model(f"org/m{number}")
    remember_model("org/m7")
    found = complete_models(Typed(inventory), [], "org/")
    assert (found[:2], len(found)) == (["org/m7", f"org/m{MAX_MODELS + 4}"], MAX_MODELS)
    assert complete_models(Typed(inventory), [], "x") == []


# fault: kernel/terminal/completion.py: if one not in served and → if
# fault: kernel/terminal/completion.py: and name not in (None, one)} → and one != name}
# fault: kernel/terminal/completion.py: if row[0] != at)] → if False)]
def test_each_verb_is_offered_what_it_takes_of_the_models(inventory: Path) -> None:
    """`stop` offered models by the name of their files, and `models rm` those that are served: both refuse that."""
    for model in ("/models/x", "org/a", "org/b", "org/c"):
        remember_model(model)
    other = inventory.with_name("other.yaml")
    remember_served(other, {"b": "org/b"})
    remember_served(inventory, {"a": "org/a", "org/c": "org/c"})

    def offered(path: Path) -> tuple[list[str], list[str]]:
        return complete_served(Typed(path), [], ""), complete_unserved(Typed(path), [], "")

    assert offered(inventory) == (["a", "org/c"], ["org/b"])
    assert offered(other) == (["b"], ["org/c", "org/a"])
    remember_stopped(inventory, "a")
    assert offered(inventory) == (["org/c"], ["org/b", "org/a"])
    forget_model("org/b")
    remember_stopped(inventory, None)
    assert offered(inventory) == ([], ["org/c", "org/a"])
    assert offered(inventory.with_name("third.yaml")) == ([], ["org/c", "org/a"])


# fault: kernel/terminal/completion.py: for row in rows if len(row) == _COLUMNS] → for row in rows]
# fault: kernel/terminal/completion.py: if all(map(_PLAIN.fullmatch, names))] → ]
@pytest.mark.parametrize("text", ["", "x", "INVENTORY", "INVENTORY\ta", "INVENTORY\ta\torg/a\tb"])
def test_what_another_version_kept_of_the_served_is_none(text: str, inventory: Path, tmp_path: Path) -> None:
    remember_served(inventory, {"a": "org/a"})
    (tmp_path / "cache" / "vcluster" / "served").write_text(text.replace("INVENTORY", row_key(inventory)))
    assert complete_served(Typed(inventory), [], "") == []
    # A name of a host cannot be a row of another inventory.
    other = inventory.with_name("other.yaml")
    remember_served(inventory, {f"b\n{row_key(other)}\tc": "org/a", "d": "org/d"})
    assert (complete_served(Typed(other), [], ""), complete_served(Typed(inventory), [], "")) == ([], ["d"])


# fault: kernel/terminal/completion.py: os.fsencode(real(inventory)) → str(real(inventory)).encode()
@pytest.mark.parametrize("name", ["caf\udce9", "a\tb", "a\nb"])
def test_the_folder_of_an_inventory_may_have_any_name(name: str, inventory: Path) -> None:
    """A verb that had done all ended in an internal error."""
    path = inventory.parent / name / "inventory.yaml"
    path.parent.mkdir()
    remember_served(path, {"a": "org/a"})
    assert complete_served(Typed(path), [], "") == ["a"]


def test_a_cache_that_cannot_be_used_is_none(inventory: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "vcluster").write_text("a file in the place of the folder")
    remember_model("org/m")
    assert complete_models(Typed(inventory), [], "") == []
    (tmp_path / "cache" / "vcluster").unlink()
    (tmp_path / "cache" / "vcluster").mkdir()
    (tmp_path / "cache" / "vcluster" / "models").write_bytes(b"\xff")
    assert complete_models(Typed(inventory), [], "") == []


@pytest.mark.spans
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("vcluster exec -i inventory.yaml g", ["gpu1", "gpu-2"]),
        ("vcluster -i inventory.yaml check --facts o", ["other"]),
        ("vcluster serve o", ["org/model", "org/served"]),
        ("vcluster stop -i inventory.yaml c", ["chat"]),
        ("vcluster rollback c", ["chat"]),
        ("vcluster bench c", ["chat"]),
        ("vcluster models rm o", ["org/model"]),
        ("vcluster st", ["status", "stop"]),
        ("vcluster endpoint --tun", ["--tunnel"]),
        ("vcluster sandbox u", ["up"]),
        ("vcluster models r", ["rm"]),
        ("vcluster models --js", ["--json"]),
        ("vcluster models -i inventory.yaml --js", ["--json"]),
    ],
)
def test_each_shell_is_offered_the_same(shell: str, typed: str, offered: list[str], inventory: Path) -> None:
    for model in ("org/served", "org/model"):
        remember_model(model)
    remember_served(inventory, {"chat": "org/served"})
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1), "_TYPER_COMPLETE_ARGS": typed}
    words |= {"_VCLUSTER_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    done = run(cwd=inventory.parent, **words)
    shown = done.stdout.strip()
    if shell == "zsh":
        shown = shown.removeprefix("_arguments '*: :((").removesuffix("))'").replace('"', "")
    assert (shown.split(), done.stderr) == (offered, "")


# fault: kernel/terminal/completion.py: and _PLAIN.fullmatch(name)] → ]
@pytest.mark.parametrize("name", ["$(id)", r"\\$(id)", "`id`", ";id;", "a b", "a'", "a\\b"])
def test_what_a_shell_would_run_or_split_is_not_offered(name: str, inventory: Path) -> None:
    remember_model(name)
    assert complete_models(Typed(inventory), [], "") == []


@pytest.mark.spans
def test_verbs_of_a_group_with_a_default_are_offered(inventory: Path) -> None:
    words = {"COMP_WORDS": "vcluster models ", "COMP_CWORD": "2", "_VCLUSTER_COMPLETE": "complete_bash"}
    assert run(cwd=inventory.parent, **words).stdout.split() == ["ls", "rm"]


# fault: features/logs/verb.py: autocompletion=_complete_only, → autocompletion=complete_hosts,
def test_the_parts_of_the_logs_are_offered() -> None:
    only = get_args(logs_verb.Only)[1]
    assert only.autocompletion(None, [], "r") == ["ray", "rank=", "replica="]
