"""`vcluster endpoint --tunnel`: its port, its end, and a port in use."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from tests.support.clock import Clock
from tests.support.inventories import load
from tests.support.sim import make
from vllm_cluster.kernel.errors import VclusterError
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.inventory.load import load_text
from vllm_cluster.kernel.terminal.session import Session
from vllm_cluster.kernel.transport.forward import listener
from vllm_cluster.serving.endpoint import open as tunnels
from vllm_cluster.serving.endpoint import tunnel as action
from vllm_cluster.serving.endpoint.verb import _of_tunnel, endpoint


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


# fault: serving/endpoint/open.py: > GONE_SECONDS → < 0
# fault: serving/endpoint/open.py: last = load_text( → load_text(
def test_a_tunnel_sees_the_inventory_and_that_it_is_gone(tmp_path: Path) -> None:
    path, clock = tmp_path / "inventory.yaml", Clock()
    hosts = "hosts: {gpu1: {address: 10.0.0.1}, gpu2: {address: 10.0.0.2}}"
    words = f"{{version: 1, cluster: lab, image: i, model_cache: /m, {hosts}"
    path.write_text(f"{words}}}")
    latest = tunnels._latest(load_text(path.read_bytes(), path=path, cwd=None), clock)
    path.write_text(f"{words}, head: gpu2}}")
    assert latest(300).head_name == "gpu2"
    path.write_text("{")
    assert latest(300).head_name == "gpu2", "as it was last, while it is being written"
    path.unlink()
    clock.now += 1000
    assert latest(300).head_name == "gpu2", "for a moment"
    clock.now += tunnels.GONE_SECONDS + 1
    with pytest.raises(VclusterError, match=r"inventory\.yaml is gone"):
        latest(300)


# fault: serving/endpoint/open.py: if path and not inventory.found else None → if path else None
# fault: serving/endpoint/open.py: path=path, cwd=None, found=inventory.found) → path=path, cwd=None)
# fault: serving/endpoint/render.py: *(["--found"] if inventory.found else []) → *[]
def test_a_tunnel_takes_no_inventory_that_another_user_put_there(tmp_path: Path) -> None:
    """Where they may change its folder, the one that was found became theirs, and ran their commands."""
    path, group = tmp_path / "group" / "inventory.yaml", tmp_path / "group"
    group.mkdir()
    words = "version: 1\ncluster: lab\nimage: i\nmodel_cache: /m\n"
    words += "hosts: {gpu1: {address: 10.0.0.1}, gpu2: {address: 10.0.0.2}}\n"
    path.write_text(words)
    group.chmod(0o777)
    latest = tunnels._latest(load(None, cwd=group), Clock())
    for theirs in ("head: gpu2\nssh: {config: ssh_config}\n", "head: gpu2\n"):
        path.write_text(f"{words}{theirs}")
        path.chmod(0o666 if "ssh" not in theirs else 0o644)
        assert latest(300).head_name == "gpu1"
    path.chmod(0o644)
    assert latest(300).head_name == "gpu2"
    assert [_of_tunnel(load(name, cwd=group))[2:] for name in (None, path)] == [["--found"], []]


# fault: serving/endpoint/open.py: if raw != read or clock.monotonic() - at >= age: → if True:
# fault: serving/endpoint/open.py: clock.monotonic() - at >= age → False
# fault: serving/endpoint/open.py: raw != read or clock → clock
@pytest.mark.parametrize("works", [True, False])
def test_a_tunnel_runs_the_command_of_its_hosts_now_and_then(works: bool, tmp_path: Path) -> None:
    """It ran at each look, every two seconds."""
    path, runs, clock = tmp_path / "inventory.yaml", tmp_path / "runs", Clock()
    (tmp_path / "hosts.json").write_text('{"gpu1": {"address": "10.0.0.1"}}')
    words = "version: 1\ncluster: lab\nimage: i\nmodel_cache: /m\n"
    path.write_text(f"{words}hosts_from: command:sh -c 'echo >> runs; cat hosts.json'\n")
    inventory = load_text(path.read_bytes(), path=path, cwd=None)
    if not works:
        (tmp_path / "hosts.json").unlink()

    def run(age: float) -> int:
        latest(age)
        return len(runs.read_text())

    latest = tunnels._latest(inventory, clock)
    first = run(300)
    for _ in range(100):
        clock.now += 2
        assert run(300) == first
    assert run(30) == first + 1, "once the connection broke"
    assert run(30) == first + 1
    clock.now += 300
    assert run(300) == first + 2
    path.write_text(f"{path.read_text()}head: gpu1\n")
    assert run(300) == first + 3, "what is written in the file counts at once"
