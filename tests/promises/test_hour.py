"""P50 on real hosts, for as long as VCLUSTER_MINUTES gives: the model changes, fails and dies while clients ask."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.support.attack import attack
from tests.support.breaks import root
from tests.support.crowd import Crowd
from tests.support.endpoint import MODEL, tunnel
from tests.support.hosts import Sandbox
from tests.support.served import BROKEN, cut_off_weights, node_status, serve
from tests.support.waiting import until
from vllm_cluster.kernel.text import count

pytestmark = [pytest.mark.e2e, pytest.mark.promise, pytest.mark.deep, pytest.mark.timeout(7200)]

MINUTES = float(os.environ.get("VCLUSTER_MINUTES", "10"))
# Two starts, one after the other, beside other work; and until all replicas are back.
PATIENT, BACK = 900.0, 400.0


@pytest.fixture
def two(sandbox: Sandbox) -> Sandbox:
    """Two replicas with one rank each, one a host, whose node is where it was after each course."""
    one = [(f"gpu{n}: {{", f"gpu{n}: {{gpus: 1, ") for n in (1, 2)]
    cluster = sandbox.by(sandbox.rewrite(Path("hour.yaml"), replace=one, add="backend: mp\n"))
    cut_off_weights(cluster)
    return serve(cluster, "--replicas", "2")


def ready(cluster: Sandbox, count: int) -> bool:
    """Whether so many replicas are there and each is ready; of one alone only the model is reported."""
    status = node_status(cluster)
    if status is None or not status["serve"]:
        return False
    phases = [one["phase"] for one in status["replicas"]] if count > 1 else [status["serve"]["phase"]]
    return phases == ["ready"] * count


def asked(cluster: Sandbox, *options: str) -> None:
    cluster.vcluster("serve", "--yes", MODEL, *options, seconds=PATIENT).ok()


def fails(cluster: Sandbox) -> None:
    """What shows only at the load that it cannot be served, under the name of what is served."""
    argv = ("serve", "--yes", BROKEN, "--name", MODEL, "--replicas", "2", "--", "--dtype", "float32")
    failed = cluster.vcluster(*argv, seconds=PATIENT)
    assert failed.code == 1, failed.err


def dies(cluster: Sandbox) -> None:
    root(cluster, "gpu2", "docker exec vcluster-sandbox pkill -KILL -f VLLM::")
    until(lambda: not ready(cluster, 2), 60)


def recreated(cluster: Sandbox) -> None:
    root(cluster, "gpu2", "docker rm -f vcluster-sandbox")
    cluster.vcluster("up", "--yes").ok()


@dataclass(frozen=True)
class Course:
    """What is done, and how many replicas there are then; all others are answered or asked to come later."""

    act: Callable[[Sandbox], object]
    replicas: int = 2
    always: bool = True  # a client that asks again as often as the library does by itself is always answered
    kills: bool = False  # what a replica is answering ends with an error


COURSES = {
    "other flags, replica by replica": Course(lambda c: asked(c, "--replicas", "2", "--", "--max-num-seqs", "8")),
    "one that cannot be served": Course(fails),
    "a rank that is killed": Course(dies, always=False, kills=True),
    "a node that is recreated": Course(recreated, always=False, kills=True),
    "a rollback": Course(lambda c: c.vcluster("rollback", "--yes", seconds=PATIENT).ok()),
    "one replica less": Course(lambda c: asked(c, "--replicas", "1", "--tp", "1", "--pp", "1"), replicas=1),
    "one over both hosts": Course(lambda c: asked(c, "--tp", "2", "--pp", "1"), replicas=1, always=False),
    "two again": Course(lambda c: asked(c, "--replicas", "2"), always=False),
}
ENDED = {"ended by an error", "cut"}


def test_clients_see_no_dropped_connection(two: Sandbox) -> None:
    """Each course once at least."""
    total: Counter[str] = Counter()
    key = two.vcluster("endpoint", "--key").ok().out.strip()
    began, rounds = time.monotonic(), 0
    with attack("P50", "the model is replaced, fails to start, dies, rolls back, grows and shrinks") as measured:
        while not rounds or time.monotonic() - began < MINUTES * 60:
            rounds += 1
            for what, course in COURSES.items():
                with tunnel(two) as url, Crowd(url, key, MODEL, retries=2 if course.always else 0) as crowd:
                    course.act(two)
                    until(partial(ready, two, course.replicas), BACK)
                print(f"{time.monotonic() - began:6.0f} s {what}: {dict(crowd.outcomes)}", flush=True)
                total += crowd.outcomes
                wrong = crowd.wrong.keys() - (ENDED if course.kills else set())
                late = course.always and crowd.outcomes["later"]
                assert not wrong and not late, f"{what}: {dict(crowd.outcomes)}; {two.vcluster('explain').out[-3000:]}"
        ended = sum(total[what] for what in ENDED)
        measured.figure = (
            f"{total['answered']} answers, {total['later']} times 503 with Retry-After, {ended} ended with "
            f"what was killed, 0 else, in {measured.seconds / 60:.0f} minutes; "
            f"{len(COURSES)} changes in {count(rounds, 'round')}"
        )
