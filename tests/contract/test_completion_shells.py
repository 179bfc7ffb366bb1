"""P49, TAB in real shells: no name of a file that it puts on the line is run."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.depth import FULL
from tests.support.figures import record
from tests.support.in_process import run
from tests.support.paths import VCLUSTER
from tests.support.terminal import Terminal
from vllm_cluster.kernel.terminal.completion import row_key

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


# What TAB offers beside files: the line before it, and where the names are that it reads.
OFFERED = {
    "a model": "vcluster fit --max-model-len 8 p",
    "a model to stop": "vcluster stop -i lab.yaml p",
    "a host": "vcluster exec -i lab.yaml p",
    "a host to pull to": "vcluster pull org/x -i lab.yaml --via p",
    "hosts with commas": "vcluster serve -i lab.yaml --hosts p",
}
PLANTED = (
    "p$(touch RAN)", "p`touch RAN`", "p;touch RAN;", "p|touch RAN", "p&touch RAN&", "p'$(touch RAN)'", "p >RAN",
    r"p\$(touch RAN)", "\np$(touch RAN)", "p\x1b]0;RAN\x07", "p${IFS}", "p{a,b}", "p=RAN", "p~", "p*", "p!!", "-pRAN",
)  # fmt: skip


# fault: kernel/terminal/completion.py: and _PLAIN.fullmatch(name)] → ]
@pytest.mark.promise("P49")
@pytest.mark.parametrize("line", OFFERED.values(), ids=OFFERED)
@pytest.mark.parametrize("shell", SHELLS)
def test_of_planted_names_tab_offers_the_plain_one_alone(
    shell: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    with _ready(shell, tmp_path) as at:
        keys = "".join(f"  {json.dumps(name)}: {{}}\n" for name in PLANTED)
        (tmp_path / "lab.yaml").write_text(f"version: 1\nhosts:\n{keys}  plain.name-1: {{}}\n")
        cache = tmp_path / ".cache" / "vcluster"
        cache.mkdir(parents=True, mode=0o700)
        (cache / "models").write_text("\n".join((*PLANTED, "plain.name-1")))
        rows = (f"{row_key(tmp_path / 'lab.yaml')}\t{name}\torg/m" for name in (*PLANTED, "plain.name-1"))
        (cache / "served").write_text("\n".join(rows))
        before = len(at.shown)
        at.press(f"{line}\t")
        at.until("lain.name-1", after=before)
        assert "RAN" not in at.shown[before:]
        at.press("\n")
        at.until("error:", after=before)
        assert not (tmp_path / "RAN").exists(), at.shown


def _ready(shell: str, folder: Path) -> Terminal:
    """The shell in this folder, with the completion that it has from this program."""
    argv, setup = SHELLS[shell]
    (folder / "complete").write_text(run(cwd=folder, _VCLUSTER_COMPLETE=f"source_{shell}").stdout)
    path = f"{VCLUSTER.parent}:{os.environ['PATH']}"
    at = Terminal(argv, cwd=folder, env={**os.environ, "PATH": path, "HOME": str(folder)})
    at.press(setup + "\n")
    at.until(PROMPT)
    return at
