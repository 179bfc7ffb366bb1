"""What the recipes of CONTRIBUTING.md add to a file is of today's code: each name in it is there."""

from __future__ import annotations

import json
import re
import sys
import textwrap
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.support.modules import LONGEST_FILE
from tests.support.paths import ROOT
from vllm_cluster.kernel.checks import codes, host
from vllm_cluster.kernel.docker import container_body
from vllm_cluster.kernel.inventory import model
from vllm_cluster.kernel.plan import spec

PAGE = (ROOT / "CONTRIBUTING.md").read_text()


def added(file: str) -> str:
    """The lines that a recipe adds to a file."""
    (block,) = re.findall(rf"^--- {re.escape(file)}\n((?:\+.*\n)+)", PAGE, re.MULTILINE)
    return textwrap.dedent("".join(line[1:] + "\n" for line in str(block).splitlines()))


def run_in(module: ModuleType | None, text: str) -> dict[str, Any]:
    """What the module would hold with these lines; None is a module of its own."""
    names = dict(vars(module)) if module else {"__name__": "recipe"}
    exec(compile(text, "CONTRIBUTING.md", "exec"), names)
    return names


def entries(module: ModuleType, text: str, **names: object) -> Any:
    """The entries of a mapping that the lines are."""
    return eval("{" + text + "}", {**vars(module), **names})


@pytest.mark.parametrize(
    ("module", "file"),
    [(model, "kernel/inventory/model.py"), (spec, "kernel/plan/spec.py"), (host, "kernel/checks/host.py")],
)
def test_lines_of_a_module_run_in_it(module: ModuleType, file: str) -> None:
    assert run_in(module, added(f"vllm_cluster/{file}"))["memory"] is not vars(module).get("memory", ...)


def test_a_setting_gets_to_docker() -> None:
    line = added("vllm_cluster/kernel/docker/container_body.py")
    assert entries(container_body, line, spec=SimpleNamespace(memory=5)) == {"Memory": 5}


def test_a_check_has_its_place_and_its_reason() -> None:
    check = run_in(host, added("vllm_cluster/kernel/checks/host.py"))["memory"]
    place = eval(f"({added('vllm_cluster/kernel/checks/registry.py')})", {"host": SimpleNamespace(memory=check)})
    assert place == (check,)
    (code,) = entries(codes, added("vllm_cluster/kernel/checks/codes.py"))
    assert f'Finding("{code}"' in added("vllm_cluster/kernel/checks/host.py")


def test_a_failure_is_an_entry() -> None:
    ((subject, failures),) = tomllib.loads(added("vllm_cluster/kernel/explain/failures.toml")).items()
    assert (subject, [*failures]) == ("start", ["open-files"])


def test_a_verb_is_called_by_its_row() -> None:
    ((name, verb),) = run_in(None, added("vllm_cluster/features/uptime/feature.py"))["VERBS"].items()
    assert verb.function == f"features.{name}.verb:{name}"
    for file, function in (("action", f"read_{name}"), ("verb", name)):
        assert callable(run_in(None, added(f"vllm_cluster/features/{name}/{file}.py"))[function])


def test_a_verb_reports_what_it_cannot_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is called as the program calls it, as far as its first file."""
    action = ModuleType("action")
    vars(action).update(run_in(None, added("vllm_cluster/features/uptime/action.py")))
    monkeypatch.setitem(sys.modules, "vllm_cluster.features.uptime.action", action)
    verb = run_in(None, added("vllm_cluster/features/uptime/verb.py"))["uptime"]
    with pytest.raises(SystemExit) as ended:
        verb(tmp_path / "missing.yaml", as_json=True)
    assert ended.value.code == 2
    assert json.loads(capsys.readouterr().out)["event"] == "error"


# fault: tests/support/modules.py: LONGEST_FILE = 400 → LONGEST_FILE = 300
def test_a_recipe_keeps_the_limits_of_sizes() -> None:
    """A file with what a recipe adds to it, or that it makes, is no longer than the package allows."""
    files = re.findall(r"^--- (vllm_cluster/\S+\.py)$", PAGE, re.MULTILINE)
    assert len(files) > 6
    sizes = {}
    for file in files:
        path = ROOT / file
        sizes[file] = (path.read_text() if path.exists() else "").count("\n") + added(file).count("\n")
    assert {file: size for file, size in sizes.items() if size > LONGEST_FILE} == {}


def test_the_page_is_short() -> None:
    assert len(PAGE.encode()) <= 6_000
