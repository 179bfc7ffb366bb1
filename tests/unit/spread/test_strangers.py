"""Who is not of a pull, on its network: he is not listened to, and what he answers is not believed."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import pytest

from tests.support import waiting
from tests.support.spread import of_host, plan_of, random_files
from vllm_cluster.kernel.spread import spread, spread_serve
from vllm_cluster.kernel.spread.spread_wire import BadPeerError, Peer, proof_of
from vllm_cluster.kernel.spread.store import Store
from vllm_cluster.wire.pull import HostPlan, SpreadAsk

MB = 1 << 20
LIMIT = 60.0
until = partial(waiting.until, seconds=LIMIT, every=0.01)


@pytest.fixture
def unserved(tmp_path: Path) -> HostPlan:
    """The plan of two hosts, of which the source has the file."""
    return plan_of(2, random_files(tmp_path / "h0", 1, MB), tmp_path)


@pytest.fixture
def plan(unserved: HostPlan) -> Iterator[HostPlan]:
    """The same, and the source serves it."""
    server = spread.serve(unserved, Store(unserved))
    yield unserved
    server.close()


@contextmanager
def connected(plan: HostPlan, address: str = "127.0.0.1") -> Iterator[socket.socket]:
    """A connection to the source from an address of this machine."""
    there = (plan.hosts[0].address, plan.hosts[0].port)
    with socket.create_connection(there, LIMIT, (address, 0)) as connection:
        yield connection


def ended(connection: socket.socket) -> bool:
    """Whether the other end has closed it, and sent nothing."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


ASK = SpreadAsk("have", "h1", "12" * 16, "")


# fault: kernel/spread/spread_serve.py: and server.first_use(ask.nonce) →
def test_a_request_is_answered_once(plan: HostPlan) -> None:
    """Who overhears it cannot send it again."""
    request = json.dumps(asdict(replace(ASK, proof=proof_of(plan.key, ASK)))).encode() + b"\n"
    with connected(plan) as connection:
        answers = connection.makefile("rb")
        connection.sendall(request)
        status, _, length = answers.readline().split()
        assert status == b"ok" and json.loads(answers.read(int(length))) == {"files": [MB + 1]}
        connection.sendall(request)
        assert answers.read() == b"refused - 0\n"
        answers.close()


# fault: kernel/spread/spread_serve.py: if free := self._room[address] > 0: → if free := True:
def test_a_stranger_on_the_network_is_not_listened_to(plan: HostPlan) -> None:
    """Hundreds of connections of an address that is not in the plan cost no thread, and hold up no host."""
    threads = threading.active_count()
    own = of_host(plan, "h1")
    with ExitStack() as held:
        many = [held.enter_context(connected(plan, "127.0.0.99")) for _ in range(300)]
        spread.receive(own, Store(own), lambda _: None).close()
        for one in many:
            one.settimeout(spread_serve.IDLE_SECONDS / 2)
        assert all(ended(one) for one in many)
        assert threading.active_count() < threads + 50
    assert all(map(Store(own).complete, own.files))


# fault: kernel/spread/spread_serve.py: for _ in range(MAX_OF_HOST)) → for _ in range(999))
def test_an_address_of_the_plan_has_so_many_connections(plan: HostPlan) -> None:
    """Here both hosts have one address."""
    most = 2 * spread_serve.MAX_OF_HOST
    with ExitStack() as held:
        many = [held.enter_context(connected(plan)) for _ in range(most + 5)]
        for one in many[most:]:
            # Sooner than one that is let in and idle.
            one.settimeout(spread_serve.IDLE_SECONDS / 2)
        assert all(ended(one) for one in many[most:])
        many[0].close()

        def free() -> bool:
            with connected(plan) as one:
                one.settimeout(0.2)
                with suppress(TimeoutError):
                    return not ended(one)
                return True

        until(free)


# fault: kernel/spread/spread_wire.py: if (left := until - time.monotonic()) <= 0: → if (left := 5) <= 0:
def test_a_request_that_comes_byte_by_byte_is_not_waited_for(plan: HostPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spread_serve, "IDLE_SECONDS", 0.5)
    with connected(plan) as connection:
        connection.settimeout(0.05)
        for _ in range(100):
            try:
                connection.sendall(b"x")
                if connection.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            pytest.fail("it was read for 5 s")


@pytest.mark.parametrize(
    "line", [b"x" * (64 << 10), b"GET / HTTP/1.1", b"[" * 9000, b'{"what": "have"}', b"\xff", b"{}"]
)
def test_a_line_that_is_not_a_request_ends_the_connection(plan: HostPlan, line: bytes) -> None:
    with connected(plan) as connection:
        with suppress(ConnectionError):
            connection.sendall(line + b"\n")
        assert ended(connection)


@pytest.mark.parametrize(
    "answer",
    [b"ok x 99999999\n", b"ok x -1\n", b"ok x 5\nabc", b"ok\n", b"x" * (1 << 20), b"\n", b"HTTP/1.1 200 OK\r\n\r\n"],
)
def test_whoever_answers_in_place_of_a_host_is_left(unserved: HostPlan, answer: bytes) -> None:
    """He has the port of a host of the plan, and not its key."""
    with socket.create_server((unserved.hosts[0].address, unserved.hosts[0].port)) as impostor:

        def give() -> None:
            connection, _ = impostor.accept()
            with connection, suppress(OSError):
                connection.recv(1 << 16)
                connection.sendall(answer)

        thread = threading.Thread(target=give)
        thread.start()
        peer = Peer(replace(unserved, me="h1"), unserved.hosts[0])
        with pytest.raises((BadPeerError, ConnectionError)):
            peer.have()
        peer.close()
        thread.join()
