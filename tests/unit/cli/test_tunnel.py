"""`vcluster endpoint --tunnel`: its port, its end, and a port in use."""

from __future__ import annotations

import socket
import sys

import pytest

from tests.support.sim import make
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.terminal.session import Session
from vllm_cluster.kernel.transport.forward import listener
from vllm_cluster.serving.endpoint import open as tunnels
from vllm_cluster.serving.endpoint import tunnel as action
from vllm_cluster.serving.endpoint.verb import endpoint


# fault: serving/endpoint/open.py: if not opened: → if opened:
@pytest.mark.parametrize("opened", [True, False])
def test_ctrl_c_is_the_end_of_an_open_tunnel_alone(
    opened: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_inventory: object, emit: Emit, *, port: int) -> None:
        if opened:
            emit(Event("result", f"http://127.0.0.1:{port} forwards to gpu1 until Ctrl-C"))
        raise KeyboardInterrupt

    monkeypatch.setattr(action, "tunnel", interrupted)
    monkeypatch.setattr(Session, "load", lambda _: make.inventory(2))
    code: object = 0
    try:
        endpoint(tunnel="0")
    except SystemExit as end:
        code = end.code
    assert code == (0 if opened else 130)
    assert ("until Ctrl-C" in capsys.readouterr().err) is opened


# fault: serving/endpoint/open.py: port=inventory.ports.api if port is None else port → port=port or 0
def test_without_a_port_it_is_the_one_that_serve_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = []
    monkeypatch.setattr(action, "tunnel", lambda *_, port: ports.append(port))
    inventory = make.inventory(2)
    tunnels.hold(Session(None, as_json=False), inventory, None)
    tunnels.hold(Session(None, as_json=False), inventory, 0)
    assert ports == [inventory.ports.api, 0]


def test_a_port_in_use_comes_with_another(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(_inventory: object, _emit: object, *, port: int) -> None:
        listener(port)

    monkeypatch.setattr(action, "tunnel", refused)
    monkeypatch.setattr(Session, "load", lambda _: make.inventory(2))
    monkeypatch.setattr(sys, "argv", ["vcluster", "endpoint", "--tunnel"])
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SystemExit) as end:
        port = taken.getsockname()[1]
        endpoint(tunnel=str(port))
    assert end.value.code == 2
    assert capsys.readouterr().err.splitlines() == [
        f"error: cannot listen on 127.0.0.1:{port}: Address already in use",
        "fix: vcluster endpoint --tunnel 0",
        f"fix: ss -ltnp 'sport = :{port}' shows which program listens there",
    ]
