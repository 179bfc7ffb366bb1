"""`vcluster tunnel -- COMMAND`: the command finds the API, and a port in use keeps the command in the remedy."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.sim import make
from vllm_cluster.actions import tunnel as action
from vllm_cluster.cli import tunnel as verb
from vllm_cluster.cli.session import Session
from vllm_cluster.transport.forward import listener


def test_a_command_gets_the_url(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def opened(_inventory: object, _emit: object, *, port: int, inside: Any) -> None:
        inside(f"http://127.0.0.1:{port or 4321}")

    monkeypatch.setattr(action, "tunnel", opened)
    monkeypatch.setattr(Session, "load", lambda _: make.inventory(2))
    line = f'echo "$VCLUSTER_URL $OPENAI_BASE_URL" > {tmp_path}/found; exit 7'
    with pytest.raises(SystemExit) as end:
        verb.tunnel(["sh", "-c", line], port=0)
    assert end.value.code == 7
    assert (tmp_path / "found").read_text() == "http://127.0.0.1:4321 http://127.0.0.1:4321/v1\n"


def test_without_a_port_it_is_the_one_that_serve_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = []
    monkeypatch.setattr(action, "tunnel", lambda *_, port, inside: ports.append(port))
    inventory = make.inventory(2)
    verb.hold(Session(None, as_json=False), inventory, None)
    verb.hold(Session(None, as_json=False), inventory, 0)
    assert ports == [inventory.ports.api, 0]


def test_a_port_in_use_keeps_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(_inventory: object, _emit: object, *, port: int, inside: object) -> None:
        listener(port)

    monkeypatch.setattr(action, "tunnel", refused)
    monkeypatch.setattr(Session, "load", lambda _: make.inventory(2))
    monkeypatch.setattr(sys, "argv", ["vcluster", "tunnel", "--", "python3", "ask.py"])
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SystemExit) as end:
        port = taken.getsockname()[1]
        verb.tunnel(["python3", "ask.py"], port=port)
    assert end.value.code == 2
    assert capsys.readouterr().err.splitlines() == [
        f"error: cannot listen on 127.0.0.1:{port}: Address already in use",
        "fix: vcluster tunnel --port 0 -- python3 ask.py",
        f"fix: ss -ltnp 'sport = :{port}' shows which program listens there",
    ]
