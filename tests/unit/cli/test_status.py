"""What `status` shows of a cluster in any state, at any width, and how it ends."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.sim import lab, make
from tests.support.sim.world import World
from tests.support.tree import full
from vllm_cluster.kernel.checks.docker import engine_problem
from vllm_cluster.kernel.checks.finding import Finding, merged
from vllm_cluster.kernel.docker.calls import NoAnswer, NotFound, RefusedCall, Unreadable
from vllm_cluster.kernel.errors import ConnectionLost, HostError, Unreachable, VclusterError
from vllm_cluster.kernel.shell_line import Pasted
from vllm_cluster.kernel.terminal import table
from vllm_cluster.kernel.terminal.completion import complete_models, complete_served
from vllm_cluster.kernel.terminal.paste import pasteable
from vllm_cluster.kernel.terminal.session import Session
from vllm_cluster.serving.status import verb as status
from vllm_cluster.serving.status.render import show_status, status_document
from vllm_cluster.serving.status.status import ClusterStatus, HostStatus, unseen
from vllm_cluster.wire.status import FailedRequest, GroupNode, GroupStatus, NodeStatus, ServeFailure, ServeStatus

Capture = pytest.CaptureFixture[str]
FINGERPRINT = "SHA256:" + "Zk9" * 14
TRACEBACK = "Traceback (most recent call last):\n" + '  File "x.py", line 1\n' * 40 + "ValueError: no"


def served(phase: str, **more: object) -> ServeStatus:
    """A model of a head at "::1", two hours and some after it was asked for."""
    words: dict[str, object] = {
        "generation": "1", "model": "org/model", "name": "org/model", "host": "fd00::1", "port": 8000, "phase": phase,
        "detail": "", "progress": None, "since": 1000.0, "attempt": 1, "gpus": (4, 4), "first_failure": None,
        "failure": None, "ready_at": None, "seconds_to_ready": None,
    }  # fmt: skip
    return ServeStatus(**{**words, **more})  # type: ignore[arg-type]


def cluster(*hosts: HostStatus, serve: ServeStatus | None = None, up: bool = True) -> ClusterStatus:
    """A cluster of these hosts, two hours after its model began its phase."""
    ray = GroupStatus("up", 0, None, "2", tuple(GroupNode(one.host, one.address, True, 2) for one in hosts))
    return ClusterStatus("lab", "id", up, hosts, NodeStatus("head", 1.0, ray, serve), (), now=8200.0)


GOOD = HostStatus("gpu1", "10.0.0.1", "head", "running", "0123456789ab", 2, 2, age_seconds=7300.0)
BAD = HostStatus("gpu2", "10.0.0.2", "worker", "unreachable", "", 2, None, f"its key is {FINGERPRINT}", "ssh gpu2")


def shown(found: ClusterStatus, capsys: Capture, width: int | None, monkeypatch: pytest.MonkeyPatch, v: int = 0) -> str:
    """What is written at this width; None: to a pipe."""
    if width:
        monkeypatch.setattr("vllm_cluster.serving.status.render.columns", lambda: width)
    show_status(found, Pasted, color="never", verbosity=v)
    return capsys.readouterr().out


@pytest.mark.promise("P23")
@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_table_fits_its_terminal_and_breaks_no_cell(
    width: int, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = (GOOD, replace(BAD, problem=TRACEBACK))
    out = shown(cluster(*hosts, serve=served("ready"), up=False), capsys, width, monkeypatch)
    lines = [line for line in out.splitlines() if not line.startswith("  fix: ")]
    assert max(map(len, lines)) <= width
    # What shows the rest is named where something is cut.
    assert ("-v shows the lines that are cut" in lines) is any(line.endswith("…") for line in lines)
    lines = [line for line in lines if not line.startswith("-v ")]
    for cell in ("gpu1", "running", "2/2", "unreachable", "?/2"):
        assert any(cell in line.split() for line in lines)
    # The line with the URL is wrapped, not cut: its end is what a user copies.
    assert any("http://[fd00::1]:8000/v1" in line for line in lines)
    assert len(lines) == (7 if width == 40 else 6), "a problem is one line, whatever it has"
    assert ("0123456789ab" in out) is (width >= 80)


@pytest.mark.parametrize(("phase", "named"), [("failed", 1), ("backoff", 1), ("ready", 0), ("loading", 0)])
def test_a_failed_start_names_the_command_that_explains_it(phase: str, named: int, capsys: Capture) -> None:
    failure = ServeFailure(1.0, "it died", ())
    found = cluster(GOOD, serve=served(phase, first_failure=failure, failure=failure))
    show_status(found, lambda fix: Pasted(f"{fix} -i a.yaml"), color="never")
    assert capsys.readouterr().out.count("  fix: vcluster explain -i a.yaml\n") == named


def test_the_document_has_remedies_to_paste() -> None:
    document: dict[str, Any] = status_document(
        cluster(GOOD, BAD), lambda fix: Pasted(f"{fix} -i a.yaml" if fix else "")
    )
    assert [host["fix"] for host in document["hosts"]] == ["", "ssh gpu2 -i a.yaml"]


@pytest.mark.promise("P23")
def test_what_goes_elsewhere_is_neither_wrapped_nor_cut(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    out = shown(cluster(GOOD, BAD, up=False), capsys, None, monkeypatch)
    assert f"gpu2: its key is {FINGERPRINT}\n  fix: ssh gpu2\n" in out
    assert "0123456789ab" in out


# fault: kernel/terminal/table.py: if sys.stdout.isatty() else None →
@pytest.mark.usefixtures("capsys")
def test_what_goes_elsewhere_has_no_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert table.columns() is None


def test_the_whole_problem_is_behind_v(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    found = cluster(GOOD, replace(BAD, problem=TRACEBACK), up=False)
    assert "ValueError: no" not in shown(found, capsys, None, monkeypatch)
    assert "ValueError: no" in shown(found, capsys, 80, monkeypatch, v=1)


def test_one_problem_of_several_hosts_is_one_line(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = [replace(BAD, host=f"gpu{number}", problem="the node is missing", fix="vcluster up") for number in (2, 3)]
    out = shown(cluster(GOOD, *gone, up=False), capsys, 80, monkeypatch)
    assert "gpu2, gpu3: the node is missing\n  fix: vcluster up\n" in out


# fault: serving/status/render.py: if status.served is False else f"served model: unknown: {why}" →
def test_what_is_unknown_is_called_unknown(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    away = replace(GOOD, state="unreachable", joined_gpus=None, container="")
    found = ClusterStatus("lab", None, False, (away, replace(BAD, state="running")), None, ("gpu1",), "unreachable")
    out = shown(found, capsys, 80, monkeypatch)
    assert "lab is not up: ?/4 GPUs joined\n" in out
    assert "served model: unknown" in out
    assert "No model is being served" not in out


# fault: serving/status/render.py: if host.state == RUNNING] → ]
def test_gpus_that_the_model_leaves_idle_are_listed(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = GOOD, replace(GOOD, host="gpu2", address="10.0.0.2")
    some = cluster(*hosts, serve=served("ready", ranks={"10.0.0.2": 1}))
    assert "GPUs idle: 2 of gpu1, 1 of gpu2\n" in shown(some, capsys, None, monkeypatch)
    away = cluster(hosts[0], replace(hosts[1], state="unreachable"), serve=served("ready", ranks={"10.0.0.2": 1}))
    assert "GPUs idle: 2 of gpu1\n" in shown(away, capsys, None, monkeypatch)
    for ranks in ({}, {"10.0.0.1": 2, "10.0.0.2": 2}):
        assert "idle" not in shown(cluster(*hosts, serve=served("ready", ranks=ranks)), capsys, None, monkeypatch)


# fault: serving/status/render.py: first += number → first += 1
def test_without_ray_the_ranks_are_listed_by_host(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = GOOD, replace(GOOD, host="gpu2", address="10.0.0.2"), replace(GOOD, host="gpu3", address="10.0.0.3")
    ranks = {"10.0.0.2": 2, "10.0.0.1": 1, "10.0.0.3": 1}
    for backend, expected in (("mp", "ranks: 0 to 1 on gpu2, 2 on gpu1, 3 on gpu3\n"), ("ray", "")):
        out = shown(cluster(*hosts, serve=served("ready", ranks=ranks, backend=backend)), capsys, None, monkeypatch)
        assert out.count("ranks: ") == bool(expected)
        assert expected in out


# fault: serving/status/render.py: and last and first.summary != last.summary and serve.phase != "ready" →
def test_failures_are_dated_and_shown_once(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    first, last = ServeFailure(4600.0, "no room", ()), ServeFailure(8140.0, "a rank was killed", ())
    failed = shown(cluster(GOOD, serve=served("failed", detail="no room", failure=first, first_failure=first)), capsys,
                   None, monkeypatch)  # fmt: skip
    assert "org/model: failed for 2 h\nlast failure 1 h ago: no room\n" in failed
    assert failed.count("no room") == 1
    two = shown(cluster(GOOD, serve=served("backoff", failure=last, first_failure=first)), capsys, None, monkeypatch)
    assert "last failure 1 min ago: a rank was killed\nfirst failure 1 h ago: no room\n" in two
    again = shown(cluster(GOOD, serve=served("ready", failure=None, first_failure=first)), capsys, None, monkeypatch)
    assert (
        "org/model: ready for 2 h at http://[fd00::1]:8000/v1\nrecovered; the last failure was 1 h ago: no room\n"
        in again
    )
    here = shown(cluster(GOOD, serve=served("ready", host="127.0.0.1")), capsys, None, monkeypatch)
    assert f"org/model: ready for 2 h at http://127.0.0.1:8000/v1 on {GOOD.host}\n" in here


# fault: serving/status/render.py: if several else "" → if False else ""
# fault: serving/status/render.py: at = "" if several else f → at = f
def test_of_several_models_each_has_its_hosts_and_the_url_is_there_once(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = GOOD, replace(GOOD, host="gpu2", address="10.0.0.2", role="worker")
    one = served("ready", host="127.0.0.1", ranks={"10.0.0.1": 2})
    other = replace(one, name="tiny2", generation="2", index=1, ranks={"10.0.0.2": 2})
    found = cluster(*hosts, serve=one)
    assert found.head
    for phase, words in (("ready", "ready for 2 h on gpu2"), ("loading", "loading for 2 h on gpu2: half")):
        rows = (one, replace(other, phase=phase, detail="half"))  # type: ignore[arg-type]
        out = shown(replace(found, head=replace(found.head, replicas=rows)), capsys, None, monkeypatch)
        assert f"org/model: ready for 2 h on gpu1\ntiny2: {words}\n" in out
        assert out.count("http://") == out.count("requests by model: http://127.0.0.1:8000/v1 on gpu1\n") == 1


# fault: serving/status/render.py: if back := serve.instead_of: → if back := None:
def test_after_a_rollback_the_failed_request_is_named(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last change names the model that is not served; without this, a colleague takes it for served."""
    failed = FailedRequest(8140.0, "no tokenizer", (), "g2", "./mym", "./mym")
    out = shown(cluster(GOOD, serve=served("ready", instead_of=failed)), capsys, None, monkeypatch)
    assert "\nrolled back from ./mym 1 min ago: no tokenizer; vcluster explain\n" in out
    assert "rolled back" not in shown(cluster(GOOD, serve=served("ready")), capsys, None, monkeypatch)


def gone(made: World) -> None:
    """The worker's node is removed."""
    made.machines["gpu2"].boxes.clear()


def cut(made: World) -> None:
    """The worker cannot be reached."""
    made.machines["gpu2"].reachable = False


# fault: serving/status/verb.py: if found.ready else EXIT_NOT_READY →
# fault: serving/status/verb.py: if one.phase == "ready": → if True:
# fault: serving/status/verb.py: remember_served(loaded.path, {one.name → remember_served(None, {one.name
@pytest.mark.parametrize(
    ("case", "code"),
    [("up", 0), ("ready", 0), ("nothing there", 1), ("a node gone", 1), ("failed", 1), ("cut", 4), ("head cut", 4)],
)
def test_the_exit_code_shows_whether_the_cluster_is_healthy(
    case: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: Capture, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made, inventory = make.world((2, 2)), make.inventory(2)
    inventory = inventory.model_copy(update={"path": tmp_path / "inventory.yaml"})
    change: dict[str, Callable[[World], None]] = {"a node gone": gone, "cut": cut}
    with lab.inside(made):
        for verb in [lab.do_up] * (case != "nothing there") + [lab.do_serve] * (case in ("ready", "cut", "head cut")):
            assert lab.run(made, inventory, verb).error is None
        if case == "failed":
            lab.run(made, inventory, partial(lab.do_serve, model="no/such"))
        if case in change:
            change[case](made)
        if case == "head cut":
            made.machines["gpu1"].reachable = False
        found = lab.run(made, inventory, lab.do_status).value
        monkeypatch.setattr("vllm_cluster.serving.status.status.look_at_cluster", lambda *_: found)
        monkeypatch.setattr(Session, "load", lambda _: inventory)
        with pytest.raises(SystemExit) as end:
            status.status()
    out = capsys.readouterr().out
    assert end.value.code == code, out
    words: Any = SimpleNamespace(params={})
    assert complete_models(words, [], "") == (["org/model"] if case in ("ready", "cut") else [])
    # What is being started, or has failed, is stopped as well.
    served = {"ready": ["org/model"], "cut": ["org/model"], "failed": ["no/such"]}
    words.params["inventory"] = inventory.path
    assert complete_served(words, [], "") == served.get(case, [])
    # The inventory's hosts are the whole; the head knows what they have, and only the head.
    whole = {0: "lab is up: 4/4 GPUs", 1: r"lab is (not )?up: \d/4 GPUs", 4: r"lab is not up: [\d]/4 GPUs"}[code]
    assert re.search(r"lab is not up: \?/\? GPUs" if case == "head cut" else whole, out), out
    signal.signal(signal.SIGINT, signal.default_int_handler)


# fault: kernel/checks/docker.py: : sudo systemctl restart docker" → : sudo systemctl start docker"
# fault: kernel/facts/facts.sh: case $? in 124) frozen=y ;; *) frozen= ;; esac → frozen=
def test_a_frozen_docker_is_asked_once_and_has_its_own_words(tmp_path: Path) -> None:
    machine = full(tmp_path)
    machine.tool("docker", f'echo "$@" >>{tmp_path}/asked; exit 124')
    found = engine_problem(machine.facts())
    assert found is not None
    assert (found.code, found.message) == ("docker-stopped", "Docker does not answer: no answer within 10 s")
    assert found.fix == "on gpu1: sudo systemctl restart docker"
    assert (tmp_path / "asked").read_text().count("\n") == 1


PAGE = "docs.docker.com/engine/install"


# fault: kernel/checks/docker.py: return f"on {facts.host}: {command}" → pass
@pytest.mark.parametrize(
    ("ids", "lines"),
    [
        ("ID=ubuntu\nID_LIKE=debian\n", ["ssh -t gpu1 'sudo apt-get update && sudo apt-get install -y docker.io'"]),
        (
            'ID="amzn"\nID_LIKE="fedora"\n',
            ["ssh -t gpu1 'sudo dnf install -y docker && sudo systemctl enable --now docker'"],
        ),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"\n', [f"on gpu1: install it as {PAGE}/rhel describes"]),
        ('ID="$(reboot)"\nID_LIKE="\x1b[2J; ls"\n', [f"on gpu1: install it as {PAGE} describes"]),
        (None, [f"on gpu1: install it as {PAGE} describes"]),
    ],
    ids=["Ubuntu", "Amazon Linux", "Rocky", "hostile", "no file"],
)
def test_a_host_without_docker_gets_the_command_of_its_distribution(
    tmp_path: Path, ids: str | None, lines: list[str]
) -> None:
    machine = full(tmp_path)
    machine.tool("docker", 'echo "sh: docker: not found" >&2; exit 127')
    if ids is not None:
        machine.file("/etc/os-release", f'NAME="x"\n{ids}VERSION_ID="24.04"\n')
    found = engine_problem(machine.facts())
    assert found is not None
    assert (found.code, found.message) == ("docker-missing", "Docker is not installed")
    assert pasteable(found.fix, {"gpu1": ["gpu1"]}).splitlines() == lines


WORDS = {"gpu1": ["-F", "a b", "-p", "22", "me@10.0.0.1"], "gpu2": ["me@gpu2"]}


# fault: kernel/terminal/paste.py: return shell_line(["ssh", *terminal, *hosts[name], command]) → return f"on {name}: {command}"
@pytest.mark.parametrize(
    ("remedy", "lines"),
    [
        (
            'on gpu1: sudo usermod -aG docker "$USER", then log in again',
            ["ssh -t -F 'a b' -p 22 me@10.0.0.1 'sudo usermod -aG docker \"$USER\"'", "then log in again"],
        ),
        (
            "on gpu1, if it is unused: docker rm -f ray_head; or set another name in cluster",
            [
                "on gpu1, if it is unused:",
                "ssh -F 'a b' -p 22 me@10.0.0.1 'docker rm -f ray_head'",
                "or set another name in cluster",
            ],
        ),
        ("on gpu1: install iproute2", ["on gpu1: install iproute2"]),
        (
            "on gpu1: nvidia-smi, docker ps, then stop it",
            ["ssh -F 'a b' -p 22 me@10.0.0.1 nvidia-smi", "ssh -F 'a b' -p 22 me@10.0.0.1 'docker ps'", "then stop it"],
        ),
        (
            "on gpu1: chronyc makestep, or timedatectl set-ntp true",
            [
                "ssh -F 'a b' -p 22 me@10.0.0.1 'chronyc makestep'",
                "or:",
                "ssh -F 'a b' -p 22 me@10.0.0.1 'timedatectl set-ntp true'",
            ],
        ),
        (
            "on gpu1: echo '10.0.0.1 gpu1' | sudo tee -a /etc/hosts",
            ["ssh -t -F 'a b' -p 22 me@10.0.0.1 'echo '\"'\"'10.0.0.1 gpu1'\"'\"' | sudo tee -a /etc/hosts'"],
        ),
        (
            "on gpu1: cp -rL '/a; b' /c; then vcluster pull",
            ["ssh -F 'a b' -p 22 me@10.0.0.1 'cp -rL '\"'\"'/a; b'\"'\"' /c'", "then vcluster pull"],
        ),
        (
            "on gpu1, gpu2, here, if it is unused: docker ps",
            [
                "on gpu1, gpu2, here, if it is unused:",
                "ssh -F 'a b' -p 22 me@10.0.0.1 'docker ps'",
                "ssh me@gpu2 'docker ps'",
                "on here: docker ps",
            ],
        ),
        ("on gpu9: docker ps", ["on gpu9: docker ps"]),
        (
            "on gpu1: docker rm -f vcluster-lab\nvcluster up",
            ["ssh -F 'a b' -p 22 me@10.0.0.1 'docker rm -f vcluster-lab'", "vcluster up"],
        ),
    ],
)
def test_a_command_for_a_host_is_a_line_of_ssh(remedy: str, lines: list[str]) -> None:
    assert pasteable(remedy, WORDS).splitlines() == lines


# fault: kernel/terminal/paste.py: in names) → in names[:1])
def test_a_remedy_of_many_hosts_is_a_line_of_ssh_for_each() -> None:
    names = [f"gpu{number}" for number in range(32)]
    (found,) = merged(Finding("docker-stopped", name, "it has ended", f"on {name}: docker ps") for name in names)
    lines = pasteable(found.fix, {name: [f"me@{name}"] for name in names}).splitlines()
    assert lines == [f"ssh me@{name} 'docker ps'" for name in names]


# fault: serving/status/status.py: isinstance(error, DockerError) → "Docker" in error.message
@pytest.mark.parametrize(
    ("error", "state"),
    [
        (HostError("Docker1", "the script ended early"), "unknown"),
        (HostError("gpu1", "cannot read its facts: Docker"), "unknown"),
        (RefusedCall("gpu1", "list containers: no (API 500)", exit_code=500, stderr=""), "docker-error"),
        (NotFound("gpu1", "inspect x: no (API 404)", exit_code=404, stderr=""), "docker-error"),
        (NoAnswer("gpu1", "list containers: no answer within 30 s"), "docker-error"),
        (Unreadable("gpu1", "list containers: the answer cannot be read"), "docker-error"),
        (ConnectionLost("gpu1", "list containers: the connection to Docker broke"), "unreachable"),
        (Unreachable("Docker1", "no answer"), "unreachable"),
    ],
)
def test_the_state_of_a_host_is_the_kind_of_its_error_and_no_word_of_it(error: VclusterError, state: str) -> None:
    assert unseen(error).state == state
