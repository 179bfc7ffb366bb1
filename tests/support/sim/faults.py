"""What can go wrong at one call, and the list of calls of one run of the product."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum


class Fault(Enum):
    """How a call goes wrong. `after`: it has happened on the host, and no answer arrives."""

    LOST = "connection lost before"
    LOST_AFTER = "connection lost after"
    SILENT = "no answer, never arrived"
    SILENT_AFTER = "no answer, happened"
    REFUSED = "Docker's socket refuses"
    ERROR = "error 500 before"
    ERROR_AFTER = "error 500 after"
    KILLED = "controller killed before"
    KILLED_AFTER = "controller killed after"
    KILLED_LATE = "controller killed, and what was asked happens later"
    INTERRUPT = "Ctrl-C before"

    @property
    def kills(self) -> bool:
        """Whether the controller is gone."""
        return self in (Fault.KILLED, Fault.KILLED_AFTER, Fault.KILLED_LATE)

    @property
    def happens(self) -> bool:
        """Whether the host does what was asked."""
        return self in (Fault.LOST_AFTER, Fault.SILENT_AFTER, Fault.ERROR_AFTER, Fault.KILLED_AFTER)


class Killed(BaseException):
    """The controller is gone: no code of the product may see it and continue."""


@dataclass(frozen=True)
class Call:
    """One request to a host."""

    index: int
    host: str
    what: str
    changes: bool

    def __str__(self) -> str:
        return f"{self.index:4} {self.host} {'! ' if self.changes else '  '}{self.what}"


@dataclass
class Script:
    """The faults of one run by the index of the call, and what was asked so far.

    When the controller is killed, work on other hosts that would have run beside it gets `spare` more calls each,
    so that every mixture of progress is reached although hosts are worked on one after the other.
    """

    faults: dict[int, Fault] = field(default_factory=dict)
    by_words: Callable[[Call], Fault | None] = lambda _: None
    spare: int = 0
    hook: Callable[[Call], None] = lambda _: None
    calls: list[Call] = field(default_factory=list)
    met: list[tuple[Call, Fault]] = field(default_factory=list)
    dead: bool = False
    _left: dict[str, int] = field(default_factory=dict)

    def ask(self, host: str, what: str, changes: bool) -> Fault | None:
        """Note a call; answers how it goes wrong."""
        if self.dead and not self._spared(host):
            raise Killed(f"already before: {what}")
        call = Call(len(self.calls), host, what, changes)
        self.calls.append(call)
        self.hook(call)
        fault = self.faults.get(call.index) or self.by_words(call)
        if fault:
            self.met.append((call, fault))
            if fault.kills:
                self.dead = True
                self._left[host] = 0
        return fault

    def _spared(self, host: str) -> bool:
        left = self._left.get(host, self.spare)
        self._left[host] = left - 1
        return left > 0

    def bury(self) -> None:
        """The process has ended: nothing is asked any more."""
        self.dead = True
        self.spare = 0
        self._left.clear()

    @property
    def changing(self) -> list[Call]:
        """The calls that change something on a host."""
        return [call for call in self.calls if call.changes]

    def story(self) -> str:
        """Every call, and where it went wrong: enough to follow a failing case."""
        wrong = {call.index: fault.value for call, fault in self.met}
        return "\n".join(f"{call}{'   <-- ' + wrong[call.index] if call.index in wrong else ''}" for call in self.calls)
