"""What a node reports, read strictly enough to trust and loosely enough to last; and Ray's nodes against the plan."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_cluster.kernel.plan.node_status import (
    GroupMembership,
    UnreadableStatus,
    absent,
    compare_members,
    current,
    parse_status,
)
from vllm_cluster.serving.node.replicas import LINES_BYTES
from vllm_cluster.serving.status.on_host import sample
from vllm_cluster.wire.reading import convert
from vllm_cluster.wire.roll import Roll
from vllm_cluster.wire.status import MAX_STATUS, GroupNode


def document(**changed: Any) -> bytes:
    failure = {"time": 1.5, "summary": "it ended", "lines": ["ValueError: why", "more"]}
    serve = {
        "generation": "g",
        "model": "m",
        "name": "n",
        "host": "127.0.0.1",
        "port": 8000,
        "phase": "loading",
        "detail": "shards 1/2",
        "progress": [1, 2],
        "since": 3.0,
        "attempt": 2,
        "gpus": [4.0, 4],
        "first_failure": failure,
        "failure": None,
        "ready_at": None,
        "seconds_to_ready": None,
    }
    ray = {
        "state": "up",
        "restarts": 1,
        "error": None,
        "version": "2.56.1",
        "nodes": [{"id": "a", "address": "10.0.0.1", "alive": True, "gpus": 2.0}],
    }
    return json.dumps({"v": 1, "role": "head", "updated": 2.5, "group": ray, "serve": serve, **changed}).encode()


def test_reads_what_a_node_writes() -> None:
    status = parse_status(document(later="a key that a newer node has"), "gpu1")
    assert status.group.nodes == (GroupNode("a", "10.0.0.1", True, 2.0),)
    assert status.serve is not None
    assert (status.serve.phase, status.serve.progress) == ("loading", (1, 2))
    assert status.serve.first_failure is not None
    assert status.serve.first_failure.lines == ("ValueError: why", "more")
    assert parse_status(document(serve=None), "gpu1").serve is None


# fault: wire/status.py: gpus: tuple[AllGpus, AllGpus] → gpus: tuple[Gpus, Gpus]
def test_the_gpus_of_256_hosts_are_a_status() -> None:
    """The limit of one host was that of all of them: with more than 1024 GPUs no command could read the status."""
    raw = document().replace(b"[4.0, 4]", b"[2048.0, 4096]")
    status = parse_status(raw, "gpu1")
    assert status.serve and status.serve.gpus == (2048, 4096)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"null", b"{}", b'{"v": 1}', document(group={}), b"\xff"])
def test_what_no_node_writes_is_one_clear_error(raw: bytes) -> None:
    with pytest.raises(UnreadableStatus, match="cannot be read"):
        parse_status(raw, "gpu1")


# fault: wire/reading.py: if isinstance(value, int | float) and not -MAX_NUMBER <= value < MAX_NUMBER: → if False:
@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", "-1e999"])
@pytest.mark.parametrize("place", ['"gpus": 2.0', '"updated": 2.5', '"since": 3.0', '"gpus": [4.0'])
def test_a_number_that_json_does_not_have_is_refused(number: str, place: str) -> None:
    """Python reads and writes NaN as JSON; whoever reads `status --json` does not."""
    raw = document().decode()
    assert place in raw
    key, bracket = place.split(": ", maxsplit=1)[0], "[" * ("[" in place)
    with pytest.raises(UnreadableStatus, match="cannot be read"):
        parse_status(raw.replace(place, f"{key}: {bracket}{number}").encode(), "gpu1")


def test_another_version_is_refused_politely() -> None:
    with pytest.raises(UnreadableStatus, match="version 2; this vcluster reads version 1"):
        parse_status(document(v=2), "gpu1")


@given(st.binary(max_size=200))
def test_no_bytes_are_a_traceback(raw: bytes) -> None:
    with pytest.raises(UnreadableStatus):
        parse_status(raw, "gpu1")


def node(address: str, gpus: float = 2, *, alive: bool = True) -> GroupNode:
    return GroupNode(f"id-{address}-{gpus}", address, alive, gpus)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([node("a"), node("b")], GroupMembership((), (), (), 4, 4)),
        ([node("a"), node("b", 0, alive=False)], GroupMembership(("b",), (), (), 2, 4)),
        ([node("a"), node("b", 1)], GroupMembership((), (), ("b",), 3, 4)),
        ([node("a"), node("b"), node("c", 8)], GroupMembership((), ("c",), (), 4, 4)),
        ([node("a"), node("b"), node("b", 2)], GroupMembership((), (), ("b",), 6, 4)),
        ([node("a", 0, alive=False), node("a"), node("b")], GroupMembership((), (), (), 4, 4)),
        ([], GroupMembership(("a", "b"), (), (), 0, 4)),
    ],
)
def test_membership(nodes: list[GroupNode], expected: GroupMembership) -> None:
    found = compare_members({"a": 2, "b": 2}, nodes)
    assert found == expected
    assert found.complete == (nodes in ([node("a"), node("b")], [node("a", 0, alive=False), node("a"), node("b")]))


# fault: kernel/plan/node_status.py: if age <= status.beat * MISSED_BEATS else _distrusted(status, age) →
@pytest.mark.promise("P38")
@pytest.mark.parametrize(
    ("updated", "started", "now", "found"),
    [
        (100.0, 90.0, 104.0, "loading"),
        (100.0, 90.0, 129.0, "loading"),
        (100.0, 90.0, 131.0, "unknown"),  # stopped, or a full disk
        (100.0, 101.0, 102.0, None),  # of the start before this one
        (100.0, 101.5, 101.0, None),  # Docker's time comes in whole seconds
        (100.0, 7300.0, 104.0, "loading"),  # the clock was put back by two hours after the start
        (100.0, 7300.0, 200.0, "unknown"),
        (7300.0, 90.0, 104.0, "unknown"),  # written before the clock was put back, and not since
    ],
)
def test_a_status_counts_while_it_is_recent(updated: float, started: float, now: float, found: str | None) -> None:
    worth = current(parse_status(document(updated=updated, beat=5.0), "gpu1"), started, now)
    assert (worth.serve.phase if worth and worth.serve else None) == found
    if found == "unknown":
        assert worth is not None
        assert (worth.group.state, worth.group.nodes) == ("unknown", ())


@pytest.mark.parametrize(("started", "found"), [(90.0, True), (101.0, False)])
def test_a_node_of_an_earlier_version_counts_at_any_age(started: float, found: bool) -> None:
    assert (current(parse_status(document(updated=100.0), "gpu1"), started, 10_000.0) is not None) is found


# fault: kernel/plan/node_status.py: if state != "here"} → if not state}
def test_who_is_not_here_by_the_roll() -> None:
    rows = [("gpu1", "10.0.0.1", "here"), ("gpu2", "10.0.0.2", "silent"), ("gpu3", "10.0.0.3", "gone")]
    nodes = [{"host": host, "address": at, "gpus": 8, "state": state, "since": 1.0} for host, at, state in rows]
    planned = {f"10.0.0.{number}": f"gpu{number}" for number in range(1, 5)}
    assert absent(convert(Roll, {"nodes": nodes}, "gpu1"), planned) == {
        "gpu2": "its node sends no beat",
        "gpu3": "its node has gone",
        "gpu4": "its node has not joined",
    }
    assert absent(None, planned) == {}


def many(count: int, **changed: Any) -> list[dict[str, Any]]:
    """So many replicas."""
    serve = json.loads(document())["serve"]
    return [{**serve, "index": number, **changed} for number in range(count)]


# fault: kernel/plan/node_status.py: found = document(raw, what, MAX_STATUS) → found = document(raw, what)
def test_a_status_that_takes_much_memory_is_refused() -> None:
    """Of 3 MB with one emoji a text the dashboard took 120 MB."""
    long = document(replicas=many(32, last_line="\N{GRINNING FACE}" + "x" * 50_000))
    with pytest.raises(UnreadableStatus, match=f"is larger than {MAX_STATUS} bytes"):
        parse_status(long, "gpu1")
    assert sample.MAX_STATUS == MAX_STATUS


def test_a_status_of_many_replicas_that_failed_is_read() -> None:
    """As the largest cluster may write it: a cause of 1,000 characters is in each of these."""
    cause = "x" * 1000
    failure = {"time": 1.0, "summary": f"vLLM ended with exit code 1: {cause}", "lines": []}
    replicas = many(64, detail=cause, last_line=cause, failure=failure, first_failure=failure)
    group = json.loads(document())["group"]
    node = {"id": "0" * 56, "address": "10.100.100.100", "alive": False, "gpus": 8.0}
    group["nodes"] = [node] * 1256
    row = {"host": "g" * 63, "address": "10.100.100.100", "gpus": 8, "state": "here", "since": 1.0e9 + 0.123}
    nodes = [row] * 512
    raw = document(replicas=replicas, group=group, roll={"nodes": nodes, "error": cause})
    assert len(raw) + LINES_BYTES < MAX_STATUS
    found = parse_status(raw, "gpu1")
    assert (len(found.replicas), len(found.group.nodes), found.roll and len(found.roll.nodes)) == (64, 1256, 512)


# fault: wire/status.py: nodes: Annotated[tuple[GroupNode, ...], first(MAX_NODES)] → nodes: tuple[GroupNode, ...]
# fault: wire/roll.py: nodes: Annotated[tuple[RollNode, ...], first(MAX_NODES)] → nodes: tuple[RollNode, ...]
# fault: wire/status.py: ranks: Annotated[Mapping[Address, Count], at_most(MAX_HOSTS)] → ranks: Mapping[Address, Count]
# fault: wire/status.py: if sum(len(one.ranks) for one in self.replicas) > MAX_OF_ALL: → if False:
def test_a_status_has_no_more_nodes_than_a_cluster() -> None:
    """A row of 68 bytes takes 1 kB here, and each that is not of the inventory was a host of its own."""
    group = json.loads(document())["group"]
    group["nodes"] = [{"id": "a", "address": "10.0.0.1", "alive": True, "gpus": 1}] * 5000
    rows = [{"host": "a", "address": "10.0.0.1", "gpus": 1, "state": "here", "since": 1}] * 5000
    found = parse_status(document(group=group, roll={"nodes": rows}), "gpu1")
    assert found.roll
    assert (len(found.group.nodes), len(found.roll.nodes)) == (2048, 1024)
    ranks = {f"10.0.{number // 250}.{number % 250}": 1 for number in range(513)}
    with pytest.raises(UnreadableStatus, match=r"replicas\.0\.ranks has more than 512 entries"):
        parse_status(document(replicas=many(1, ranks=ranks)), "gpu1")
    ranks.popitem()
    assert parse_status(document(replicas=many(16, ranks=ranks)), "gpu1")
    with pytest.raises(UnreadableStatus, match="has ranks on more than 8192 hosts"):
        parse_status(document(replicas=many(17, ranks=ranks)), "gpu1")
