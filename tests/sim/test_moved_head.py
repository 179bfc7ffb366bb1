"""The head moves: what the head of before keeps is read by its type, within bounds, and nothing else arrives."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.clock import Clock
from tests.support.serve_requests import cluster, placed
from tests.support.sim import lab, make
from vllm_cluster.kernel.apply.moved_head import MAX_MOVED, MOVE_SECONDS, move_head
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import HostError
from vllm_cluster.kernel.node.handle import NodeHandle
from vllm_cluster.wire.order import Order

VOLUME = "vcluster-lab-state"
ODD = b"of-no-type"


# fault: kernel/apply/moved_head.py: keep(name, written_again(_LINES[name.removesuffix(".1")], lines, f"{source.host}: {name}")) → keep(name, lines)
# fault: kernel/apply/moved_head.py: _document(Ready(files.ready(index))) → files.read(of_replica(READY, index)) or b""
# fault: kernel/apply/moved_head.py: followed.content if followed else last.document → followed.content if followed else raw or b""
def test_only_what_is_read_of_a_head_arrives_on_the_next_one() -> None:
    with lab.cluster(2, lab.do_up, lab.do_serve, lab.do_stop) as world:
        before = world.machines["gpu1"].volumes[VOLUME].files
        kept = dict(before)
        for name in ("wanted.json", "request.json", "ready.json"):
            before[name] = json.dumps({**json.loads(before[name]), "later": ODD.decode()}).encode()
        for name in ("results.jsonl", "audit.jsonl"):
            before[name] += ODD + b"\n" + before[name][:-2].rpartition(b"\n")[2] + b', "later": "%b"}\n' % ODD
        lab.succeed(world, make.inventory(2, head="gpu2"), lab.do_up)
        after = world.machines["gpu2"].volumes[VOLUME].files
    assert [name for name, content in after.items() if ODD in content] == []
    assert json.loads(after["ready.json"])["requests"] == json.loads(kept["ready.json"])["requests"]
    for name in ("results.jsonl", "audit.jsonl"):
        rows, moved = ([json.loads(row) for row in files[name].splitlines()] for files in (kept, after))
        assert rows
        assert all(moved[at].items() >= row.items() for at, row in enumerate(rows))


def moved(read: Any) -> None:
    """Move a head whose order names 16 replicas, each with files that are read so, to a host that is not asked."""
    row = placed({"gpu1": 1}, 1, 1, backend="mp")
    own = [(replace(row.replica.leader, devices=(at,)),) for at in range(16)]
    rows = tuple(replace(row, index=at, replica=replace(row.replica, parts=parts)) for at, parts in enumerate(own))
    order, clock = Order(3, "", rows).document, Clock()
    head = SimpleNamespace(
        host="gpu1",
        name="vcluster-lab",
        connection=SimpleNamespace(runtime=SimpleNamespace(after=partial(Deadline.after, clock=clock))),
        read=lambda name, _most=0, until=None: order if name == "wanted.json" else read(clock, name),
    )
    operation: Any = SimpleNamespace(change=cluster({"gpu1": 16}))
    nowhere: Any = None
    move_head(cast(NodeHandle, head), nowhere, nowhere, "", operation)


# fault: kernel/node/named_files.py: if self._left < 0: → if False:
def test_a_head_that_keeps_too_much_is_named_before_anything_is_written() -> None:
    """Of 3,000 replicas with a file of 3 MiB each the move took 9 GB."""
    sizes = list[int]()

    def large(_clock: Clock, name: str) -> bytes:
        content = bytes(3 << 20) if name.endswith("ready.json") else b"{}"
        sizes.append(len(content))
        return content

    with pytest.raises(HostError, match=r"^gpu1: replica-\d+/ready.json: all that it keeps is more than 32.0 MB"):
        moved(large)
    assert sum(sizes) < MAX_MOVED + (4 << 20)


# fault: kernel/node/named_files.py: if not self._until.left(): → if False:
def test_a_head_that_takes_too_long_is_named_before_anything_is_written() -> None:
    """Of 100 replicas at 100 s a read the move took 9,801 s, with the lease held."""
    clocks = list[Clock]()

    def slow(clock: Clock, _name: str) -> bytes:
        clocks.append(clock)
        clock.sleep(100)
        return b"{}"

    with pytest.raises(HostError, match=r"^gpu1: .*: all that it keeps cannot be read within 300 s"):
        moved(slow)
    assert clocks[0].now == MOVE_SECONDS
