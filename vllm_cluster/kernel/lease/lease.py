"""The right to change hosts: a lock on each of them that lives exactly as long as its holder."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files

from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import (
    CommandFailed,
    ConnectionLost,
    HostError,
    LeaseLost,
    Locked,
    VclusterError,
    combine,
)
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.hosts.connection import WORKERS, Fleet, HostConnection
from vllm_cluster.kernel.hosts.runtime import Repeated, Runtime
from vllm_cluster.kernel.laptop import whoami
from vllm_cluster.kernel.shell_line import Option, command_line
from vllm_cluster.kernel.transport.base import Stream

# Without a heartbeat for this long a host gives the lease up.
TIME_TO_LIVE = 15
HEARTBEAT = 4.0
# Between two looks at what has been answered, and for what a host may hold up such a look.
LOOK, MOMENT = 0.5, 0.001
ANSWER_SECONDS = TIME_TO_LIVE - HEARTBEAT
OPEN_SECONDS = 30.0
RELEASE_SECONDS = 5.0
# Between two attempts of one who waits.
RETRY = 0.5
# For so long the hosts in hand are kept while a later one is busy: another who lets go does so host by host.
CONTENTION_SECONDS, RETRY_CONTENTION = 5.0, 0.1
MAX_ANSWER = 4096
# Below it, the script makes a folder for each engine that only those who may use it can enter.
PARENT = "/tmp"  # noqa: S108 - the script verifies owner, group and mode of the folder

GIVEN_UP = "the host released it"
SUSPENDED = f"this process was suspended for more than {TIME_TO_LIVE} s"
_PREFIX = "vcluster-lease "
_ACCOUNT = re.compile(r"[\w.@+\\-]{1,64}\$?", re.ASCII)


def in_order(fleet: Fleet, facts: Mapping[str, HostFacts]) -> list[HostConnection]:
    """These hosts in the order in which every run takes them, under any names: by machine id."""
    return [fleet.connections[name] for name in sorted(facts, key=lambda name: (facts[name].machine_id, name))]


@dataclass
class _Hold:
    """One host's lock in hand.

    `sent` is when the last beat was sent, `waiting` whether it has not been answered, and `answered` when the last one
    was sent that has been.
    """

    connection: HostConnection
    stream: Stream
    answered: float
    sent: float
    waiting: bool = False
    broken: str = ""

    def lost(self, now: float) -> str:
        """Why this lock may be lost; empty while it is surely held."""
        silent = now - self.answered
        return self.broken or (f"no heartbeat reply for {silent:.0f} s" if silent >= TIME_TO_LIVE else "")

    def take_answer(self, now: Callable[[], float]) -> None:
        """Read whether the beat has been answered, and wait neither for that nor for another host."""
        with _breaking(self), suppress(TimeoutError):
            self.stream.settimeout(MOMENT)
            if self.waiting:
                if not self.stream.recv(MAX_ANSWER):
                    raise BrokenPipeError
                self.answered, self.waiting = self.sent, False
        if now() - self.sent > TIME_TO_LIVE:
            # No look comes that late: this process was suspended, and what broke meanwhile proves nothing else.
            self.broken = SUSPENDED
        elif self.waiting and now() - self.sent >= ANSWER_SECONDS:
            self.broken = self.broken or f"no heartbeat reply for {now() - self.answered:.0f} s"

    def beat(self, runtime: Runtime) -> None:
        """Send the next beat when it is due. One at a time: a host that is slow at each would fall ever more behind."""
        now = runtime.clock.monotonic()
        if not self.waiting and now - self.sent >= HEARTBEAT:
            self.sent, self.waiting = now, True
            # Beside the others: one that agrees on new keys, or takes no packets, holds up whoever sends to it.
            runtime.background(self._send, "beat")

    def _send(self) -> None:
        with _breaking(self), suppress(TimeoutError):
            self.stream.sendall(b"\n")


class Lease:
    """Held on all of its hosts from `acquire` to `release`. A holder that dies frees it; so does one that falls silent.

    While it is held, each host's Docker client asks it before every changing call, and its streams end with it.
    """

    def __init__(self, links: Sequence[HostConnection], cluster: str, verb: str, *, parent: str = PARENT) -> None:
        """`links` come in the order of `in_order`: two who take the same hosts never wait for each other in a ring."""
        self._links, self._parent = list(links), parent
        self._runtime: Runtime = links[0].runtime
        since = datetime.fromtimestamp(self._runtime.clock.time()).astimezone().isoformat(timespec="seconds")
        self._who = f"{whoami()} (vcluster {verb} of {cluster}) since {since}"
        self._token = self._runtime.token(16)
        self._holds: list[_Hold] = []
        self._beats: Repeated | None = None
        self._deadline = self._runtime.after(0)

    def acquire(self, wait: float | None = None, waiting: Callable[[str], None] | None = None) -> None:
        """Take the lease of every host, trying again for `wait` seconds; None for a verb without --wait.

        Raises:
            Locked: another run holds one; the message names which, who and since when.
            HostError, FleetError: on these hosts it cannot be taken; then it is held nowhere.
        """
        self._deadline = deadline = self._runtime.after(wait or 0.0)
        while busy := self._take_all():
            connection, holder = busy
            if not deadline.left():
                raise Locked(
                    f"{connection.name} is locked by {holder or 'an unidentified process (empty lock file)'}",
                    again=() if wait is None else ("--wait", "10m"),
                )
            if waiting and holder:
                waiting(holder)
            self._runtime.clock.sleep(RETRY)
        for hold in self._holds:
            hold.connection.fence(self.check, self._stream_argv(hold))

    def _take_all(self) -> tuple[HostConnection, str] | None:
        """None once every host is locked, else who holds which; then nothing is kept."""
        patience = self._runtime.after(CONTENTION_SECONDS)
        try:
            while busy := self._take_more():
                if not patience.left() or (busy[1] and not self._holds):
                    self.release()
                    return busy
                self._runtime.clock.sleep(RETRY_CONTENTION)
        except BaseException:
            self.release()
            raise
        return None

    def _take_more(self) -> tuple[HostConnection, str] | None:
        """Take what follows in the order, up to the first host that is busy; who holds it there."""
        while len(self._holds) < len(self._links):
            rest = self._links[len(self._holds) :]
            # The first one alone: of two who begin with the same host, one learns there that it comes second.
            asked = rest if self._holds else rest[:1]
            with self._runtime.pool(min(WORKERS, len(asked))) as pool:
                outcomes = list(pool.map(self._try, asked))
            prefix = next((n for n, outcome in enumerate(outcomes) if not isinstance(outcome, _Hold)), len(outcomes))
            got = [outcome for outcome in outcomes if isinstance(outcome, _Hold)]
            self._holds += got[:prefix]
            self._let_go(got[prefix:])
            if self._holds and self._beats is None:
                self._beats = self._runtime.repeat(self.send_heartbeat, LOOK, "lease")
            answers = {connection.name: outcome for connection, outcome in zip(asked, outcomes, strict=True)}
            if failed := {name: reply for name, reply in answers.items() if isinstance(reply, VclusterError)}:
                raise combine(failed)
            for connection, outcome in zip(asked, outcomes, strict=True):
                if isinstance(outcome, str):
                    return connection, outcome
        return None

    def _try(self, connection: HostConnection) -> _Hold | str | VclusterError:
        """One attempt on one host: its lock, else who holds it, or what failed."""
        asked = self._runtime.clock.monotonic()
        script = files("vllm_cluster.kernel.lease").joinpath("lease.sh").read_text()
        argv = ["sh", "-c", script, "lease", self._folder(connection), self._token, self._who, str(TIME_TO_LIVE)]
        try:
            stream = connection.open_stream(argv, self._runtime.after(OPEN_SECONDS))
            try:
                reply, rest = _answer(stream, self._runtime.after(OPEN_SECONDS))
                if reply == "held":
                    return _Hold(connection, stream, asked, self._runtime.clock.monotonic())
                problem = stream.stderr_tail()
                stream.close()
            except BaseException:
                stream.close()
                raise
        except VclusterError as error:
            return error
        except (OSError, EOFError) as error:
            return ConnectionLost(connection.name, f"cannot take the lease: {error}", again=())
        if reply == "busy":
            return rest
        kind, _, what = rest.partition("; ")
        if kind == "unused" and self._deadline.left():
            # Held, or left there, by an account that reaches this engine in another way.
            return f"another way to its Docker: {what}"
        remedy = self._remedy(kind.split(), self._folder(connection)) if what else ""
        return CommandFailed(
            connection.name,
            f"cannot take the lease: {what or rest or problem or 'no answer'}",
            exit_code=1,
            stderr=problem,
            hint=f"on {connection.name}: {remedy}" if remedy else None,
        )

    def _remedy(self, kind: Sequence[str], folder: str) -> str:
        """What to do about a refusal of a known kind: of the words of the host only names of accounts are in it."""
        parent = self._parent
        match kind:
            case ["flock"]:
                return "install util-linux"
            case ["context"]:
                return "docker context use default, and no DOCKER_HOST but one of this machine"
            case ["parent"]:
                return f"look at: {command_line('stat', parent)}; {command_line('df', parent)}"
            case ["folder"]:
                return f"look at: {command_line('stat', folder)}; {command_line('df', folder)}"
            case ["unused"]:
                return f"if no vcluster runs there: {command_line('sudo', 'rm', Option('-r'), folder)}"
            case ["group", group, user] if _ACCOUNT.fullmatch(group) and _ACCOUNT.fullmatch(user):
                return f"add this user to that group: {command_line('sudo', 'usermod', Option('-aG'), group, user)}"
            case ["user", user] if _ACCOUNT.fullmatch(user):
                return f"log in as {user}"
        return ""

    def _folder(self, connection: HostConnection) -> str:
        """Where the lock of a host's engine is: the same for all who reach it, by any socket or name."""
        return f"{self._parent}/vcluster-{hashlib.sha256(connection.docker_id.encode()).hexdigest()[:16]}"

    def _stream_argv(self, hold: _Hold) -> list[str]:
        script = files("vllm_cluster.kernel.lease").joinpath("lease_stream.sh").read_text()
        return ["sh", "-c", script, "stream", self._folder(hold.connection), self._token]

    def send_heartbeat(self) -> bool:
        """Read what the hosts have answered, and send the beats that are due; False once one host is lost.

        No host is waited for: each gets its beats, also while others are silent.
        """
        holds = list(self._holds)
        for hold in holds:
            hold.take_answer(self._runtime.clock.monotonic)
        for hold in holds:
            if not any(one.broken for one in holds):
                hold.beat(self._runtime)
        return not any(hold.broken for hold in holds)

    def check(self) -> None:
        """Raise unless the lease is surely held: what is sent into a black hole seems to arrive, answers don't.

        Raises:
            LeaseLost: a channel that holds it is gone, or silent for as long as its host waits.
        """
        now = self._runtime.clock.monotonic()
        # Once one is broken the others get no beats, and fall silent for that alone.
        for hold in sorted(self._holds, key=lambda hold: (not hold.broken, hold.answered)):
            if why := hold.lost(now):
                raise LeaseLost(hold.connection.name, f"lost the lease ({why}); completed steps are kept", again=())
        if len(self._holds) < len(self._links):
            raise LeaseLost(
                self._links[len(self._holds)].name, "the lease is not held; completed steps are kept", again=()
            )

    def refuse_given_up(self) -> None:
        """Where something failed: a host that gives the lease up ends the streams under it, which is the cause then.

        Not where a connection broke: that is the cause itself, and ends the heartbeats on the other hosts too.

        Raises:
            LeaseLost: a host has given it up.
        """
        broke = any(hold.broken not in ("", GIVEN_UP, SUSPENDED) for hold in self._holds)
        if not broke and any(hold.lost(self._runtime.clock.monotonic()) for hold in self._holds):
            self.check()

    def release(self) -> None:
        """Give the lease back on every host; no error where it is gone already."""
        for hold in self._holds:
            hold.connection.unfence()
        beating = False
        if self._beats:
            self._beats.stop()
            # One reader at a time.
            self._beats.join(RELEASE_SECONDS)
            beating = self._beats.is_alive()
            self._beats = None
        holds, self._holds = self._holds, []
        self._let_go(holds, wait=not beating)

    def _let_go(self, holds: Sequence[_Hold], *, wait: bool = True) -> None:
        for hold in holds:
            with suppress(OSError, HostError, EOFError):
                hold.stream.sendall(b"end\n")
        deadline = self._runtime.after(RELEASE_SECONDS)
        for hold in holds:
            with suppress(OSError, HostError, EOFError):
                # Until the other side has let go, so that the next command finds it free.
                while wait and deadline.left():
                    hold.stream.settimeout(deadline.left())
                    if not hold.stream.recv(MAX_ANSWER):
                        break
            hold.stream.close()

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            if isinstance(error, VclusterError):
                self.refuse_given_up()
        finally:
            self.release()


@contextmanager
def _breaking(hold: _Hold) -> Iterator[None]:
    """Note what breaks a hold."""
    try:
        yield
    except BrokenPipeError:  # the script has ended, and the connection has not
        hold.broken = hold.broken or GIVEN_UP
    except (OSError, HostError, EOFError) as error:
        hold.broken = hold.broken or str(error) or type(error).__name__


def _answer(stream: Stream, deadline: Deadline) -> tuple[str, str]:
    """What the script answers: `held`, `busy WHO` or `refused WHY`; what a login shell prints is skipped.

    Raises:
        TimeoutError: it has not answered by then, however much was printed.
    """
    reply = b""
    while len(reply) < MAX_ANSWER:
        if not (left := deadline.left()):
            raise TimeoutError("no answer in time")
        stream.settimeout(left)
        if not (data := stream.recv(MAX_ANSWER)):
            break
        reply += data
        for line in reply.decode("utf-8", "replace").splitlines(keepends=True):
            if line.startswith(_PREFIX) and line.endswith("\n"):
                word, _, rest = line.removeprefix(_PREFIX).strip().partition(" ")
                return word, "".join(character for character in rest if character.isprintable())
    return "", ""
