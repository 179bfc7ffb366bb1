"""A host of a pull that has the key and lies: the others get their files all the same."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.spread import KEY, GrowingStore, of_host, partial_of, plan_of, planned, random_files
from tests.support.waiting import until
from vllm_cluster.kernel.spread import spread
from vllm_cluster.kernel.spread.spread_arriving import Arriving
from vllm_cluster.kernel.spread.spread_order import Chain
from vllm_cluster.kernel.spread.spread_wire import BadPeerError, Busy, FileBody, Peer, Reader
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
@pytest.mark.parametrize("lie", [has_none, is_busy, breaks_off, drips])
def test_a_host_that_gives_less_than_it_has_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: Lie) -> None:
    """The one behind it waited 15 min at full load, or, where a byte came now and then, without end."""
    monkeypatch.setattr(spread, "PACE_SECONDS", 1.0)
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


# fault: kernel/spread/spread.py: if name in self._avoid: → if False:
# fault: kernel/spread/spread.py: self._avoid.add(culprit) → raise PullError(arriving.wrong)
def test_a_host_that_sends_other_bytes_is_left_while_the_source_downloads(tmp_path: Path) -> None:
    """The source has none of the files whole yet: the others asked the same host three times, and ended."""
    receivers: dict[str, spread.Receiver] = {}
    late: Counter[tuple[str, int]] = Counter()

    def other_bytes(answer: Callable[[str, bytes], None], ask: SpreadAsk, connection: socket.socket) -> None:
        late[ask.me, ask.file] += "h1" in receivers[ask.me]._avoid
        answer("ok", b"%d-%d" % (ask.start, 300_000))
        connection.sendall(bytes(300_000 - ask.start))

    plan = plan_of(4, random_files(tmp_path / "h0", 6, 300_000), tmp_path)
    store = GrowingStore(plan)
    store.arrived = 100_000
    errors: set[str] = set()
    with ExitStack() as stack:
        stack.enter_context(closing(spread.serve(plan, store)))
        stack.enter_context(liar(plan, other_bytes))
        stores = []
        for own in (of_host(plan, "h2"), of_host(plan, "h3")):
            stores.append(Store(own))
            stack.enter_context(closing(spread.serve(own, stores[-1])))
            receiver = receivers[own.me] = spread.Receiver(own, stores[-1])
            steering = stack.enter_context(
                closing(spread.Steering(own, receiver, lambda progress: errors.add(progress.error)))
            )
            threading.Thread(target=steering.run, daemon=True).start()
        until(lambda: late, seconds=20)
        # Several looks for another host that has a file.
        time.sleep(4 * spread.LOOK_SECONDS)
        store.arrived = 300_000
        until(lambda: all(there.complete(file) for there in stores for file in plan.files), seconds=20)
    # Each thread may be about to ask while another one finds the first file wrong.
    assert all(sum(late[me, file] for file in range(6)) <= spread.STREAMS for me in receivers)
    assert any(error.endswith("wrong hash (from h1)") for error in errors)
    assert not any("(from h2)" in error or "(from h3)" in error for error in errors)


# fault: kernel/spread/spread.py: self.failed = upstream → pass
def test_who_was_found_wrong_is_refused_where_it_is_named_again(tmp_path: Path) -> None:
    """The source forgets who could not be used after a while."""
    own = of_host(plan_of(3, random_files(tmp_path / "h0", 1, 1000), tmp_path), "h2")
    with closing(spread.Receiver(own, Store(own))) as receiver:
        receiver._avoid.add("h1")
        receiver.use("h1")
        receiver.start()
        until(lambda: receiver.failed == "h1", seconds=20)


# fault: kernel/spread/spread.py: if arriving.senders & self._avoid: → if False:
def test_what_a_host_sent_before_it_was_found_wrong_is_dropped(tmp_path: Path) -> None:
    """Else the rest of the file would come for nothing."""
    plan = plan_of(3, random_files(tmp_path / "h0", 1, 300_000), tmp_path)
    own = of_host(plan, "h2")
    store = Store(own)
    partial_of(store, plan.files[0]).write_bytes(bytes(1000))
    receiver = spread.Receiver(own, store)
    receiver._left[0].senders.add("h1")
    receiver._avoid.add("h1")
    with closing(spread.serve(plan, Store(plan))), closing(receiver):
        receiver.use("h0")
        receiver.start()
        until(lambda: receiver.whole, seconds=20)
    assert receiver.error == ""


# fault: kernel/spread/spread.py: self.failed = self.upstream → pass
# fault: kernel/spread/spread.py: for name in (self._source, *others): → for name in (*others, self._source):
def test_who_forwarded_a_wrong_file_is_left_without_being_accused(tmp_path: Path) -> None:
    """It may be the one who made it up: it then called the file verified, and sent it so slowly that it had no end."""
    plan = plan_of(4, [planned("a", b"right!")], tmp_path)
    own = of_host(plan, "h2")
    receiver = spread.Receiver(own, Store(own))
    receiver.use("h1")
    arriving, asked = receiver._left[0], list[str]()
    here, there = socket.socketpair()
    with here, there:
        there.sendall(b"wrong!")
        peer: Any = SimpleNamespace(name="h1", known=(6,), file=lambda *_: FileBody(Reader(here), 6))
        receiver._fetch(peer, arriving, lambda: True)
    assert (receiver.failed, receiver.error, receiver._avoid) == ("h1", "a: wrong hash (by way of h1)", set())

    def connected(name: str) -> None:
        asked.append(name)
        raise Busy

    receiver._connected = connected  # type: ignore[method-assign,assignment]
    receiver._get_elsewhere(arriving)
    assert asked[0] == "h0"
    assert {*asked} == {"h0", "h1", "h3"}


# fault: kernel/spread/spread.py: self._for(arriving.term if name != self._source else math.inf) → self._for(math.inf)
# fault: kernel/spread/spread.py: arriving.term *= 2 → pass
# fault: kernel/spread/spread.py: if arriving.senders - {name}: → if False:
def test_a_wrong_file_is_not_waited_for_from_one_that_gives_it_slowly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source had it by then, and was not asked before the other was through."""
    monkeypatch.setattr(spread, "LOOK_SECONDS", 0.01)
    plan = plan_of(3, random_files(tmp_path / "h0", 1, 300_000), tmp_path)
    own, store = of_host(plan, "h2"), GrowingStore(plan)

    def slow(answer: Callable[[str, bytes], None], ask: SpreadAsk, connection: socket.socket) -> None:
        answer("ok", b"%d-%d" % (ask.start, 300_000))
        while True:
            connection.sendall(bytes(1000))
            time.sleep(0.02)  # the attack itself

    with closing(spread.serve(plan, store)), liar(plan, slow):
        receiver = spread.Receiver(own, Store(own))
        arriving = receiver._left[0]
        arriving.wrong, arriving.term = "before", 0.5
        receiver._get_elsewhere(arriving)
        assert (receiver.whole, arriving.wrong, arriving.term) == (False, "before", 1.0)
        store.arrived = 300_000
        receiver._get_elsewhere(arriving)
        assert receiver.whole


# fault: kernel/spread/spread_arriving.py: self._verified &= verified → pass
# fault: kernel/spread/spread_arriving.py: self._verified and len(self.senders) == 1 → self.senders
@pytest.mark.parametrize(
    ("senders", "culprit", "words"),
    [
        ([("h1", True)], "h1", "from h1"),
        ([("h1", False)], "", "by way of h1"),
        ([("h1", False), ("h1", True)], "", "by way of h1"),
        ([("h1", True), ("h2", True)], "", "by way of h1, h2"),
    ],
)
def test_only_who_had_it_verified_is_accused(
    tmp_path: Path, senders: list[tuple[str, bool]], culprit: str, words: str
) -> None:
    """Who forwards a file while it arrives cannot know: the wrong bytes may be of any host before it."""
    plan = plan_of(3, [planned("a", b"right!")], tmp_path)
    store = Store(plan)
    arriving = Arriving(store, partial_of(store, plan.files[0]), [(0, plan.files[0])])
    arriving.resume()
    for name, verified in senders:
        here, there = socket.socketpair()
        with here, there:
            there.sendall(bytes(6 // len(senders)))
            body = FileBody(Reader(here), 6 // len(senders))
            arriving.append(body, name, lambda: True, verified=verified)
    assert arriving.culprit() == culprit
    assert not arriving.finish()
    assert arriving.wrong == f"a: wrong hash ({words})"


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
    """What it could not get from was named to it again, while a third host could not get from it."""
    chain, now = Chain(["h0", "h1", "h2", "h3"], 1000), 100.0
    assert [chain.report(name, 1000 if name == "h1" else 0, now) for name in ("h1", "h2", "h3")] == ["h0", "h1", "h2"]
    chain.report("h3", 0, now, failed="h2")
    assert chain.report("h2", 0, now, failed="h1") == "h3"
    while now < 103.0:  # the third is gone
        now += 0.5
        chain.report("h1", 1000, now)
        upstream = chain.report("h2", 0, now)
    assert upstream == "h0"
