"""A host of a pull that has the key and lies: the others get their files all the same."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.spread import KEY, of_host, plan_of, random_files
from vllm_cluster.kernel.spread import spread
from vllm_cluster.kernel.spread.spread_order import Chain
from vllm_cluster.kernel.spread.spread_wire import BadPeerError, Peer, Reader
from vllm_cluster.kernel.spread.store import Store
from vllm_cluster.wire.pull import HostPlan, SpreadAsk
from vllm_cluster.wire.reading import read
from vllm_cluster.wire.signature import sign

Lie = Callable[[Callable[[str, bytes], None], SpreadAsk, socket.socket], None]


def has_none(answer: Callable[[str, bytes], None], ask: SpreadAsk, connection: socket.socket) -> None:
    answer("none", b"")


def is_busy(answer: Callable[[str, bytes], None], ask: SpreadAsk, connection: socket.socket) -> None:
    answer("busy", b"")


def breaks_off(answer: Callable[[str, bytes], None], ask: SpreadAsk, connection: socket.socket) -> None:
    answer("ok", b"%d-%d" % (ask.start, 300_000))
    connection.close()


def drips(answer: Callable[[str, bytes], None], ask: SpreadAsk, connection: socket.socket) -> None:
    answer("ok", b"%d-%d" % (ask.start, 300_000))
    while True:
        connection.sendall(b"x")
        time.sleep(0.2)


@contextmanager
def liar(plan: HostPlan, lie: Lie) -> Iterator[None]:
    """The second host of a plan: it reports that it is whole, and lies about each file."""

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            reader = Reader(connection)
            while line := reader.line(60):
                ask = read(SpreadAsk, line, "", 1 << 20)

                def answer(status: str, body: bytes, nonce: str = ask.nonce) -> None:
                    proof = sign(KEY, "answer", nonce, status, body)
                    connection.sendall(f"{status} {proof} {len(body)}\n".encode() + body)

                if ask.what == "have":
                    answer("ok", json.dumps({"files": [file.size + 1 for file in plan.files]}).encode())
                else:
                    lie(answer, ask, connection)

    def listen(server: socket.socket) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()

    # Before any other host reports: it is next to the source.
    peer = Peer(of_host(plan, "h1"), plan.hosts[0])
    peer.report(plan.total, "")

    def report() -> None:
        while not over.wait(0.2):
            with suppress(OSError):
                peer.report(plan.total, "")

    over = threading.Event()
    with socket.create_server((plan.hosts[1].address, plan.hosts[1].port)) as server:
        threading.Thread(target=listen, args=(server,), daemon=True).start()
        thread = threading.Thread(target=report, daemon=True)
        thread.start()
        yield
        over.set()
        thread.join(10)
        peer.close()
        server.shutdown(socket.SHUT_RDWR)


# fault: kernel/spread/spread.py: if wanted() and arriving.bytes == before < has: → if False:
# fault: kernel/spread/spread.py: if arriving.bytes - before < min(PACE_BYTES, has - before): → if False:
# fault: kernel/spread/spread.py: if time.monotonic() - self._moved > PACE_SECONDS: → if False:
# fault: kernel/spread/spread.py:                 arriving.restart() →                 pass
@pytest.mark.parametrize("lie", [has_none, is_busy, breaks_off, drips])
def test_a_host_that_gives_less_than_it_has_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: Lie) -> None:
    """The one behind it waited 15 min at full load, or, where a byte came now and then, without end."""
    monkeypatch.setattr(spread, "PACE_SECONDS", 1.0)
    monkeypatch.setattr("random.shuffle", lambda names: names.reverse())
    plan = plan_of(3, random_files(tmp_path / "h0", 2, 300_000), tmp_path)
    source = spread.serve(plan, Store(plan))
    with liar(plan, lie):
        own = of_host(plan, "h2")
        server = spread.serve(own, Store(own))
        steering = spread.Steering(own, spread.Receiver(own, server.store), lambda progress: None)
        thread = threading.Thread(target=steering.run, daemon=True)
        thread.start()
        thread.join(15)
        steering.close()
        server.close()
    assert all(map(server.store.complete, plan.files))
    source.close()


# fault: kernel/spread/spread_serve.py: for host in server.plan.hosts if _plain(host.address) == there} → for host in server.plan.hosts}
def test_no_host_speaks_for_another(tmp_path: Path) -> None:
    """All have the key; one that reports all others as complete has the source end."""
    plan = plan_of(3, random_files(tmp_path / "h0", 1, 1000), tmp_path)
    hosts = tuple(replace(host, address=f"127.0.0.{n}") for n, host in enumerate(plan.hosts, 1))
    plan = replace(plan, hosts=hosts)
    source, peer = spread.serve(plan, Store(plan)), Peer(of_host(plan, "h2"), hosts[0])
    with closing(source), closing(peer):
        assert peer.report(10, "").upstream == "h0"
        peer.close()
        peer._here = (hosts[1].address, 0)
        with pytest.raises(BadPeerError, match="refuses"):
            peer.report(plan.total, "")


# fault: kernel/spread/spread_order.py: was_here = now - host.reported → was_here = host.present and now - host.reported
def test_who_is_accused_can_accuse(tmp_path: Path) -> None:
    """One that accused another more often than that one reports kept it behind itself."""
    chain, now = Chain(["h0", "h1", "h2"], 1000), 100.0
    chain.report("h1", 1000, now)
    chain.report("h2", 0, now)
    for step in range(1, 10):
        now += 0.25
        chain.report("h1", 1000, now, failed="h2")
        upstream = chain.report("h2", 0, now + 0.1, failed="h1" if step == 1 else "")
    assert upstream == "h0"
