"""P41: failures that are made on real hosts one after the other, so that older ones are in the logs."""

from __future__ import annotations

import subprocess
import time
from typing import NamedTuple

import pytest

from tests.support.attack import attack
from tests.support.breaks import broken, root
from tests.support.endpoint import MODEL
from tests.support.hosts import Sandbox
from tests.support.served import SNAPSHOT, ready_since, serve, until_ready_again, with_secrets

pytestmark = [pytest.mark.e2e, pytest.mark.promise, pytest.mark.deep]

IN = "docker exec vcluster-sandbox"
LIMIT = 300.0
# Results that name no failure of now.
QUIET = ("healed", "healthy", "unfinished", "nothing")
Headline = tuple[int, str, str]


class Start(NamedTuple):
    """A start that fails: what is done to a copy of the model, what is asked for, and what must be named."""

    what: str
    change: str
    asked: tuple[str, ...]
    cause: str


STARTS = (
    Start("weights that are cut off", "truncate -s -1000 model.safetensors", ("./made",), "file-incomplete"),
    Start("no tokenizer", "rm tokenizer*", ("./made",), "tokenizer-missing"),
    Start("a tokenizer.json that is cut off", "truncate -s -200 tokenizer.json", ("./made",), "file-incomplete"),
    Start("no weights", "rm *.safetensors", ("./made",), "weights-missing"),
    Start(
        "an adapter that is not there", "true", (MODEL, "--", "--enable-lora", "--lora-modules", "a=/n"), "lora-unfit"
    ),
    Start("the parser of another model", "true", (MODEL, "--", "--reasoning-parser", "deepseek_r1"), "parser-mismatch"),
)


def kill(signal: str, process: str) -> str:
    """The script that sends a signal to the first process of a node with these words in its command."""
    return f"{IN} sh -c 'kill -{signal} $(pgrep -o -f \"{process}\")'"


UPDATE = "docker update --memory {0} --memory-swap {0} vcluster-sandbox"
# cgroups of version 2 and 1; Docker refuses a limit below what is in use.
USED = "cat /sys/fs/cgroup/memory.current || cat /sys/fs/cgroup/memory/memory.usage_in_bytes"
HOG = "import time; held = bytes([1]) * (400 << 20); time.sleep(120)"
MORE = UPDATE.format("$((used + (48 << 20)))")
LIMITED = f"used=$({IN} sh -c '{USED}') && {MORE} && docker exec -d vcluster-sandbox python3 -c '{HOG}'"

# What is done to what serves, on which host, and what may be named until it serves again.
RANK, ENGINE = "^ray::RayWorker", "^VLLM::EngineCore"
FIRST = "kill -9 $(docker inspect -f '{{.State.Pid}}' vcluster-sandbox)"
GONE = ("node-lost", "peer-gone", "rank-killed", "ray-process-aborted")
ENDS = (
    ("SIGSEGV of a rank", "gpu2", kill("SEGV", RANK), ("rank-killed",)),
    ("kill -9 of the API server", "gpu1", kill("KILL", "vllm serve"), ("rank-killed", "peer-gone", "engine-died")),
    ("SIGSTOP of the engine", "gpu1", kill("STOP", ENGINE), ("process-stopped",)),
    ("SIGSTOP of a rank", "gpu2", kill("STOP", RANK), ("engine-hung",)),
    ("kill -9 of a raylet", "gpu2", kill("KILL", "raylet/raylet"), GONE),
    ("kill -9 of a node's first process", "gpu2", FIRST, GONE),
)


def headline(cluster: Sandbox) -> Headline:
    """The exit code of `explain`, its result, and what it names."""
    asked = cluster.vcluster("explain", "--json")
    found = asked.json()
    named = found["cause"] or found["symptom"]
    return asked.code, found["result"], named["id"] if named else ""


@pytest.mark.cluster("up", leaves="up")
def test_a_start_that_fails_is_named_by_its_own_cause_not_by_an_older_one(cluster: Sandbox) -> None:
    copy = f"rm -rf /models/made && mkdir /models/made && cp -L {SNAPSHOT}/* /models/made && cd /models/made"
    for row in STARTS:
        with attack("P41", f"made on real hosts, older failures in the logs: {row.what}") as measured:
            root(cluster, "gpu1", f"{copy} && {row.change}")
            failed = cluster.vcluster("serve", "--yes", "--no-rollback", "--hosts", "gpu1", *row.asked)
            assert (failed.code, f"cause ({row.cause})" in failed.err) == (1, True), failed.err
            # A folder is named as every verb takes it.
            assert "vcluster pull /" not in failed.err
            assert headline(cluster) == (0, "explained", row.cause)
            measured.figure = f"serve: exit 1, cause ({row.cause}); explain: the same"
    cluster.vcluster("stop", "--yes").ok()


def until_named(cluster: Sandbox, began: float) -> Headline:
    """The first answer that names a failure; the last one where what serves is back before that."""
    while True:
        found = headline(cluster)
        if found[1] not in QUIET or (ready_since(cluster) or 0.0) > began:
            return found
        assert time.time() - began < LIMIT, found


@pytest.mark.parametrize(("what", "host", "script", "names"), ENDS, ids=[row[0] for row in ENDS])
def test_what_ends_while_it_serves_is_named(
    sandbox: Sandbox, what: str, host: str, script: str, names: tuple[str, ...]
) -> None:
    cluster = serve(with_secrets(sandbox))
    with attack("P41", f"made on real hosts, older failures in the logs: {what}") as measured:
        began = time.time()
        root(cluster, host, script)
        code, result, named = until_named(cluster, began)
        assert result in QUIET or (code, named in names) == (1, True), (code, result, named)
        until_ready_again(cluster, began, LIMIT)
        restarts = cluster.vcluster("explain", "--json").json()["restarts"]
        assert restarts and restarts[-1]["failure"]
        measured.figure = f"{named or result}, exit {code}; afterwards the restart with its reason"


def test_memory_that_a_node_may_not_have(sandbox: Sandbox) -> None:
    """A limit at what it has already, and a program in it that wants more: the kernel kills the largest."""
    cluster = serve(with_secrets(sandbox))
    began = time.time()
    with attack("P41", "made on real hosts, older failures in the logs: a node's memory is limited") as measured:
        with broken(cluster, "gpu2", LIMITED, UPDATE.format("64g")):
            code, result, named = until_named(cluster, began)
            assert (code, named in ("host-memory-full", *GONE)) in ((0, True), (1, True)), (code, result, named)
        until_ready_again(cluster, began, LIMIT)
        measured.figure = f"{named or result}, exit {code}"


def test_a_host_that_is_off_and_a_link_that_is_cut(sandbox: Sandbox) -> None:
    cluster = serve(with_secrets(sandbox))
    began = time.time()
    head = next(row["address"] for row in cluster.vcluster("status", "--json").json()["hosts"] if row["host"] == "gpu1")
    rules = (f"OUTPUT -d {head} -j DROP", f"INPUT -s {head} -j DROP")
    cut, undo = (" && ".join(f"iptables -{what} {rule}" for rule in rules) for what in "ID")
    with attack("P41", "made on real hosts, older failures in the logs: a link between hosts is cut") as measured:
        with broken(cluster, "gpu2", cut, undo):
            found = until_named(cluster, began)
            assert (found[0], found[2] in ("node-lost", "peer-gone", "")) == (1, True), found
            # One that is whole again within seconds costs nothing.
            while ready_since(cluster) is not None:
                assert time.time() - began < LIMIT, "it is still ready"
        measured.figure = f"{found[2] or found[1]}, exit 1"
    until_ready_again(cluster, began, LIMIT)
    with attack("P41", "made on real hosts, older failures in the logs: a host is off") as measured:
        began = time.time()
        subprocess.run(["docker", "kill", cluster.container("gpu2")], check=True, capture_output=True)
        try:
            found = until_named(cluster, began)
            assert found in ((0, "explained", "host-unreachable"), (1, "symptom", "node-lost")), found
        finally:
            subprocess.run(["docker", "start", cluster.container("gpu2")], check=True, capture_output=True)
        measured.figure = f"{found[2]}, exit {found[0]}"
    until_ready_again(cluster, began, LIMIT)
