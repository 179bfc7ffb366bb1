"""The laptop as it is: the real program where its operating system refuses something."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.figures import tallied
from tests.support.models.configs import LLAMA_8B
from tests.support.paths import ROOT

# Each case starts the program.
pytestmark = pytest.mark.slow

INVENTORY = """
version: 1
cluster: lab
image: vllm/vllm-openai:v0.33.0
model_cache: /data
hosts:
  gpu1: {address: 10.0.0.1, ssh: {host: 127.0.0.1, port: 1}}
"""
INIT = "$VCLUSTER init --host gpu1=10.0.0.11"
# A user that /etc/passwd does not know, who still owns the files here.
NAMELESS = "unshare --user --map-user=54321 --map-group=54321"
NOBODY = f"env -u HOME -u USER -u LOGNAME {NAMELESS}"
# Root may read what its mode forbids, and no other user.
PLAIN = "setpriv --inh-caps=-all --bounding-set=-all" if os.getuid() == 0 else ""
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@dataclass(frozen=True)
class Case:
    """A shell's line in a fresh folder with an inventory, and what must come of it: exit code and words."""

    name: str
    line: str
    code: int
    says: str = ""
    remedy: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    stdout: str = ""


CASES = (
    Case(
        "a folder that is missing", f"{INIT} -o missing/x.yaml", 2, "missing/x.yaml: No such file", "mkdir -p missing"
    ),
    Case("a folder that forbids", f"{INIT} -o /sys/x.yaml", 2, "/sys/x.yaml: Permission denied", "ls -ld /sys"),
    Case("a folder for a file", f"{INIT} --force -o there", 2, "there: Is a directory", "name a file"),
    Case("a full disk", f"{INIT} --force -o /dev/full", 2, "/dev/full: No space left on device", "df -h /dev"),
    Case(
        "a tiny disk",
        "unshare --user --map-root-user --mount sh -c "
        f"'mount -t tmpfs -o size=4k none there && head -c 4096 /dev/zero >there/full; {INIT} -o there/x.yaml'",
        2,
        "there/x.yaml: No space left on device",
        "df -h there",
    ),
    Case("a deleted folder", "cd there && rmdir ../there && $VCLUSTER plan", 2, "the current folder", "cd to another"),
    Case(
        "a deleted folder, -i -", "cd there && rmdir ../there && $VCLUSTER plan -i - <$INVENTORY", 2, "current folder"
    ),
    Case("a deleted folder, relative -i", "cd there && rmdir ../there && $VCLUSTER plan -i x", 2, "the current folder"),
    Case("a deleted folder, absolute -i", "cd there && rmdir ../there && $VCLUSTER plan -i $INVENTORY", 4, "gpu1: "),
    Case(
        "a deleted folder, a wrong file", "cd there && rmdir ../there && $VCLUSTER plan -i /no", 2, "/no: no such file"
    ),
    Case(
        "a folder above that forbids",
        f"mkdir -p there/in && cd there/in && chmod 0 .. && {PLAIN} $VCLUSTER plan; c=$?; chmod 700 ../; exit $c",
        2,
        "no inventory.yaml in",
    ),
    Case(
        "an inventory that forbids",
        f"chmod 0 inventory.yaml; {PLAIN} $VCLUSTER plan",
        2,
        "inventory.yaml: cannot be read",
    ),
    Case(
        "a folder as inventory",
        "$VCLUSTER plan -i there",
        2,
        "there: cannot be read: Is a directory",
        "there/inventory",
    ),
    Case(
        "the current folder as inventory",
        '$VCLUSTER plan -i "$PWD"',
        2,
        "/srv: cannot be read",
        "/srv/inventory.yaml",
    ),
    Case("a dot as inventory", "$VCLUSTER plan -i .", 2, "/srv: cannot be read", "/srv/inventory.yaml"),
    Case("no HOME", "env -u HOME $VCLUSTER plan", 4, "gpu1: "),
    Case("no HOME, up", "env -u HOME $VCLUSTER up --yes", 4, "gpu1: "),
    Case(
        "a nameless user",
        f"env -u HOME -u USER -u LOGNAME {NAMELESS} $VCLUSTER init --host a=10.0.0.1 -o x",
        0,
        "Wrote",
    ),
    Case("a nameless user, fit", f"{NOBODY} $VCLUSTER fit '~/model' --gpus 1 --gpu-memory 80GB", 2, "~/model"),
    Case(
        "a nameless user, a report",
        f"{NOBODY} $VCLUSTER explain --bundle report.tgz",
        2,
        "ssh refuses its configuration",
        stdout="Wrote report.tgz",
    ),
    Case("a nameless user, a sandbox", f"{NOBODY} $VCLUSTER sandbox up", 2, "has no home", "HOME="),
    Case("a nameless user, up", f"env -u HOME -u USER -u LOGNAME {NAMELESS} $VCLUSTER up", 2, "has no home", "HOME="),
    Case(
        "schema into a full disk", "$VCLUSTER init --schema >/dev/full", 1, "standard output: No space left on device"
    ),
    Case("version into a full disk", "$VCLUSTER --version >/dev/full", 1, "standard output: No space left on device"),
    Case("help into a full disk", "$VCLUSTER up --help >/dev/full", 1, "standard output: No space left on device"),
    Case("a reader that has gone", "$VCLUSTER init --schema | :; exit ${PIPESTATUS[0]}", 1),
    Case("closed output", "$VCLUSTER init --schema >&-", 1, "standard output: Bad file descriptor"),
    Case("closed output, nothing to print", f"{INIT} -o x.yaml >&-", 0, "Wrote x.yaml"),
    Case("closed error", "$VCLUSTER plan -i /no 2>&-", 2),
    Case("closed error, unreachable", "$VCLUSTER plan 2>&-", 4),
    Case("closed error, a usage error", "$VCLUSTER plan --no 2>&-", 2),
    Case("all closed", "$VCLUSTER plan <&- >&- 2>&-", 4),
    Case("error into a full disk", "$VCLUSTER plan 2>/dev/full", 4),
    Case("ASCII", f"{INIT} -o - ", 0, stdout="cluster: srv", env=ASCII),
    Case("ASCII into a file", f"{INIT} -o ü.yaml && grep -q cluster: ü.yaml", 0, "Wrote ", env=ASCII),
    Case("ASCII, help", "$VCLUSTER serve --help", 0, stdout="--expose", env=ASCII),
    Case(
        "ASCII output, fit",
        FIT
        := f"echo {shlex.quote(json.dumps(LLAMA_8B))} > config.json && $VCLUSTER fit ./config.json --gpu-memory 80GB",
        0,
        stdout="TP=1",
        env={"PYTHONIOENCODING": "ascii"},
    ),
    Case("ASCII, fit", FIT, 0, stdout="TP=1", env=ASCII),
    Case("JSON into a full disk", f"{FIT} --json >/dev/full", 1, "standard output: No space left on device"),
    Case("a JSON error into a full disk", "$VCLUSTER plan --json >/dev/full", 4, "gpu1: "),
    Case("a JSON error to a reader that has gone", "$VCLUSTER plan --json | :; exit ${PIPESTATUS[0]}", 4, "gpu1: "),
    Case(
        "ASCII, an inventory's words",
        "sed -i s/gpu1:/gpü1:/ inventory.yaml; $VCLUSTER plan",
        2,
        "inventory.yaml:7",
        env=ASCII,
    ),
)

# Those that fail where another case does too, and start most of the program for it.
LATER = {
    "a deleted folder, absolute -i", "no HOME, up", "a nameless user, fit", "closed error, unreachable",
    "ASCII into a file", "ASCII output, fit", "a JSON error into a full disk",
}  # fmt: skip


def run(case: Case, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the line with bash in a folder with an inventory and an empty folder."""
    here = folder / "srv"
    (here / "there").mkdir(parents=True)
    (here / "inventory.yaml").write_text(INVENTORY)
    own = {
        "HOME": str(folder),
        "VCLUSTER": f"{sys.executable} -m vllm_cluster",
        "PYTHON": sys.executable,
        "INVENTORY": f"{here}/inventory.yaml",
    }
    env = {**os.environ, "PYTHONPATH": str(ROOT), **own, **case.env, **more}
    env.pop("XDG_CACHE_HOME", None)
    return subprocess.run(
        ["bash", "-c", case.line], cwd=here, env=env, capture_output=True, timeout=60, check=False, text=True
    )


@pytest.fixture(scope="module")
def held() -> Iterator[dict[str, bool]]:
    """Which cases held; their row counts them."""
    with tallied("P42", "the real program where the system refuses something", "cases: one line each") as cases:
        yield cases


# fault: kernel/terminal/edge.py: found = meaning(error) → found = None
@pytest.mark.spans
@pytest.mark.promise("P42")
@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.name, marks=[pytest.mark.deep] * (case.name in LATER)) for case in CASES]
)
def test_one_line_and_the_right_exit_code(case: Case, tmp_path: Path, held: dict[str, bool]) -> None:
    held[case.name] = False
    done = run(case, tmp_path)
    told = f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert done.returncode == case.code, told
    assert case.says in done.stderr, told
    assert case.stdout in done.stdout, told
    for word in ("Traceback", "internal error", "Exception ignored"):
        assert word not in done.stderr, told
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert len(errors) == (case.code != 0 and bool(case.says)), told
    if case.remedy:
        assert any(line.startswith("fix: ") and case.remedy in line for line in done.stderr.splitlines()), told
    held[case.name] = True


PROGRAM = """
from vllm_cluster.kernel.terminal import edge
def broken():
    raise KeyError("x")
edge.open_streams()
raise SystemExit(edge.run_to_exit_code(broken))
"""


# fault: kernel/terminal/edge.py: except (OSError, VclusterError, ValueError): → except ZeroDivisionError:
@pytest.mark.promise("P42")
@pytest.mark.parametrize(
    "cache",
    ["/sys/no", "/dev/null/x", "$HOME/inventory.yaml", "unset"],
    ids=["read-only", "no folder", "a file", "none"],
)
def test_a_bug_is_one_line_wherever_the_report_cannot_be_written(cache: str, tmp_path: Path) -> None:
    """The handler of bugs has none of its own."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": cache}
    prefix: list[str] = []
    if cache == "unset":
        env = {name: value for name, value in env.items() if name not in ("XDG_CACHE_HOME", "HOME", "USER")}
        prefix = NAMELESS.split()
    done = subprocess.run(
        [*prefix, sys.executable, "-c", PROGRAM], env=env, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: internal error: KeyError: 'x'\nfix: ")
    assert "Traceback" not in done.stderr


@pytest.mark.promise("P42")
def test_a_bug_leaves_a_report_that_only_its_owner_reads(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, check=False)
    log = tmp_path / "vcluster" / "crash.log"
    assert log.stat().st_mode & 0o777 == 0o600
    assert "KeyError: 'x'" in log.read_text()


# fault: kernel/terminal/edge.py: file.write(redact(traceback.format_exc())) → file.write(traceback.format_exc())
@pytest.mark.promise("P13")
def test_a_bug_s_report_holds_no_secret(tmp_path: Path) -> None:
    token = "hf_" + "AbCdEfGh12" * 3
    program = PROGRAM.replace('"x"', f'"{token} Authorization: Bearer s3cr3t-of-somebody"')
    assert program != PROGRAM
    env = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False)
    told = done.stderr + (tmp_path / "vcluster" / "crash.log").read_text()
    assert told.count("KeyError: '[redacted] Authorization: Bearer [redacted]") == 2, told
    assert token not in told
