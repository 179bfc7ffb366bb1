"""What listens is in one table, from which SECURITY.md is made: no place that listens is left out of it."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from tests.support.modules import MODULES, PACKAGE, SANDBOX, nodes, room
from tools import security
from vllm_cluster.cli.verbs import VERBS
from vllm_cluster.kernel.backends import ray
from vllm_cluster.kernel.inventory.model import Ports
from vllm_cluster.kernel.listeners import LISTENERS, LOOPBACK

# Calls and bases by which a program listens, and what looks like one and does not.
LISTENS = {"bind", "listen", "create_server", "start_server", "create_datagram_endpoint", "TCPStore"}
SERVERS = {"HTTPServer", "ThreadingHTTPServer", "TCPServer", "ThreadingTCPServer", "UDPServer"}
OTHERS = {
    "serving/node/request_check.py": "a socket in a folder of the node",
    "kernel/transport/fabric/dial.py": "BindAddress of ssh_config: where a connection comes from",
}


def listening() -> set[str]:
    """The files that bind an address, or have a server of the standard library."""
    found = set()
    for path in MODULES:
        if path.is_relative_to(SANDBOX):
            continue
        for node in nodes(path):
            called = isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in LISTENS | SERVERS
            derived = isinstance(node, ast.ClassDef) and any(ast.unparse(base) in SERVERS for base in node.bases)
            if called or derived:
                found.add(room(path))
    return found - set(OTHERS)


@pytest.mark.spans
def test_every_place_that_listens_is_in_the_table() -> None:
    named = {file for one in LISTENERS for file in one.files}
    assert listening() <= named
    assert [file for file in named if not (PACKAGE / file).exists()] == []
    # The rest is started: by a command line with ports, or by ranks that choose them.
    assert named - listening() == {
        *("serving/serve/serve.py", "kernel/backends/mp.py", "kernel/backends/ray.py", "kernel/backends/vllm.py")
    }


# fault: kernel/listeners.py: ("client_server",), → (CHOSEN,),
def test_every_port_of_the_inventory_is_in_one_row() -> None:
    counted = Counter(port for one in LISTENERS for port in one.ports if port in Ports.model_fields)
    assert counted == Counter(Ports.model_fields.keys())


@pytest.mark.spans
def test_the_verbs_are_verbs() -> None:
    assert {verb.split()[0] for one in LISTENERS for verb in one.verbs} <= set(VERBS)


# fault: kernel/backends/ray.py: f"--dashboard-agent-grpc-port={ports.dashboard_agent_grpc}" → f"--dashboard-agent-grpc-port=9"
def test_ray_is_started_on_the_ports_and_addresses_of_the_table() -> None:
    argv = ray.start_argv("head", address="10.0.0.1", head_address="10.0.0.1", gpus=1, ports=Ports())
    given = {word.rpartition("=")[2] for word in argv if "port" in word}
    rows = [one for one in LISTENERS if one.files == ("kernel/backends/ray.py",)]
    named = {str(getattr(Ports(), port)) for one in rows for port in one.ports}
    assert given == named
    assert f"--dashboard-host={LOOPBACK}" in argv
    assert "--node-ip-address=10.0.0.1" in argv


def test_what_listens_on_this_machine_is_reached_from_it_alone() -> None:
    assert {one.address for one in LISTENERS if one.on == "this machine"} == {LOOPBACK}


def test_the_page_has_a_row_for_each() -> None:
    page = security.page()
    assert page.count(security.BEGIN) == page.count(security.END) == 1
    assert [one.what for one in LISTENERS if f"| {one.what} |" not in page] == []
