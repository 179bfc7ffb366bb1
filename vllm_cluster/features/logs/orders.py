"""What people ordered, as lines between those of the logs: the errors behind it may be those of a wanted stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from vllm_cluster.features.logs.lines import SECOND, Line, LogRequest
from vllm_cluster.features.logs.merge import LogMerge
from vllm_cluster.kernel.node.handle import NodeHandle
from vllm_cluster.kernel.node.history import read_history
from vllm_cluster.kernel.plan.history import Entry

ORDERED = "order"
# A restart is none: the head does it by itself.
_VERBS = ("up", "serve", "stop", "rollback", "down")


class OrderFeed:
    """The history of a head, as a log that ends: what is ordered while it is followed is not in it."""

    def __init__(self, node: NodeHandle, asked: LogRequest, merge: LogMerge) -> None:
        self._node, self._asked, self._merge = node, asked, merge

    def read(self, _offset: int, _until: int | None, begun: Callable[[], None]) -> None:
        """As `ContainerFeed.read`; the history has the times of laptops.

        Raises:
            EOFError: all of it was read.
        """
        begun()
        now = self._node.connection.runtime.clock.time()
        since = 0.0 if self._asked.since is None else now - self._asked.since
        lines = [_line(one, self._node.host) for one in read_history(self._node) if one.verb in _VERBS]
        self._merge.put(self, [line for line in lines if line.at >= since * SECOND])
        raise EOFError


def _line(entry: Entry, host: str) -> Line:
    # `up` is written once it has ended.
    began = entry.time - (entry.seconds or 0.0 if entry.verb == "up" else 0.0)
    what = ", ".join(entry.operations)
    what = what if what.startswith(entry.verb) else f"{entry.verb} {what}"
    return Line(int(began * SECOND), host, ORDERED, f"ordered by {entry.user}: {what}")


class Marks:
    """Keeps of the orders the last one before each error, and of all other lines the errors."""

    def __init__(self, is_error: Callable[[Line], bool]) -> None:
        self._is_error = is_error
        self._held: Line | None = None

    def keep(self, lines: Sequence[Line]) -> Iterator[Line]:
        """Yield the errors among these lines, each order that comes before one first."""
        for line in lines:
            if line.source == ORDERED:
                self._held = line
            elif self._is_error(line):
                if self._held:
                    yield self._held
                    self._held = None
                yield line
