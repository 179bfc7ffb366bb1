"""Calls to a host for each entry of a list that is the host's own: they have one deadline together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.docker.calls import CALL_SECONDS
from vllm_cluster.kernel.errors import TimedOut
from vllm_cluster.kernel.text import age


@dataclass(frozen=True)
class Times:
    """Seconds for a few entries, for each one, and at most for a list of any length.

    With a limit for each call alone a host decides how long a run lasts, and meanwhile the lease of all hosts is held.
    Of a short list each entry has what its call may take; `first` is for what comes with them.
    """

    first: float
    each: float
    most: float


REMOVAL = Times(60.0, CALL_SECONDS, 300.0)


class OneByOne:
    """The time that a host has for a list of its own; `after` makes a deadline of its clock.

    `grace` are the seconds that this machine gives what is on the list to end by itself, beside the host's time.
    """

    def __init__(
        self,
        host: str,
        what: str,
        number: int,
        after: Callable[[float], Deadline],
        times: Times = REMOVAL,
        *,
        grace: float = 0.0,
    ) -> None:
        self._host, self._what, self._all, self._left = host, what, number, number
        self._seconds = min(times.first + times.each * number, times.most) + grace
        self._deadline = after(self._seconds)

    @contextmanager
    def one(self) -> Iterator[Deadline]:
        """Give the deadline to the calls for one entry.

        Raises:
            TimedOut: it is over; with how many entries are left.
        """
        self._ensure_time()
        try:
            yield self._deadline
        except TimedOut:
            self._ensure_time()
            raise
        self._left -= 1

    def _ensure_time(self) -> None:
        if not self._deadline.left():
            done = f"{self._left} of {self._all} left after {age(self._seconds)}"
            text = f"{self._what}: {done}, since its Docker took too long for each"
            raise TimedOut(self._host, text, again=())
