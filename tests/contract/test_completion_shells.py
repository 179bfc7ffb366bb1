"""P49, TAB in real shells: no name of a file that it puts on the line is run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.depth import FULL
from tests.support.figures import record
from tests.support.in_process import run
from tests.support.paths import VCLUSTER
from tests.support.terminal import Terminal

# Each shell without a person's settings, and with a prompt that the setup itself does not show.
SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "PS1='rea''dy> '; source ./complete"),
    "zsh": (["zsh", "-f", "-i"], "PS1='rea''dy> '; autoload -Uz compinit; compinit -u -D; source ./complete"),
    "fish": (
        ["fish", "--no-config", "-i"],
        "function fish_prompt; echo -n 'rea''dy> '; end; source ./complete",
    ),
}
PROMPT = "ready> "
# What a shell would run, as it is and behind each way of quoting.
NAMES = ("m$(touch RAN).yaml", r"m\$(touch RAN).yaml", "m`touch RAN`.yaml", "m;touch RAN;.yaml")
MORE = ("m'$(touch RAN)'.yaml", 'm"$(touch RAN)".yaml', "m&touch RAN&.yaml", "m|touch RAN|.yaml", r"m\`touch RAN\`")


@pytest.mark.promise("P49")
@pytest.mark.parametrize("name", [*NAMES, *(pytest.param(name, marks=pytest.mark.deep) for name in MORE)])
@pytest.mark.parametrize("shell", SHELLS)
def test_a_file_that_tab_completes_is_not_run(shell: str, name: str, tmp_path: Path) -> None:
    with _ready(shell, tmp_path) as at:
        (tmp_path / name).write_text("hosts: [\n")
        before = len(at.shown)
        at.press("vcluster status -i m\t")
        at.until("RAN", after=before)
        at.press("\n")
        at.until("error:", after=before)
        assert not (tmp_path / "RAN").exists(), at.shown
    number = len(NAMES) + (len(MORE) if FULL else 0)
    record("P49", f"TAB and Enter in a real {shell}, names of files that it would run", f"0 of {number} run", True)


@pytest.mark.parametrize("shell", SHELLS)
def test_a_plain_name_is_completed(shell: str, tmp_path: Path) -> None:
    with _ready(shell, tmp_path) as at:
        (tmp_path / "lab-1.yaml").write_text("version: 1\nhosts:\n  gpu-1: {}\n")
        before = len(at.shown)
        at.press("vcluster exec -i la\t")
        at.until("lab-1.yaml", after=before)
        at.press(" gp\t")
        at.until("gpu-1", after=before)


def _ready(shell: str, folder: Path) -> Terminal:
    """The shell in this folder, with the completion that it has from this program."""
    argv, setup = SHELLS[shell]
    (folder / "complete").write_text(run(cwd=folder, _VCLUSTER_COMPLETE=f"source_{shell}").stdout)
    path = f"{VCLUSTER.parent}:{os.environ['PATH']}"
    at = Terminal(argv, cwd=folder, env={**os.environ, "PATH": path, "HOME": str(folder)})
    at.press(setup + "\n")
    at.until(PROMPT)
    return at
