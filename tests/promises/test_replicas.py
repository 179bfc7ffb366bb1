"""P51 on real hosts: one of two replicas goes, or both are changed, and the clients' requests are answered."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.attack import attack
from tests.support.breaks import broken, root
from tests.support.endpoint import MODEL, Asker, tunnel
from tests.support.hosts import Sandbox
from tests.support.served import node_status, serve
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.promise, pytest.mark.deep]

# What P51 gives the front to notice.
NOTICED = 5.0
# So long a host is away: a node without a beat of its head for 10 s has ended its parts by then.
AWAY = 30.0


@pytest.fixture
def two(sandbox: Sandbox) -> Sandbox:
    """Two replicas with one rank each, one a host."""
    one = [(f"gpu{n}: {{", f"gpu{n}: {{gpus: 1, ") for n in (1, 2)]
    cluster = sandbox.by(sandbox.rewrite(Path("replicas.yaml"), replace=one, add="backend: mp\n"))
    return serve(cluster, "--replicas", "2")


def phases(cluster: Sandbox) -> list[str]:
    """How far each replica is."""
    status = node_status(cluster)
    return [str(one["phase"]) for one in status["replicas"]] if status else []


@contextmanager
def client(cluster: Sandbox) -> Iterator[Asker]:
    """A client that asks one request after another."""
    key = cluster.vcluster("endpoint", "--key").ok().out.strip()
    with tunnel(cluster) as url, Asker(url, key, [MODEL]) as asker:
        yield asker


@pytest.mark.parametrize(
    ("what", "command"),
    [
        ("its engine is killed", "docker exec vcluster-sandbox pkill -KILL -f VLLM::EngineCore"),
        ("its container is restarted", "docker restart -t 0 vcluster-sandbox"),
    ],
)
def test_one_of_two_replicas_goes(two: Sandbox, what: str, command: str) -> None:
    """The one on the worker."""
    with attack("P51", f"two replicas, one a host, a client asks; of the one on the worker {what}") as measured:
        root(two, "gpu2", command)
        broke = time.time()
        until(lambda: phases(two)[1:] != ["ready"], 10)
        until(lambda: time.time() - broke > NOTICED, 2 * NOTICED)
        with client(two) as asker:
            until(lambda: phases(two) == ["ready", "ready"], 400)
        back = time.time() - broke
        assert not asker.wrong and not asker.later, asker.wrong
        assert asker.answered
        measured.figure = f"{asker.answered} of {asker.answered} requests answered until it was back after {back:.0f} s"


def test_the_host_of_one_of_two_replicas_goes(two: Sandbox) -> None:
    """Nothing comes from it and nothing gets there, and no side gets an error; it comes back with all that ran."""
    rules = ("INPUT ! -i lo -j DROP", "OUTPUT ! -o lo -j DROP")
    cut, mend = (" && ".join(f"iptables -{what} {rule}" for rule in rules) for what in "ID")
    with attack("P51", "two replicas, one a host, a client asks; the worker cannot be reached for 30 s") as measured:
        with broken(two, "gpu2", cut, mend):
            broke = time.time()
            until(lambda: time.time() - broke > NOTICED, 2 * NOTICED)
            with client(two) as asker:
                until(lambda: phases(two)[1:] != ["ready"], 30)
                until(lambda: time.time() - broke > AWAY, 2 * AWAY)
        with client(two) as later:
            until(lambda: phases(two) == ["ready", "ready"], 400)
        back = time.time() - broke
        assert not (asker.wrong or asker.later or later.wrong or later.later), (asker.wrong, later.wrong)
        assert asker.answered and later.answered
        answered = asker.answered + later.answered
        measured.figure = f"{answered} of {answered} requests answered until it was back after {back:.0f} s"


def test_both_replicas_are_changed(two: Sandbox) -> None:
    """To a smaller batch, one after the other."""
    with attack("P51", "two replicas, one a host, a client asks; both are changed to another flag") as measured:
        began = time.time()
        with client(two) as asker:
            two.vcluster("serve", "--yes", MODEL, "--replicas", "2", "--", "--max-num-seqs", "8").ok()
        took = time.time() - began
        assert not asker.wrong and not asker.later, asker.wrong
        assert asker.answered
        measured.figure = f"{asker.answered} of {asker.answered} requests answered; both changed after {took:.0f} s"
