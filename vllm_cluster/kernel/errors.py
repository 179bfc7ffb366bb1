"""Everything that can go wrong, one class for each decision that a caller can take.

VclusterError            1   something failed
├── UsageError           2   the command line
│   ├── InventoryError   2   the inventory: file, line, key
│   └── PortInUse        2   a local port is taken
├── PreflightFailed      3   known before anything was touched
│   └── NodeMissing      3   the cluster has no node there now; while `up` recreates it, for a moment
├── HostError            1   one host, one step
│   ├── Unreachable      4   no connection: nothing was sent
│   │   ├── HostKeyRejected
│   │   ├── AuthenticationFailed
│   │   ├── OpenSshNeeded
│   │   └── NoSession
│   ├── LeftAlone        1   a host outside the inventory: not connected to, or nothing is changed there
│   ├── ShellUnusable    3   connected, and the login shell runs no commands: nothing was done
│   ├── ConnectionLost   1   the connection broke: what was sent may have happened
│   │   └── LeaseLost   75   the lease ended under way: another run may change the cluster now
│   ├── TimedOut         1   a deadline passed without an answer
│   ├── DockerError      1   the host answers, and its Docker does not as it should
│   ├── NodesNotJoined   1   the hosts answer, and Ray has not come together
│   └── CommandFailed    1   the command ran and failed
├── FleetError               several hosts failed, each with its own error
├── Locked              75   another run is changing the cluster
├── Aborted              1   a person answered no to a question
├── WaitTimedOut       124   what `status --wait` waits for was not so in time
└── Interrupted        130   the user interrupted
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Self

from vllm_cluster.kernel.shell_line import Paste, unbroken
from vllm_cluster.kernel.text import by_hosts


class VclusterError(Exception):
    """A failure for a person to read: what happened, where, and what to do about it."""

    exit_code = 1
    code = "failed"

    def __init__(
        self,
        *lines: str,
        hint: str | None = None,
        again: tuple[str, ...] | None = None,
        instead: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__("\n".join(lines))
        # What happened. A line that has ends of lines within quotes a host or a program: it is shown so.
        self.lines = list(lines)
        self.hint = hint
        # Options with which the same command would succeed: the program knows the command, and writes the remedy.
        self.again = again
        # Words of the call, each with the one that was probably meant.
        self.instead = dict(instead)
        self.hosts: tuple[str, ...] = ()

    @property
    def message(self) -> str:
        """Its lines as one text."""
        return "\n".join(self.lines)

    @property
    def failures(self) -> Mapping[str, VclusterError]:
        """The hosts that failed, each with its error; none where it is not a host's failure."""
        return {}

    def with_hosts(self, hosts: Iterable[str]) -> VclusterError:
        """This error, with an entry for each of these hosts: failed or not."""
        self.hosts = tuple(hosts)
        return self

    def as_json(self, paste: Paste) -> dict[str, object]:
        """The error as the fields of an event, with a row for every host that is known of."""
        hosts = dict.fromkeys((*self.hosts, *self.failures)) if self.failures else {}
        rows = {host: _row(self.failures.get(host), paste) for host in hosts}
        return {**self.words(), "fix": paste(self.hint or "").each, **({"hosts": rows} if rows else {})}

    def words(self) -> dict[str, object]:
        """The fields of this error alone."""
        return {"code": self.code, "message": self.message, "fix": self.fixes, "exit_code": self.exit_code}

    @property
    def fixes(self) -> list[str]:
        """Each remedy of the hint. Not by splitlines, which also cuts where text from elsewhere may have it."""
        return unbroken(self.hint).split("\n") if self.hint else []


class UsageError(VclusterError):
    """The command line asks for something that does not exist or does not fit."""

    exit_code = 2
    code = "usage"


class PortInUse(UsageError):
    """A local port that the call needs is taken."""

    code = "port-in-use"


class InventoryError(UsageError):
    """The inventory is wrong; the message begins with ``file:line: key``."""

    code = "inventory"


class PreflightFailed(VclusterError):
    """Known before anything was touched."""

    exit_code = 3
    code = "preflight-failed"


class NodeMissing(PreflightFailed):
    """The cluster has no node on a host now: it was never made, or `up` recreates it."""

    code = "node-missing"


class HostError(VclusterError):
    """One host failed at one step."""

    code = "host-failed"

    def __init__(
        self, host: str, message: str, *, hint: str | None = None, again: tuple[str, ...] | None = None
    ) -> None:
        super().__init__(f"{host}: {message}", hint=hint, again=again)
        self.host = host
        self.detail = message

    def with_step(self, step: str) -> Self:
        """This error with the step that was running: it did not happen, or its outcome is unknown."""
        self.lines = [f"{self.host}: {step}: {self.detail}"]
        self.args = (self.message,)
        return self

    @property
    def failures(self) -> Mapping[str, VclusterError]:
        """The one host."""
        return {self.host: self}

    def words(self) -> dict[str, object]:
        """As for every error, with the host."""
        return {**super().words(), "host": self.host}


class Unreachable(HostError):
    """No connection could be made, so nothing was sent."""

    exit_code = 4
    code = "unreachable"


class LeftAlone(HostError):
    """A head remembers the host, and nothing else shows that it is the cluster's: no inventory, no person, no token."""

    code = "left-alone"


class NoSession(Unreachable):
    """The host is connected and opens no further session."""

    code = "no-session"


class HostKeyRejected(Unreachable):
    """The host's key is unknown or is not the one that known_hosts holds."""

    code = "host-key-rejected"


class AuthenticationFailed(Unreachable):
    """The host answered and refused every key that was offered."""

    code = "authentication-failed"


class OpenSshNeeded(Unreachable):
    """The host's ssh_config restricts connections in a way that only the openssh transport follows."""

    code = "openssh-needed"


class ShellUnusable(HostError):
    """The host lets us in, and its login shell runs no commands."""

    exit_code = 3
    code = "no-shell"


class ConnectionLost(HostError):
    """The connection broke while something was under way: it may or may not have happened."""

    code = "connection-lost"


class LeaseLost(ConnectionLost):
    """The lease ended while it was needed: another run may change the cluster now. Nothing more is sent."""

    exit_code = 75
    code = "lease-lost"


class TimedOut(HostError):
    """A deadline passed without an answer."""

    code = "timed-out"


class DockerError(HostError):
    """The host answers, and its Docker refuses, is silent, or answers what cannot be read."""

    code = "docker-failed"


class NodesNotJoined(HostError):
    """The hosts answer, and Ray does not count what it should: their logs may hold the cause.

    `cut_off` are hosts that have not joined a Ray that runs: what is between the hosts may be the cause.
    """

    code = "nodes-not-joined"

    def __init__(self, host: str, message: str, *, hint: str | None = None, cut_off: Iterable[str] = ()) -> None:
        super().__init__(host, message, hint=hint)
        self.cut_off = tuple(cut_off)


class TagMoved(HostError):
    """The head got an image that the plan did not know, and nodes run from another; nothing was stopped."""

    code = "tag-moved"


class CommandFailed(HostError):
    """A command ran to its end and failed; keeps what it printed."""

    code = "command-failed"

    def __init__(
        self,
        host: str,
        message: str,
        *,
        exit_code: int,
        stderr: str,
        hint: str | None = None,
        again: tuple[str, ...] | None = None,
    ) -> None:
        super().__init__(host, message, hint=hint, again=again)
        self.returncode = exit_code
        self.stderr = stderr


class FleetError(VclusterError):
    """Several hosts failed; every host's error is kept."""

    code = "hosts-failed"

    def __init__(self, failures: Mapping[str, VclusterError]) -> None:
        self._failures = MappingProxyType(dict(failures))
        # One cause on many hosts is one line.
        same = by_hosts((_without(host, str(error)), host) for host, error in self.failures.items())
        lines = [f"{hosts}: {text}" if named else text for (text, named), hosts in same.items()]
        hints = list(dict.fromkeys(error.hint for error in self.failures.values() if error.hint))
        # One call does it again for all.
        again = next((error.again for error in self.failures.values() if error.again is not None), None)
        super().__init__(*lines, hint="\n".join(hints) or None, again=again)
        # The code of the failures when they agree: all unreachable is 4, anything mixed is 1.
        codes = {error.exit_code for error in self.failures.values()}
        self.exit_code = codes.pop() if len(codes) == 1 else 1

    @property
    def failures(self) -> Mapping[str, VclusterError]:
        """Each host's own error."""
        return self._failures


def _without(host: str, message: str) -> tuple[str, bool]:
    """A message without the name of its host, and whether it began with that."""
    text = message.removeprefix(f"{host}: ")
    return text, text != message


def combine(failures: Mapping[str, VclusterError]) -> VclusterError:
    """One host's failure as it is, those of several together."""
    return next(iter(failures.values())) if len(failures) == 1 else FleetError(failures)


def _row(failure: VclusterError | None, paste: Paste) -> dict[str, object]:
    if failure is None:
        return {"state": "ok"}
    return {"state": "failed", **failure.words(), "fix": paste(failure.hint or "").each}


class Locked(VclusterError):
    """Another run is changing the cluster."""

    exit_code = 75
    code = "locked"


class Replaced(VclusterError):
    """A newer request superseded the one that this run waited for."""

    exit_code = 75
    code = "replaced"


class Aborted(VclusterError):
    """A person answered no to a question."""

    code = "aborted"

    def __init__(self) -> None:
        super().__init__("Aborted. Nothing was changed.")


class WaitTimedOut(VclusterError):
    """What was waited for was not so in time, and may still come."""

    exit_code = 124
    code = "wait-timed-out"


class Interrupted(VclusterError):
    """The user asked to stop."""

    exit_code = 130
    code = "interrupted"
