"""Which logs are of one server: a start, an answer or a stop of one proves nothing of another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter

from vllm_cluster.kernel.explain.evidence import LogScan

# What failed within so many seconds on two hosts that name one address failed together; what ends is lost to others at
# once, and that is all there is to go by where a log names no address.
NEAR = 300.0
AT_ONCE = 30.0


def by_server(files: Sequence[LogScan], *, together: bool) -> list[list[LogScan]]:
    """The logs of each host of all files, those of one server side by side.

    Of one server are logs of one host, hosts that write in turn in one file, and logs in which something failed at the
    same time: within minutes where they name one address, at once where one of them names none. A log in which nothing
    ever failed does not prove that what failed in another was overcome. With `together` all are known to be of one.
    What has no server belongs to the log of a cluster's node program, where that is there.
    """
    streams = [one for file in files for one in (file, *file.streams)]
    if together or len(streams) < 2:
        return [streams]
    groups = _Groups(len(streams))
    place = {id(one): at for at, one in enumerate(streams)}
    for file in files:
        groups.join_overlaps([(one.begin, one.end, place[id(one)]) for one in (file, *file.streams) if _matters(one)])
    groups.join_equals((one.host, at) for at, one in enumerate(streams) if one.host)
    own = [at for at, one in enumerate(streams) if one.own]
    if len(own) == 1:
        groups.join_equals(("", at) for at, one in enumerate(streams) if one.own or not one.started)
    _join_failed(groups, streams)
    return [found for group in groups.members() for found in _apart([streams[at] for at in group])]


def _join_failed(groups: _Groups, streams: Sequence[LogScan]) -> None:
    """Join what failed together: hosts of two clusters may fail in the same minutes, and then name other addresses."""
    naming: dict[str, list[int]] = {}
    for at, one in enumerate(streams):
        for address in one.addresses:
            naming.setdefault(address, []).append(at)
    for members in naming.values():
        groups.join_overlaps(span for at in members for span in _ends(streams[at], at, NEAR))
    bare = {at for at, one in enumerate(streams) if not one.addresses}
    groups.join_with(bare, (span for at, one in enumerate(streams) for span in _ends(one, at, AT_ONCE)))


def _ends(log: LogScan, at: int, near: float) -> Iterator[tuple[float, float, int]]:
    yield from ((when, when + near, at) for when in log.failed)
    asked = log.asked.time if log.asked else None
    if asked is not None:
        yield asked, asked + AT_ONCE, at


def _matters(log: LogScan) -> bool:
    return bool(log.hits or log.trouble or log.strange or log.quiet or log.started or log.alive)


def _apart(group: list[LogScan]) -> list[list[LogScan]]:
    """Each server of a group by itself; what is of none stays with one that has not answered since it started."""
    servers = [log for log in group if log.started and not log.follows]
    if len(servers) < 2:
        return [group]
    home = next((log for log in servers if log.alive is None), servers[0])
    own = [log for log in group if log is home or log not in servers]
    return [own, *([log] for log in servers if log is not home)]


class _Groups:
    """Numbers that are joined, step by step."""

    def __init__(self, size: int) -> None:
        self._above = list(range(size))

    def _root(self, at: int) -> int:
        while self._above[at] != at:
            self._above[at] = self._above[self._above[at]]
            at = self._above[at]
        return at

    def _join(self, one: int, other: int) -> None:
        one, other = sorted((self._root(one), self._root(other)))
        self._above[other] = one

    def join_overlaps(self, spans: Iterable[tuple[float, float, int]]) -> None:
        """Join what has overlapping spans."""
        latest: tuple[float, int] | None = None
        for begin, end, at in sorted(spans, key=itemgetter(0)):
            if latest and begin <= latest[0]:
                self._join(latest[1], at)
            if latest is None or end >= latest[0]:
                latest = end, at

    def join_with(self, some: set[int], spans: Iterable[tuple[float, float, int]]) -> None:
        """Join each of some with what has overlapping spans; the rest not with one another."""
        latest: dict[int, float] = {}  # of each group, where its last span ends
        last: tuple[float, int] | None = None  # of some
        for begin, end, at in sorted(spans, key=itemgetter(0)):
            if at in some:
                for one in [one for one, over in latest.items() if begin <= over]:
                    self._join(one, at)
                # They are one group now, and the rest is over.
                latest, last = {self._root(at): end}, (end, at)
            else:
                if last and begin <= last[0]:
                    self._join(last[1], at)
                latest[self._root(at)] = end

    def join_equals(self, names: Iterable[tuple[str, int]]) -> None:
        """Join what has one name."""
        first: dict[str, int] = {}
        for name, at in names:
            self._join(first.setdefault(name, at), at)

    def members(self) -> list[list[int]]:
        """The groups, in the order of their first numbers."""
        found: dict[int, list[int]] = {}
        for at in range(len(self._above)):
            found.setdefault(self._root(at), []).append(at)
        return list(found.values())
