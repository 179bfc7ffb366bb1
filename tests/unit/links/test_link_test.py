"""Hosts visit each other for real: a process each, on this machine's loopback addresses."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support import world
from tests.support.depth import cases
from vllm_cluster.kernel.events import Event
from vllm_cluster.kernel.facts.host_facts import DockerFacts, HostFacts
from vllm_cluster.kernel.hosts.connection import Fleet
from vllm_cluster.kernel.hosts.on_host.bounded import HUNG_UP
from vllm_cluster.kernel.hosts.program import python
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.links.measure import run_link_test

NO_DOCKER = DockerFacts(problem="docker: not found")


def cluster(count: int) -> tuple[Inventory, dict[str, HostFacts]]:
    """Hosts that are this machine, each at an address of its own, on which their own Python runs the probe."""
    # Of this run alone, so that two runs side by side do not meet.
    net = f"127.{100 + os.getpid() % 100}.{os.getpid() // 100 % 250}"
    names = [f"gpu{n}" for n in range(1, count + 1)]
    words = world.inventory(count, entries={name: {"ssh": "local"} for name in names})
    # An inventory itself lets no loopback address in.
    moved = {name: words.hosts[name].model_copy(update={"address": f"{net}.{n}"}) for n, name in enumerate(names, 1)}
    facts = {name: world.host(n, docker=NO_DOCKER, nics=()) for n, name in enumerate(names, 1)}
    return words.model_copy(update={"hosts": moved}), facts


@pytest.fixture(autouse=True)
def this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hosts' python3 is the one that runs the tests."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)


def visit(inventory: Inventory, facts: dict[str, HostFacts]) -> tuple[list[str], list[Event]]:
    """The findings in short, and what was shown meanwhile."""
    events: list[Event] = []
    with Fleet(inventory) as fleet:
        found, unseen = run_link_test(fleet, inventory, facts, events.append)
    # On loopback the kernel sends from 127.0.0.1 whichever of its addresses is meant.
    told = [each for each in found if each.code != "link-source-address" or "127.0.0.1" not in each.message]
    blind = [f"unseen {each.host} {each.reason}" for each in unseen]
    return [*(f"{each.code} {each.host} {each.message}" for each in told), *blind], events


def test_a_lone_host_has_no_links() -> None:
    inventory, facts = cluster(1)
    assert visit(inventory, facts) == ([], [])


@pytest.mark.alone
def test_many_hosts_see_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    """All of them on this one machine: 992 links on 11 ports and more each, hence far slower than hosts are."""
    hosts = cases(16, 16, 32)
    inventory, facts = cluster(hosts)
    began = time.monotonic()
    found, events = visit(inventory, facts)
    assert found == []
    assert events[-1].data["links"] == hosts * (hosts - 1)
    with capsys.disabled():
        sys.stdout.write(f"[{hosts} hosts on {os.cpu_count()} cores: {time.monotonic() - began:.1f} s]")


@contextmanager
def listener(address: str, port: int, says: bytes | None) -> Iterator[None]:
    """Another program on a port, which answers every connection alike, or not at all."""
    with socket.create_server((address, port)) as server:

        def serve() -> None:
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                with peer:
                    # Closing with something unread would reset the connection.
                    peer.recv(100)
                    if says is not None:
                        peer.sendall(says)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)


# fault: kernel/links/on_host/link_test.py: for name, peer in everyone.items() if name != probe.me → for name, peer in everyone.items()
def test_a_port_on_which_something_listens_already_is_connected_to() -> None:
    inventory, facts = cluster(2)
    with listener(inventory.hosts["gpu2"].address, inventory.ports.node_manager, None):
        assert visit(inventory, facts)[0] == []


def test_a_host_whose_address_is_not_its_own_is_listed_as_not_checked() -> None:
    inventory, facts = cluster(3)
    moved = inventory.hosts["gpu3"].model_copy(update={"address": "192.0.2.1"})
    inventory = inventory.model_copy(update={"hosts": {**inventory.hosts, "gpu3": moved}})
    (found,) = visit(inventory, facts)[0]
    assert found.startswith("unseen gpu3")
    assert "cannot listen on 192.0.2.1" in found


def test_a_host_with_neither_image_nor_python_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(tmp_path))
    inventory, facts = cluster(2)
    found = visit(inventory, facts)[0]
    assert [line.split()[:2] for line in found] == [["unseen", "gpu1"], ["unseen", "gpu2"]]
    assert "no python3" in found[0]


@pytest.mark.parametrize(
    "says",
    [
        '{"open": [], "taken": [], "chosen": [1, 2], "udp": 3}',
        '{"open": [6379], "taken": "6380", "chosen": {}, "udp": 3}',
        '{"open": [1, 2, 3, 4, 5, 6, 7, 8, 9], "taken": [], "chosen": [70000, 2], "udp": 3}',
        '{"open": [1, 2, 3, 4, 5, 6, 7, 8, 9], "taken": [], "chosen": [1, 2], "udp": "3"}',
        "{}",
        '{"error": ["\\u001b[2J"]}',
    ],
)
def test_invalid_output_of_a_host_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: str) -> None:
    (tmp_path / "python3").write_text(f"#!/bin/sh\necho '{says}'\nwhile read -r line; do :; done\n")
    (tmp_path / "python3").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    found = visit(*cluster(2))[0]
    assert [line.split()[:2] for line in found] == [["unseen", "gpu1"], ["unseen", "gpu2"]]


class Probe:
    """One probe, talked to by hand."""

    def __init__(self, name: str, address: str, run: str = "word") -> None:
        argv = [sys.executable, *python("kernel.links.on_host", "link_test", seconds=180).argv[1:]]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.send({"me": name, "address": address, "run": run, "ports": [], "more": 2})
        self.ports = self.update()
        self.address = address

    def send(self, row: dict[str, Any]) -> None:
        """One line in."""
        assert self.process.stdin
        self.process.stdin.write(json.dumps(row) + "\n")
        self.process.stdin.flush()

    def update(self) -> Any:
        """One line out."""
        assert self.process.stdout
        return json.loads(self.process.stdout.readline())

    def peer(self, **changes: Any) -> dict[str, Any]:
        """How it is shown to others."""
        return {"address": self.address, **self.ports, **changes}

    def end(self) -> int:
        """Close its input; its exit code."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.stdout.close()
        return self.process.wait(5)


@pytest.fixture
def two() -> Iterator[tuple[Probe, Probe]]:
    """Two probes that have opened their ports."""
    probes = Probe("one", "127.0.0.1"), Probe("two", "127.0.0.2")
    yield probes
    for probe in probes:
        assert probe.end() in (0, HUNG_UP)


def test_a_probe_ends_with_its_input(two: tuple[Probe, Probe]) -> None:
    """Also in the middle of a visit that takes its time."""
    third = Probe("three", "127.0.0.3")
    third.send({"one": two[0].peer(address="192.0.2.1")})
    began = time.monotonic()
    assert third.end() in (0, HUNG_UP)
    assert time.monotonic() - began < 2


@pytest.mark.parametrize(("says", "word"), [(b"HTTP/1.1 400 Bad Request\r\n\r\n", "foreign"), (None, "mute")])
def test_another_program_is_not_taken_for_the_peer(two: tuple[Probe, Probe], says: bytes | None, word: str) -> None:
    with listener("127.0.0.9", 17777, says):
        two[0].send({"two": two[1].peer(open=[17777], chosen=[], taken=[], address="127.0.0.9")})
        assert two[0].update()["bad"] == {"17777": word}


# fault: kernel/links/on_host/link_test.py: if (run, who) == (self.run, name) else ("foreign", "") →
def test_a_peer_of_another_name_is_not_taken_for_the_right_one(two: tuple[Probe, Probe]) -> None:
    two[0].send({"three": two[1].peer()})
    assert set(two[0].update()["bad"].values()) == {"foreign"}


def test_a_closed_port_is_refused_and_the_open_one_seen(two: tuple[Probe, Probe]) -> None:
    two[0].send({"two": two[1].peer(open=[9])})
    row = two[0].update()
    assert row["bad"] == {"9": "refused"}
    # An address of its own is not bound to: the kernel chooses where it comes from.
    assert (row["seen"], row["block"], row["passes"]) == ("127.0.0.1", "ok", row["mtu"])


# fault: kernel/links/on_host/link_test.py: if run == self.run: → if run:
def test_unknown_peers_get_no_answer(two: tuple[Probe, Probe]) -> None:
    port = two[0].ports["chosen"][0]
    for words in (b"other 0\n", b"word\n", b"x" * 5000 + b"\n"):
        with socket.create_connection(("127.0.0.1", port), 5) as stranger:
            stranger.sendall(words)
            with suppress(ConnectionResetError):
                assert stranger.recv(100) == b""


@contextmanager
def answering(size: bytes) -> Iterator[int]:
    """A peer's port for datagrams, which gives each packet the same size."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind(("127.0.0.2", 0))
        udp.settimeout(30)

        def serve() -> None:
            with suppress(OSError):
                while True:
                    data, sender = udp.recvfrom(65535)
                    if data == b"end":
                        return
                    udp.sendto(b"word " + size, sender)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield udp.getsockname()[1]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ender:
            ender.sendto(b"end", udp.getsockname())
        thread.join(5)


# fault: kernel/links/on_host/link_test.py: sent.get(size, 0) if → int(size) + headers if
@pytest.mark.parametrize("size", [b"40", b"-27", b"9" * 100])
def test_a_peer_s_word_of_a_size_that_was_not_sent_does_not_count(two: tuple[Probe, Probe], size: bytes) -> None:
    """The row is this host's own, and its remedy too: the peer would choose the MTU, or have the row refused."""
    with answering(size) as udp:
        two[0].send({"two": two[1].peer(udp=udp)})
        row = two[0].update()
    assert (row["block"], row["passes"]) == ("ok", None)
