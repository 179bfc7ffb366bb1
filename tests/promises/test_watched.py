"""P38 and P28 on real hosts: what stops behind a good face is not ready for long; models of every kind can be."""

from __future__ import annotations

import time

import pytest

from tests.support.attack import attack
from tests.support.breaks import root
from tests.support.endpoint import MODEL
from tests.support.hosts import Sandbox
from tests.support.served import serve, until_ready_again, with_secrets

pytestmark = [pytest.mark.e2e, pytest.mark.promise, pytest.mark.deep]

IN = "docker exec vcluster-sandbox"
NODE = "'^python3 /opt/vcluster/node.py head'"
STATE = "/var/lib/vcluster"
# What P38 promises.
LIMIT = 30.0
_GET = "c.request('GET', '/health'); print(c.getresponse().status)"
HEALTH = f"import http.client as h; c = h.HTTPConnection('127.0.0.1', 8000, timeout=9); {_GET}"


def phase(cluster: Sandbox) -> tuple[str, str]:
    """The phase of what is served and its detail, as a person sees them."""
    serving = cluster.vcluster("status", "--json").json()["serving"]
    return serving["phase"], serving["detail"]


def until_not_ready(cluster: Sandbox, began: float) -> tuple[float, str]:
    """The seconds until `status` does not show ready any more, and what it shows then."""
    while True:
        now, detail = phase(cluster)
        if now != "ready":
            return time.monotonic() - began, f"{now}: {detail}"
        assert time.monotonic() - began < LIMIT, "still ready"


@pytest.mark.parametrize(
    ("host", "process", "why"),
    [
        ("gpu1", "VLLM::EngineCore", "stopped by a signal"),
        # Of other hosts the head sees no process of Ray's, but that no step is made.
        ("gpu2", "^ray::RayWorker", "has made no step for"),
    ],
)
def test_an_engine_that_hangs_behind_a_good_health(sandbox: Sandbox, host: str, process: str, why: str) -> None:
    cluster = serve(with_secrets(sandbox))
    with attack("P38", f"{process.strip('^')} on {host} is stopped (SIGSTOP), /health still answers 200") as measured:
        broke, began = time.time(), time.monotonic()
        root(cluster, host, f"{IN} pkill -STOP -f {process}")
        health = cluster.docker("gpu1", "exec", "vcluster-sandbox", "python3", "-c", HEALTH)
        assert health.strip() == "200"
        took, said = until_not_ready(cluster, began)
        assert why in said
        _, ready = until_ready_again(cluster, broke, 400)
        measured.figure = f"ready for {took:.0f} s more, then '{said}'; serving again after {ready:.0f} s"


def test_a_node_program_that_is_stopped(sandbox: Sandbox) -> None:
    cluster = serve(with_secrets(sandbox))
    with attack("P38", "the head's node program is stopped (SIGSTOP)") as measured:
        began = time.monotonic()
        root(cluster, "gpu1", f"{IN} pkill -STOP -f {NODE}")
        try:
            took, said = until_not_ready(cluster, began)
            assert "the node program has not written its status for" in said
            assert cluster.vcluster("status", "--json").json()["up"] is False
        finally:
            root(cluster, "gpu1", f"{IN} pkill -CONT -f {NODE}")
        measured.figure = f"ready for {took:.0f} s more, then '{said}'"
    while phase(cluster)[0] != "ready":
        assert time.monotonic() - began < 300


def test_a_disk_that_takes_nothing(sandbox: Sandbox) -> None:
    """A folder in the place of the new file: every write of the status fails, as on a full disk, for root too."""
    cluster = serve(with_secrets(sandbox))
    with attack("P38", "the head's disk takes no status any more, and vLLM is killed") as measured:
        began = time.monotonic()
        root(cluster, "gpu1", f"{IN} mkdir {STATE}/status.json.new")
        try:
            root(cluster, "gpu1", f"{IN} pkill -9 -f 'vllm serve'")
            took, said = until_not_ready(cluster, began)
            log = cluster.docker("gpu1", "logs", "--since", "3m", "vcluster-sandbox")
            assert log.count("cannot write") <= 2
        finally:
            root(cluster, "gpu1", f"{IN} rmdir {STATE}/status.json.new")
        measured.figure = f"ready for {took:.0f} s more, then '{said}'; {log.count('cannot write')} line in the log"
    while phase(cluster)[0] != "ready":
        assert time.monotonic() - began < 400


@pytest.mark.parametrize(
    ("kind", "flags"),
    [
        ("embedding", ("--runner", "pooling", "--convert", "embed")),
        ("classification", ("--runner", "pooling", "--convert", "classify")),
    ],
)
def test_a_model_that_generates_nothing(sandbox: Sandbox, kind: str, flags: tuple[str, ...]) -> None:
    cluster = with_secrets(sandbox)
    cluster.vcluster("up", "--yes").ok()
    with attack("P28", f"a model of another kind: {kind}") as measured:
        served = cluster.vcluster("serve", "--yes", "--json", "--tp", "1", "--pp", "1", MODEL, "--", *flags).ok()
        rows = [event for event in served.events() if "phases" in event]
        assert rows[-1]["phase"] == "ready"
        asked = [row["detail"] for row in rows if row["phase"] == "probing"]
        # Two small requests may be over between two looks.
        measured.figure = f"ready, asked: {asked[-1]}" if asked else "ready"
