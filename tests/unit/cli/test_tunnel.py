"""`vcluster endpoint --tunnel -- COMMAND`: it finds the API, and a port in use keeps it in the remedy."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.sim import make
from tests.support.waiting import until
from vllm_cluster.actions import tunnel as action
from vllm_cluster.cli import tunnel as tunnels
from vllm_cluster.cli.endpoint import endpoint
from vllm_cluster.cli.session import Session
from vllm_cluster.events import Emit, Event
from vllm_cluster.transport.forward import listener


@pytest.mark.parametrize(("end", "code"), [("exit 7", 7), ("kill -s TERM $$", 143)])
def test_a_command_gets_the_url(end: str, code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def opened(_inventory: object, _emit: object, *, port: int, inside: Any) -> None:
        inside(f"http://127.0.0.1:{port or 4321}")

    monkeypatch.setattr(action, "tunnel", opened)
    monkeypatch.setattr(Session, "load", lambda _: make.inventory(2))
    line = f'echo "$VCLUSTER_URL $OPENAI_BASE_URL" > {tmp_path}/found; {end}'
    with pytest.raises(SystemExit) as ended:
        endpoint(["sh", "-c", line], tunnel=True, port=0)
    assert ended.value.code == code
    assert (tmp_path / "found").read_text() == "http://127.0.0.1:4321 http://127.0.0.1:4321/v1\n"


def test_a_command_ends_with_its_tunnel(tmp_path: Path) -> None:
    """Also after kill -9."""
    call = (
        f"from vllm_cluster.cli.tunnel import _run; _run(['sh', '-c', 'echo $$ >{tmp_path}/pid; exec sleep 600'], '')"
    )
    with subprocess.Popen([sys.executable, "-c", call]) as running:
        until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().endswith("\n"), 60)
        running.kill()
    pid = int((tmp_path / "pid").read_text())
    try:
        until(lambda: not is_alive(pid), 60)
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


# As the program runs it, with a cluster that is always reached.
CALL = """
import sys
from subprocess import Popen
from vllm_cluster.actions import tunnel as action
from vllm_cluster.cli.endpoint import endpoint
from vllm_cluster.cli.session import Session

action.tunnel = lambda _inventory, _emit, *, port, inside: inside("http://127.0.0.1:1")
Session.load = lambda _: None


def told(running, *given):
    Popen.wait = wait  # first: what is interrupted waits again
    sys.stdout.write("waiting\\n")  # whole: the command writes into the same pipe
    sys.stdout.flush()
    return wait(running, *given)


wait, Popen.wait = Popen.wait, told
endpoint(sys.argv[1:], tunnel=True, port=0)
"""
# It ends in order where it may: the last line is there after SIGTERM, and not after SIGKILL.
WORKER = "trap 'echo ended; exit 3' TERM; echo started; while :; do sleep 0.1; done"


# fault: cli/tunnel.py: if command or not opened.is_set(): → if not command and not opened.is_set():
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_command_ends_in_order_and_with_130(number: signal.Signals) -> None:
    line = [sys.executable, "-c", CALL, "sh", "-c", WORKER]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert {running.stdout.readline() for _ in range(2)} == {"started\n", "waiting\n"}
        running.send_signal(number)
        rest = running.stdout.read()
    assert (running.returncode, rest) == (130, "ended\n")


@pytest.mark.parametrize("opened", [True, False])
def test_ctrl_c_is_the_end_of_an_open_tunnel_alone(
    opened: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_inventory: object, emit: Emit, *, port: int, inside: object) -> None:
        if opened:
            emit(Event("result", f"http://127.0.0.1:{port} forwards to gpu1 until Ctrl-C"))
        raise KeyboardInterrupt

    monkeypatch.setattr(action, "tunnel", interrupted)
    monkeypatch.setattr(Session, "load", lambda _: make.inventory(2))
    code: object = 0
    try:
        endpoint(tunnel=True, port=0)
    except SystemExit as end:
        code = end.code
    assert code == (0 if opened else 130)
    assert ("until Ctrl-C" in capsys.readouterr().err) is opened


def is_alive(pid: int) -> bool:
    """Whether it runs; its new parent may not have taken its exit code."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


# fault: cli/tunnel.py: wanted = inventory.ports.api if port is None else port → wanted = port or 0
def test_without_a_port_it_is_the_one_that_serve_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = []
    monkeypatch.setattr(action, "tunnel", lambda *_, port, inside: ports.append(port))
    inventory = make.inventory(2)
    tunnels.hold(Session(None, as_json=False), inventory, None)
    tunnels.hold(Session(None, as_json=False), inventory, 0)
    assert ports == [inventory.ports.api, 0]


def test_a_port_in_use_keeps_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(_inventory: object, _emit: object, *, port: int, inside: object) -> None:
        listener(port)

    monkeypatch.setattr(action, "tunnel", refused)
    monkeypatch.setattr(Session, "load", lambda _: make.inventory(2))
    monkeypatch.setattr(sys, "argv", ["vcluster", "endpoint", "--tunnel", "--", "python3", "ask.py"])
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SystemExit) as end:
        port = taken.getsockname()[1]
        endpoint(["python3", "ask.py"], tunnel=True, port=port)
    assert end.value.code == 2
    assert capsys.readouterr().err.splitlines() == [
        f"error: cannot listen on 127.0.0.1:{port}: Address already in use",
        "fix: vcluster endpoint --tunnel --port 0 -- python3 ask.py",
        f"fix: ss -ltnp 'sport = :{port}' shows which program listens there",
    ]
