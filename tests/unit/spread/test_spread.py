"""The transfer from host to host: real sockets on loopback, a folder a host."""

from __future__ import annotations

import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.support import waiting
from tests.support.spread import (
    DamagingStore,
    FullStore,
    GrowingStore,
    of_host,
    partial_of,
    plan_of,
    planned,
    random_files,
    written,
)
from vllm_cluster.kernel.spread import spread, spread_serve
from vllm_cluster.kernel.spread.plan import PullError
from vllm_cluster.kernel.spread.spread import SpreadProgress
from vllm_cluster.kernel.spread.spread_serve import SpreadServer
from vllm_cluster.kernel.spread.spread_wire import BadPeerError, Busy, FileBody, Peer
from vllm_cluster.kernel.spread.store import Store
from vllm_cluster.wire.pull import HostPlan, ModelFile, SpreadHave
from vllm_cluster.wire.signature import sign

# Real connections, kills and pauses: seconds each.
pytestmark = pytest.mark.slow

MB = 1 << 20
LIMIT = 60.0


until = partial(waiting.until, seconds=LIMIT, every=0.01)


class Host:
    """One host of the pull, on threads of this process."""

    def __init__(self, plan: HostPlan, store: Store) -> None:
        self.plan, self.store = plan, store
        self.store.root.mkdir(parents=True, exist_ok=True)
        self.reports: list[SpreadProgress] = []
        self.errors: list[BaseException] = []
        self.server: SpreadServer | None = None
        self.steering: spread.Steering | None = None
        self.thread = threading.Thread(target=self._receive, daemon=True)

    def start(self) -> Host:
        self.server = spread.serve(self.plan, self.store)
        if self.plan.me != self.plan.hosts[0].name:
            self.thread.start()
        return self

    def _receive(self) -> None:
        try:
            self.steering = spread.receive(self.plan, self.store, self.reports.append)
        except PullError as exc:
            self.errors.append(exc)

    def whole(self) -> bool:
        return all(self.store.complete(file) for file in self.plan.files)

    def close(self) -> None:
        if self.steering:
            self.steering.close()
        if self.server:
            self.server.close()


class Pull:
    """Hosts by name; all are closed at the end."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.stack = ExitStack()

    def plan(self, count: int, files: Sequence[ModelFile]) -> HostPlan:
        return plan_of(count, files, self.root)

    def host(self, plan: HostPlan, name: str, store: Store | None = None) -> Host:
        own = of_host(plan, name)
        host = Host(own, store or Store(own)).start()
        self.stack.callback(host.close)
        return host

    @contextmanager
    def process(self, plan: HostPlan, name: str) -> Iterator[subprocess.Popen[bytes]]:
        """A host in a process of its own, that a signal can strike."""
        file = written(of_host(plan, name), self.root / f"{name}.json")
        argv = [sys.executable, "-m", "tests.support.spread_host", str(file)]
        (self.root / name).mkdir(exist_ok=True)
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
            try:
                yield process
            finally:
                process.kill()

    def same(self, plan: HostPlan, *names: str) -> None:
        """Check that hosts have exactly what the source has."""
        for store in (Store(of_host(plan, name)) for name in names):
            for file in plan.files:
                assert store.complete(file)
                assert content(store, file) == content(Store(plan), file)
            assert not list(store.root.rglob("*.vcluster-partial"))


def content(store: Store, file: ModelFile) -> bytes:
    """What vLLM would read."""
    with store.open(file) as there:
        return there.read()


@pytest.fixture
def pull(tmp_path: Path) -> Iterator[Pull]:
    pull = Pull(tmp_path)
    with pull.stack:
        yield pull


# fault: kernel/spread/spread.py: arriving = self._more_of(peer.known) → arriving = None
def test_what_a_host_has_is_not_asked_again_for_each_file(pull: Pull, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer looks at every file: for 1,000 small ones that took 40 s, and the files themselves 5."""
    asked: list[str] = []
    state = SpreadServer.state

    def counted(self: SpreadServer) -> SpreadHave:
        asked.append(self.plan.me)
        return state(self)

    monkeypatch.setattr(SpreadServer, "state", counted)
    plan = pull.plan(2, random_files(pull.root / "h0", 200, 100))
    hosts = [pull.host(plan, name) for name in ("h0", "h1")]
    until(hosts[1].whole)
    pull.same(plan, "h1")
    assert len(asked) < 50


def test_all_hosts_get_all_files(pull: Pull) -> None:
    files = random_files(pull.root / "h0", 5, 3 * MB + 17)
    config = b'{"a": 1}'
    for name in ("config.json", "same.json"):
        (pull.root / "h0" / name).write_bytes(config)
        files.append(planned(name, config, git=True))
    (pull.root / "h0" / "empty").touch()
    files.append(planned("empty", b""))
    # As the hub's cache has them: files of the same content are one there.
    plan = replace(pull.plan(4, files), kind="hub", commit="c0ffee" * 6 + "0000", folder="hub/models--h0")
    source = Store(plan)
    for file in files:
        (pull.root / "h0" / file.path).replace(partial_of(source, file))
        source.finish(file)
    hosts = [pull.host(plan, host.name) for host in plan.hosts]
    until(lambda: all(host.whole() for host in hosts))
    pull.same(plan, "h1", "h2", "h3")
    server = hosts[0].server
    assert server
    until(lambda: server.waiting_for() == [])
    until(lambda: hosts[3].steering and hosts[3].steering.waiting_for == [])
    total = sum(file.size for file in files)
    until(lambda: hosts[3].reports[-1].bytes == total)


def test_a_source_that_still_downloads_is_followed(pull: Pull) -> None:
    files = random_files(pull.root / "h0", 3, 2 * MB)
    plan = pull.plan(3, files)
    store = GrowingStore(plan)
    hosts = [pull.host(plan, "h0", store), pull.host(plan, "h1"), pull.host(plan, "h2")]
    for arrived in (1, MB, 2 * MB - 1):
        store.arrived = arrived
        until(lambda: {hosts[2].store.have(file) for file in files} == {store.arrived})
        assert not any(hosts[2].store.complete(file) for file in files)
    store.arrived = 2 * MB
    until(lambda: hosts[1].whole() and hosts[2].whole())
    pull.same(plan, "h1", "h2")


def test_a_killed_host_continues_where_it_was_and_holds_up_no_other(pull: Pull) -> None:
    files = random_files(pull.root / "h0", 2, 2 * MB)
    plan = pull.plan(4, files)
    store = GrowingStore(plan)
    store.arrived = MB
    server = pull.host(plan, "h0", store).server
    others = [pull.host(plan, "h1"), pull.host(plan, "h3")]
    with pull.process(plan, "h2") as killed:
        until(lambda: [Store(of_host(plan, "h2")).have(file) for file in files] == [MB, MB])
        until(lambda: others[1].reports and others[1].reports[-1] == SpreadProgress(2 * MB, "h2"))
        killed.kill()
    store.arrived = 2 * MB
    until(lambda: others[0].whole() and others[1].whole())
    assert server
    until(lambda: server.waiting_for() == ["h2"])
    starts: list[tuple[str, int]] = []
    with pytest.MonkeyPatch.context() as patch:
        file = Peer.file

        def noted(self: Peer, index: int, row: ModelFile, start: int) -> FileBody | None:
            starts.append((self.name, start))
            return file(self, index, row, start)

        patch.setattr(Peer, "file", noted)
        back = pull.host(plan, "h2")
        until(back.whole)
    assert starts == [("h3", MB)] * 2
    pull.same(plan, "h1", "h2", "h3")


def test_a_host_that_answers_no_more_is_left(pull: Pull) -> None:
    files = random_files(pull.root / "h0", 2, 2 * MB)
    plan = pull.plan(3, files)
    store = GrowingStore(plan)
    store.arrived = MB
    pull.host(plan, "h0", store)
    with pull.process(plan, "h1") as stopped:
        last = pull.host(plan, "h2")
        until(lambda: last.reports and last.reports[-1] == SpreadProgress(2 * MB, "h1"))
        stopped.send_signal(signal.SIGSTOP)
        store.arrived = 2 * MB
        until(last.whole)
        assert last.reports[-1].upstream == "h0"
        stopped.send_signal(signal.SIGCONT)
        until(lambda: all(Store(of_host(plan, "h1")).complete(file) for file in files))
    pull.same(plan, "h1", "h2")


def test_without_the_source_the_others_share_what_they_have(pull: Pull, monkeypatch: pytest.MonkeyPatch) -> None:
    files = random_files(pull.root / "h0", 2, MB)
    plan = pull.plan(3, files)
    with pull.process(plan, "h0"):
        until(pull.host(plan, "h1").whole)
    monkeypatch.setattr(spread, "ALONE_SECONDS", 0.2)
    late = pull.host(plan, "h2")
    until(late.whole)
    until(lambda: late.reports[-1].upstream == "h1")
    pull.same(plan, "h1", "h2")


# fault: kernel/spread/spread_arriving.py: self._hash.hexdigest() == self.file.blob → self._hash
def test_a_wrong_file_is_reported_and_comes_from_another_host(pull: Pull) -> None:
    files = random_files(pull.root / "h0", 3, MB)
    plan = pull.plan(3, files)
    source = pull.host(plan, "h0")
    damaging = DamagingStore(of_host(plan, "h1"), 99)
    middle = pull.host(plan, "h1", damaging)
    until(middle.whole)
    last = pull.host(plan, "h2")
    until(last.whole)
    pull.same(plan, "h1", "h2")
    until(lambda: source.server and source.server.waiting_for() == [])
    until(lambda: "0.safetensors: wrong hash (from h1)" in {report.error for report in last.reports})
    assert damaging.times == 98


def test_a_file_that_is_wrong_from_everywhere_ends_the_host(pull: Pull) -> None:
    files = random_files(pull.root / "h0", 2, MB)
    plan = pull.plan(2, files)
    pull.host(plan, "h0", DamagingStore(plan, 99))
    host = pull.host(plan, "h1")
    until(lambda: host.errors)
    assert str(host.errors[0]) == "0.safetensors: wrong hash (from h0), 3 times"
    assert not host.store.complete(files[0])


def test_a_host_with_a_full_disk_ends(pull: Pull) -> None:
    files = random_files(pull.root / "h0", 1, MB)
    plan = pull.plan(2, files)
    pull.host(plan, "h0")
    host = pull.host(plan, "h1", FullStore(of_host(plan, "h1")))
    until(lambda: host.errors)
    assert str(host.errors[0]) == "0.safetensors: cannot write: No space left on device"


# fault: kernel/spread/spread_serve.py: same(ask.proof, proof_of(server.plan.key, ask)) → ask.me
def test_only_hosts_of_this_pull_are_answered(pull: Pull) -> None:
    files = random_files(pull.root / "h0", 1, MB)
    plan = pull.plan(2, files)
    pull.host(plan, "h0")
    for wrong in (replace(plan, key="00" * 32, me="h1"), replace(plan, me="h9")):
        peer = Peer(wrong, plan.hosts[0])
        with pytest.raises(BadPeerError, match="refuses the key"):
            peer.have()
        with pytest.raises(BadPeerError, match="refuses the key"):
            peer.file(0, files[0], 0)
        peer.close()


# fault: kernel/spread/spread_wire.py: if not same(proof, sign(self._key, "answer", ask.nonce, status, body)): → if not proof:
def test_an_answer_with_another_key_is_refused(pull: Pull) -> None:
    files = random_files(pull.root / "h0", 1, MB)
    plan = pull.plan(2, files)
    server = pull.host(plan, "h0").server
    assert server
    with closing(Peer(replace(plan, me="h1"), plan.hosts[0])) as peer, pytest.MonkeyPatch.context() as patch:
        assert peer.have() == (MB + 1,)
        patch.setattr(
            spread_serve, "sign", lambda key, what, *parts: sign(key if what == "ask" else "00" * 32, what, *parts)
        )
        with pytest.raises(BadPeerError, match="not signed"):
            peer.have()


# fault: kernel/spread/spread_wire.py: if not kept or self._interrupted: → if kept or self._interrupted:
def test_a_connection_that_was_idle_for_long_is_opened_again(pull: Pull, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread comes back to it after the flush of a large file: the host is there, and nothing is wrong."""
    monkeypatch.setattr(spread_serve, "IDLE_SECONDS", 0.1)
    plan = pull.plan(2, random_files(pull.root / "h0", 1, MB))
    pull.host(plan, "h0")
    peer = Peer(replace(plan, me="h1"), plan.hosts[0])
    for _ in range(2):
        assert peer.have() == (MB + 1,)
        until(lambda: peer._socket and select.select([peer._socket], [], [], 0)[0])
    peer.interrupt()
    with pytest.raises(ConnectionError):
        peer.have()
    peer.close()


def test_a_host_serves_two_others_at_a_time(pull: Pull) -> None:
    files = random_files(pull.root / "h0", 1, 32 * MB)
    plan = pull.plan(4, files)
    pull.host(plan, "h0")
    peers = [Peer(replace(plan, me=name), plan.hosts[0]) for name in ("h1", "h2", "h3")]
    held = [peers[index].file(0, files[0], 0) for index in (0, 1)]
    assert all(held)
    with pytest.raises(Busy):
        peers[2].file(0, files[0], 0)
    peers[0].close()

    def served() -> bool:
        try:
            return peers[2].file(0, files[0], 0) is not None
        except Busy:
            return False

    until(served)
    for peer in peers:
        peer.close()
