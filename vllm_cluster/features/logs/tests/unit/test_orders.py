"""`logs --errors` marks what was ordered before an error: that of a wanted stop is none to look into."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from vllm_cluster.features.logs import orders
from vllm_cluster.features.logs.lines import SECOND, Line, LogRequest
from vllm_cluster.features.logs.orders import ORDERED, Marks, OrderFeed
from vllm_cluster.kernel.hosts.runtime import SYSTEM
from vllm_cluster.kernel.plan.history import Entry


def entry(ago: float, verb: str, *operations: str, seconds: float | None = None) -> Entry:
    return Entry(SYSTEM.clock.time() - ago, "ann@laptop", verb, operations, seconds=seconds)


# fault: features/logs/orders.py: if one.verb in _VERBS] → ]
# fault: features/logs/orders.py: if line.at >= since * SECOND] → ]
@pytest.mark.parametrize(
    ("since", "shown"),
    [(None, ["serve org/a", "up (2 nodes)", "serve org/b"]), (100.0, ["serve org/b"])],
)
def test_the_orders_of_a_history_are_lines_of_its_head(
    since: float | None, shown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    history = [
        entry(400, "serve", "serve org/a"),
        entry(90, "up", "(2 nodes)", seconds=30),
        entry(60, "restart", "vLLM ended"),
        entry(50, "serve", "serve org/b"),
    ]
    monkeypatch.setattr(orders, "read_history", lambda _: history)
    node = SimpleNamespace(host="gpu1", connection=SimpleNamespace(runtime=SYSTEM))
    found: list[Line] = []
    merge = SimpleNamespace(put=lambda _, more, *_seen: found.extend(more))
    feed = OrderFeed(cast(Any, node), LogRequest(("gpu1",), since=since), cast(Any, merge))
    with pytest.raises(EOFError):
        feed.read(0, None, lambda: None)
    assert [(line.host, line.source, line.text) for line in found] == [
        ("gpu1", ORDERED, f"ordered by ann@laptop: {what}") for what in shown
    ]
    assert [line.at for line in found] == sorted(line.at for line in found)


def test_an_order_is_shown_where_an_error_follows_it() -> None:
    def line(at: int, source: str, text: str) -> Line:
        return Line(at * SECOND, "gpu1", source, text)

    marks = Marks(lambda one: "ERROR" in one.text)
    first = [line(1, ORDERED, "one"), line(2, ORDERED, "two"), line(3, "vllm", "fine"), line(4, "vllm", "ERROR a")]
    assert [one.text for one in marks.keep(first)] == ["two", "ERROR a"]
    assert [one.text for one in marks.keep([line(5, "vllm", "ERROR b"), line(6, ORDERED, "three")])] == ["ERROR b"]
