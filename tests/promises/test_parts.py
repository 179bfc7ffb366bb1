"""P52 on real hosts joined without Ray: each part of an engine ends, hangs or is cut off."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import pytest

from tests.support.attack import attack
from tests.support.breaks import HOSTS, broken, root
from tests.support.endpoint import PROMPT
from tests.support.hosts import Sandbox
from tests.support.served import addresses, ready_since, serve, until_ready_again
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.promise, pytest.mark.deep]

HEAD, WORKER = HOSTS
API = "bin/vllm serve"
IN = "docker exec vcluster-sandbox"
# What P52 promises: an end, a hang, and what holds a GPU after its head is gone. One look takes a second.
ENDED, HANGS, ORPHANS, LOOK = 6.0, 30.0, 10.0, 1.0
Break = Callable[[Sandbox], AbstractContextManager[None]]


def signalled(host: str, process: str, signal: str) -> Break:
    """Send a signal to processes of vLLM."""

    def send(cluster: Sandbox) -> AbstractContextManager[None]:
        root(cluster, host, f"{IN} pkill -{signal} -f '{process}'")
        return nullcontext()

    return send


@contextmanager
def cut(cluster: Sandbox) -> Iterator[None]:
    """Nothing gets from one host to the other, and none gets an error."""
    other = addresses(cluster)[WORKER]
    rules = (f"INPUT -s {other} -j DROP", f"OUTPUT -d {other} -j DROP")
    add, delete = (" && ".join(f"iptables -{what} {rule}" for rule in rules) for what in "ID")
    with broken(cluster, HEAD, add, delete):
        yield


def restarted(host: str) -> Break:
    """End the container of a node, which Docker starts again."""

    def restart(cluster: Sandbox) -> AbstractContextManager[None]:
        root(cluster, host, "docker restart -t 0 vcluster-sandbox")
        return nullcontext()

    return restart


def processes(cluster: Sandbox) -> set[str]:
    """The processes of vLLM that hold GPUs, with their start, so that a number that is used again is another one."""
    script = f"{IN} ps -eo lstart,pid,args | awk '/[V]LLM::/ {{ print $4, $6 }}'"
    return {f"{host} {line}" for host in HOSTS for line in root(cluster, host, script).splitlines()}


@pytest.mark.parametrize(
    ("what", "do", "limit"),
    [
        ("the API server is killed", signalled(HEAD, API, "KILL"), ENDED),
        ("the worker's whole part is killed", signalled(WORKER, API, "KILL"), ENDED),
        ("the rank on the head is stopped (SIGSTOP)", signalled(HEAD, "VLLM::Worker", "STOP"), HANGS),
        ("the engine is stopped (SIGSTOP)", signalled(HEAD, "VLLM::EngineCore", "STOP"), HANGS),
        ("the container of the head is restarted", restarted(HEAD), ENDED),
        ("the rank on the worker is killed", signalled(WORKER, "VLLM::Worker", "KILL"), ENDED),
        ("the rank on the head is killed", signalled(HEAD, "VLLM::Worker", "KILL"), ENDED),
        ("the engine is killed", signalled(HEAD, "VLLM::EngineCore", "KILL"), ENDED),
        ("the rank on the worker is stopped (SIGSTOP)", signalled(WORKER, "VLLM::Worker", "STOP"), HANGS),
        ("the container of the worker is restarted", restarted(WORKER), ENDED),
        ("the link between the hosts is cut", cut, HANGS),
    ],
)
def test_a_part_of_an_engine_without_ray(sandbox: Sandbox, what: str, do: Break, limit: float) -> None:
    course(sandbox, ("--tp", "2", "--pp", "1"), f"TP=2 over two hosts without Ray: {what}", do, limit)


@pytest.mark.parametrize(
    ("what", "do", "limit"),
    [
        ("the engine on the worker is killed", signalled(WORKER, "VLLM::EngineCore", "KILL"), ENDED),
        ("the engine on the worker is stopped (SIGSTOP)", signalled(WORKER, "VLLM::EngineCore", "STOP"), HANGS),
    ],
)
def test_an_engine_of_several_behind_one_api(sandbox: Sandbox, what: str, do: Break, limit: float) -> None:
    course(sandbox, ("--dp", "2"), f"DP=2 over two hosts: {what}", do, limit)


def course(sandbox: Sandbox, layout: tuple[str, ...], what: str, do: Break, limit: float) -> None:
    """Serve the layout, break it, and wait until it answers again."""
    one = [(f"gpu{n}: {{", f"gpu{n}: {{gpus: 1, ") for n in (1, 2)]
    cluster = sandbox.by(sandbox.rewrite(Path("parts.yaml"), replace=one, add="backend: mp\n"))
    serve(cluster, *layout)
    before = processes(cluster)
    with attack("P52", what) as measured:
        began = time.time()
        with do(cluster):
            until(lambda: ready_since(cluster) is None, limit + LOOK)
            noticed = time.time() - began
            until(lambda: not processes(cluster) & before, ORPHANS)
            gone = time.time() - began
        _, ready = until_ready_again(cluster, began, 400)
        cluster.vcluster("complete", PROMPT, "--max-tokens", "4").ok()
        measured.figure = (
            f"noticed after {noticed:.1f} s, all ended after {gone:.1f} s, ready again after {ready:.0f} s"
        )
