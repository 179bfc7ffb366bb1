"""Called by the name of the package, as `uvx vllm-cluster` does, the program shows that name in all that it prints."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.in_process import run
from tests.support.sim import make
from vllm_cluster.cli.verbs import VERBS
from vllm_cluster.kernel.terminal.called import as_called, set_called
from vllm_cluster.serving.endpoint.detached import Detached
from vllm_cluster.serving.endpoint.endpoint import ClientEndpoint
from vllm_cluster.serving.endpoint.render import show_clients

OTHER = "vllm-cluster"
GROUPS = [["models", "ls"], ["models", "rm"], ["image", "push"], ["sandbox", "up"], ["slurm", "job"], ["slurm", "stop"]]
NO_FILE = "name another file: -i FILE, or VCLUSTER_INVENTORY"
# What is to be pasted, in the name that was not called.
CALL = re.compile(rf"(?<![\w-])vcluster (?:{'|'.join(VERBS)}|VERB|-)")


# fault: kernel/terminal/help.py: filter(None, as_called(verb.about).split → filter(None, verb.about.split
@pytest.mark.spans
@pytest.mark.parametrize("words", [[], *([verb] for verb in VERBS), *GROUPS], ids=" ".join)
def test_help_and_usage_have_the_name_that_was_called(words: list[str], tmp_path: Path) -> None:
    done = run(*words, "--help", cwd=tmp_path, called=f"/opt/bin/{OTHER}")
    assert done.returncode == 0
    assert done.stdout.startswith(" ".join(["Usage:", OTHER, *words]))
    assert CALL.findall(done.stdout) == []
    wrapped = done.stdout.partition("Examples:")[0]
    assert max(map(len, wrapped.splitlines())) <= 100


# fault: kernel/terminal/output.py: Style(label + as_called(unbroken(cleaned(text))) → Style(label + (unbroken(cleaned(text)))
@pytest.mark.spans
@pytest.mark.parametrize(
    ("words", "fixes"),
    [
        (["sttus"], ["vllm-cluster status"]),
        (["key"], ["vllm-cluster endpoint --key"]),
        (["status", "--whatch"], ["vllm-cluster status --watch", "vllm-cluster status --help"]),
        (["status"], ["vllm-cluster init --host gpu1=10.0.0.11 --host gpu2=10.0.0.12", NO_FILE]),
        (["up", "--wiat", "10s"], ["vllm-cluster up --wait 10s", "vllm-cluster up --help"]),
    ],
    ids=" ".join,
)
def test_a_fix_begins_with_the_name_that_was_called(words: list[str], fixes: list[str], tmp_path: Path) -> None:
    done = run(*words, cwd=tmp_path, called=OTHER)
    assert done.returncode == 2
    assert [line.removeprefix("fix: ") for line in done.stderr.splitlines() if line.startswith("fix: ")] == fixes
    error = json.loads(run(*words, "--json", cwd=tmp_path, called=OTHER).stdout.splitlines()[-1])
    assert [line.replace(" --json", "") for line in error["fix"]] == fixes


def test_only_calls_of_the_program_are_renamed() -> None:
    set_called(OTHER, VERBS)
    try:
        assert as_called(
            "vcluster up; /x/vcluster up; vcluster-lab; ~/.cache/vcluster; restarted by vcluster at 3"
        ) == ("vllm-cluster up; /x/vcluster up; vcluster-lab; ~/.cache/vcluster; restarted by vcluster at 3")
        assert as_called(as_called("vcluster --version")) == "vllm-cluster --version"
    finally:
        set_called("vcluster", VERBS)
    assert as_called("vcluster up") == "vcluster up"


# fault: serving/endpoint/render.py: *as_called("vcluster endpoint").split() → "vcluster", "endpoint"
def test_the_lines_of_the_endpoint_have_the_name_that_was_called(capsys: pytest.CaptureFixture[str]) -> None:
    found = ClientEndpoint("http://127.0.0.1:1/v1", "sk", "org/model", Detached(7, "", 1, ""))
    set_called(OTHER, VERBS)
    try:
        show_clients(found, make.inventory(1), env=False, as_json=False)
    finally:
        set_called("vcluster", VERBS)
    shown = capsys.readouterr().out
    assert f"key:    {OTHER} endpoint --key\n" in shown
    assert f"until {OTHER} endpoint --close\n" in shown


def test_each_name_completes_its_own_words(tmp_path: Path) -> None:
    for name, variable in (("vcluster", "_VCLUSTER_COMPLETE"), (OTHER, "_VLLM_CLUSTER_COMPLETE")):
        program = Path(sys.executable).with_name(name)
        environment = {**os.environ, variable: "complete_bash", "COMP_WORDS": f"{name} sta", "COMP_CWORD": "1"}
        done = subprocess.run([program], env=environment, cwd=tmp_path, check=False, capture_output=True, text=True)
        assert (done.stdout.split(), done.stderr) == (["status"], "")
