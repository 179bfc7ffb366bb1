"""The files of a head about what it serves: format 1, which had a command line alone, is read as what it meant."""

from __future__ import annotations

import itertools
import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from tests.support.bounds import within
from tests.support.paths import ROOT
from tests.support.serve_requests import cluster, placed
from tests.support.sim.forging import changed, places, without
from vllm_cluster.kernel.plan import spec
from vllm_cluster.kernel.plan.followed import follow
from vllm_cluster.kernel.plan.placement import serve_command
from vllm_cluster.wire import order
from vllm_cluster.wire.order import Deployment, Order, Placement, Ready, Taken, read_order, read_ready, read_taken
from vllm_cluster.wire.reading import RefusedDocument

LANDED = ROOT / "tests/fixtures/landed/hosts/gpu1/volumes/vcluster-lab-state/wanted.json"
TWO = {"gpu1": 8, "gpu2": 8}


def first(**changed: Any) -> dict[str, Any]:
    """A request as the version before deployments wrote it."""
    now = placed(TWO, 8, 1, ["gpu2"], expose=True, flags=("--seed", "1"), by_default=False)
    return {
        "argv": [*now.replica.leader.argv],
        "env": {"A": "1"},
        "model": "org/llama",
        "name": "llama",
        "host": "10.0.0.1",
        "port": 8000,
        "nodes": {"10.0.0.1": 8, "10.0.0.2": 8},
        "ranks": {"10.0.0.2": 8},
        "hosts": ["10.0.0.2"],
        "by_default": False,
        "rollback": False,
        "probe_timeout_s": 600,
        "loading": ["--safetensors-load-strategy=eager"],
        "generation": "0123456789abcdef",
        **changed,
    }


def raw(serve: Any, **more: Any) -> bytes:
    """The file of format 1 that asks for it."""
    return json.dumps({"v": 1, "epoch": 7, "by": "ada@laptop", "serve": serve, **more}).encode()


def test_a_request_of_format_1_is_what_its_command_line_meant() -> None:
    order = read_order(raw(first()))
    assert (order.epoch, order.by, order.back_to) == (7, "ada@laptop", None)
    assert order.wanted
    asked, replica = order.wanted.deployment, order.wanted.replica
    assert asked == Deployment("llama", "org/llama", ("--seed", "1"), 8, 1, ("10.0.0.2",), expose=True, rollback=False)
    assert serve_command(asked, {"10.0.0.2": "gpu2"}) == (
        "vcluster serve org/llama --name llama --tp 8 --pp 1 --hosts gpu2 --expose --no-rollback -- --seed 1"
    )
    assert (replica.tp, replica.pp, replica.host, replica.ranks) == (8, 1, "10.0.0.1", {"10.0.0.2": 8})
    # What the node runs, to the word.
    assert [*replica.leader.argv] == [*first()["argv"], "--safetensors-load-strategy=eager"]
    assert (replica.leader.address, replica.leader.env) == ("10.0.0.1", {"A": "1"})


# fault: kernel/plan/placement.py: return Placement(before.generation if before and same else name, → return Placement(name,
def test_what_format_1_asked_for_keeps_running_where_the_hosts_stay() -> None:
    """Its name stays too, though it would have another one today: else it would be stopped and started."""
    assert follow(raw(first()), cluster(TWO)) is None
    moved = follow(raw(first()), cluster({"gpu1": 8, "gpu3": 8}, {"10.0.0.2": "gpu3"}))
    assert moved and (wanted := read_order(moved.content).wanted)
    assert (wanted.deployment.hosts, wanted.generation) == (("gpu3",), "0123456789abcdef")
    assert moved.text == "llama is served on 10.0.0.3, before on 10.0.0.2"


def test_the_request_of_the_first_release_is_read() -> None:
    wanted = read_order(LANDED.read_bytes()).wanted
    assert wanted
    assert (wanted.replica.leader.argv[:2], wanted.replica.ranks) == (("vllm", "serve"), {"10.0.0.1": 2, "10.0.0.2": 2})
    assert wanted.replica.tp * wanted.replica.pp > 1


def test_what_a_head_of_format_1_knows_is_read() -> None:
    known = {"number": 3, "asked": first(), "by": "", "began": ["boot", 1.5], "back_to": None, "failed": None}
    found = read_taken(json.dumps({**known, "ready": True, "ended": True}).encode())
    assert (found.number, found.began, found.ready) == (3, ("boot", 1.5), True)
    assert found.served and found.served.deployment.name == "llama"
    ready = read_ready(json.dumps({"v": 1, "requests": [{**first(), "ready_at": 1.0}]}).encode())
    assert [one.generation for one in ready.requests] == ["0123456789abcdef"]


def test_nothing_wanted_is_written_as_every_version_reads_it() -> None:
    assert json.loads(Order(4, "ada@laptop").document) == {"v": 1, "epoch": 4, "by": "ada@laptop", "serve": None}


# fault: kernel/plan/spec.py: FORMAT = 3 → FORMAT = 2
def test_an_older_vcluster_refuses_a_node_whose_files_it_cannot_read() -> None:
    """It recreated the node, whose older program then ended at each start: it looks at the label alone."""
    assert (spec.FORMAT, order.FORMAT_OF_MODELS) == (3, 5), "where one is raised, so is the other"


def test_a_file_is_what_was_written() -> None:
    one, other = placed(TWO, 8, 2), placed(TWO, 8, 1)
    order = Order(3, "ada@laptop", (one,), (other,))
    assert read_order(order.document) == order
    taken = Taken(3, one, "ada@laptop", ("boot", 1.0), other)
    assert read_taken(json.dumps(taken.document).encode()) == taken
    assert read_ready(json.dumps(Ready((one, other)).document).encode()) == Ready((one, other))


NEW = json.loads(Order(3, "", (placed(TWO, 8, 2),)).document)


# fault: wire/first_order.py: return found[-1] → return next(iter(found))
@pytest.mark.parametrize(
    ("document", "why"),
    [
        ({}, "another version"),
        ([], "must be an object"),
        ({**NEW, "v": 6}, "another version"),
        ({**NEW, "v": True}, "another version"),
        ({**NEW, "deployments": NEW["deployments"] * 2}, "has a replica twice"),
        (json.loads(json.dumps(NEW).replace('"gpus": 8', '"gpus": 1025')), "from 0 to 1024"),
        ({**NEW, "deployments": [*NEW["deployments"], {**NEW["deployments"][0], "index": 1}]}, "gives a GPU to two"),
        ({"v": 1, "serve": []}, "format 1"),
        ({"v": 1, "serve": {**first(), "nodes": {}}}, "format 1"),
        ({"v": 1, "serve": {**first(), "argv": ["vllm"]}}, "format 1"),
        ({"v": 1, "serve": {**first(), "argv": ["vllm", "serve", "m", "--served-model-name=m"]}}, "format 1"),
        ({"v": 1, "serve": {**first(), "nodes": 5}}, "format 1"),
        ({"v": 1, "serve": first(env={"A": 1})}, "must be text"),
        ({"v": 1, "serve": first(ranks={"10.0.0.2": -1})}, "must be from 0"),
        ({"v": 1, "serve": first(argv=[*first()["argv"], "a\0b"])}, "NUL"),
    ],
)
def test_what_no_laptop_wrote_is_refused(document: Any, why: str) -> None:
    with pytest.raises(RefusedDocument, match=why):
        read_order(json.dumps(document).encode())


# fault: wire/order.py: if len(placed) > MAX_PLACED: → if len(placed) > 10 * MAX_PLACED:
@pytest.mark.parametrize(("count", "parts", "good"), [(8_000, 1, False), (3_000, 1, True), (90, 100, True)])
def test_a_document_of_thousands_of_replicas_is_read_in_seconds(count: int, parts: int, *, good: bool) -> None:
    """Each was compared with each: one of 2 MB from a head kept a laptop for minutes."""
    row = NEW["deployments"][0]
    part = {**row["replica"]["parts"][0], "gpus": 1}
    hosts = [{**part, "address": f"10.0.0.{number}"} for number in range(1, parts + 1)]
    rows = [
        {**row, "index": at, "replica": {**row["replica"], "parts": [{**one, "devices": [at]} for one in hosts]}}
        for at in range(count)
    ]
    raw = json.dumps({**NEW, "v": 5, "deployments": [shortest(one) for one in rows]}).encode()
    with within(20):
        if good:
            assert len(read_order(raw).deployments) == count
        else:
            with pytest.raises(RefusedDocument, match="more than"):
                read_order(raw)


def shortest(row: dict[str, Any]) -> dict[str, Any]:
    """A placement without what may be left out."""
    parts = [{**one, "argv": ["vllm", "serve"], "env": {}} for one in row["replica"]["parts"]]
    replica = {key: row["replica"][key] for key in ("tp", "pp", "host", "port")}
    return {**row, "deployment": {"name": "a", "model": "a"}, "replica": {**replica, "parts": parts}}


@pytest.mark.parametrize(
    ("first", "second", "meet"),
    [((), (), True), ((0, 1), (), True), ((), (0,), True), ((0, 1), (1, 2), True), ((0, 1), (2,), False)],
)
def test_replicas_meet_in_a_document_as_they_meet_one_by_one(
    first: tuple[int, ...], second: tuple[int, ...], *, meet: bool
) -> None:
    (one,) = Order(3, "", (placed(TWO, 8, 2),)).deployments

    def on(devices: tuple[int, ...], index: int) -> Placement:
        parts = tuple(replace(part, gpus=len(devices) or 8, devices=devices) for part in one.replica.parts)
        return replace(one, index=index, replica=replace(one.replica, parts=parts))

    assert on(first, 0).meets(on(second, 1)) == meet
    if meet:
        with pytest.raises(ValueError, match="gives a GPU to two"):
            Order(3, "", (on(first, 0), on(second, 1)))
    else:
        assert Order(3, "", (on(first, 0), on(second, 1)))


OTHER: tuple[Any, ...] = (
    None,
    [],
    {},
    "",
    "x",
    5,
    -1,
    True,
    1e308,
    "9" * 5000,
    ["x"],
    [None],
    {"a": "b"},
    "--served-model-name=",
    "\0",
)


@pytest.mark.promise("P23", "P43")
def test_a_request_of_format_1_is_read_or_refused_with_anything_at_any_place() -> None:
    """Whoever may use the host's Docker can write it."""
    documents = [json.loads(raw(first())), {"v": 1, "requests": [first()]}, {"asked": first(), "back_to": first()}]
    for document, read in zip(documents, (read_order, read_ready, read_taken), strict=True):
        for at, other in itertools.product(places(document), OTHER):
            with suppress(RefusedDocument):
                read(json.dumps(changed(document, at, other)).encode())
        for at in [*places(document)][1:]:
            with suppress(RefusedDocument):
                read(json.dumps(without(document, at)).encode())
