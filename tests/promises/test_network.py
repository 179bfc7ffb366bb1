"""P4, P5, P6, P12, P18: connections that are refused, fall silent or break, and a host that dies."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.attack import attack
from tests.support.breaks import (
    black_hole,
    broken,
    direct,
    lease_is_free_after,
    settle,
    something_to_do,
    with_nodes,
)
from tests.support.controller import begins, controller
from tests.support.hosts import Sandbox
from tests.support.paths import VCLUSTER
from vllm_cluster.kernel.docker.calls import CALL_SECONDS
from vllm_cluster.kernel.lease.lease import TIME_TO_LIVE

pytestmark = [pytest.mark.e2e, pytest.mark.promise, pytest.mark.deep]

Stand = dict[str, set[str]]
BOTH = ["fabric", "openssh"]
SILENCE = 20.0
# The program's own start and end, on two busy cores.
MARGIN = 3.0


@pytest.mark.cluster("empty")
@pytest.mark.parametrize("transport", BOTH)
def test_a_closed_port(sandbox: Sandbox, empty: Stand, transport: str) -> None:
    words = [
        ("gpu2: {", "gpu2: {ssh: {port: 1}, "),
        ("{config: ssh_config}", f"{{config: ssh_config, transport: {transport}}}"),
    ]
    closed = sandbox.rewrite(Path("closed.yaml"), replace=words)
    with attack("P4", f"the ssh port of a host is closed ({transport})") as measured:
        refused = sandbox.vcluster("up", inventory=closed)
        assert refused.code == 4, refused.err
        assert "gpu2" in refused.err
        assert "refused" in refused.err
        took = measured.seconds
        assert took <= 5
        settle(sandbox, empty, 0.1)
        measured.figure = f"named with exit 4 after {took:.1f} s; nothing on the other host"


@pytest.mark.cluster("empty")
@pytest.mark.parametrize("transport", BOTH)
@pytest.mark.parametrize("proxied", [False, True], ids=["direct", "proxied"])
def test_a_black_hole_before_the_connection(sandbox: Sandbox, empty: Stand, transport: str, proxied: bool) -> None:
    """Without a proxy the first packet is not answered; with one the connection is open, and sshd sends nothing."""
    there = sandbox if proxied and transport == "fabric" else direct(sandbox, transport)
    kind = "sends no greeting" if there is sandbox else "answers no packet"
    with black_hole(sandbox, "gpu2"), attack("P5", f"a host that {kind} ({transport})") as measured:
        refused = there.vcluster("up", seconds=60)
        took = measured.seconds
        assert refused.code == 4, refused.err
        assert "gpu2" in refused.err
        assert took <= SILENCE + MARGIN
        measured.figure = f"unreachable, exit 4 after {took:.1f} s"
    settle(sandbox, empty, 5)


@pytest.mark.cluster("empty", leaves="up")
@pytest.mark.parametrize("transport", ["fabric", "openssh"])
@pytest.mark.parametrize("host", ["gpu2", "gpu1"])
def test_a_black_hole_in_the_middle(sandbox: Sandbox, empty: Stand, transport: str, host: str) -> None:
    there = direct(sandbox, transport)
    what = f"{'the head' if host == 'gpu1' else 'a worker'} falls silent while its node is created ({transport})"
    with attack("P5", what) as measured:
        with controller(there, "up", "--yes") as run:
            assert run.read_until(begins(host, "create"))
            with black_hole(sandbox, host):
                measured.begin()
                assert run.end() == 1
                took = measured.seconds
            error = run.error()
            assert error["code"] in ("connection-lost", "timed-out"), error
            assert error["host"] == host
            assert took <= SILENCE + MARGIN
        sandbox.vcluster("up", "--yes", "--wait", "30").ok()
        settle(sandbox, with_nodes(empty), SILENCE + 30)
        measured.figure = f"{error['code']} after {took:.1f} s, by name; rerun converged"


@pytest.mark.cluster("up")
def test_the_holder_of_the_lease_falls_silent(sandbox: Sandbox) -> None:
    with (
        attack("P5 P12", "black hole on the channel that holds the lease") as measured,
        something_to_do(sandbox, 18),
        controller(sandbox, "up", "--yes") as run,
    ):
        assert run.read_until(begins("gpu2", "remove"))
        with black_hole(sandbox, "gpu1"):
            measured.begin()
            free = lease_is_free_after(sandbox, measured.began, TIME_TO_LIVE + 2)
            assert run.end() == 75
        assert run.error()["code"] == "lease-lost"
        measured.figure = (
            f"free after {free:.1f} s of {TIME_TO_LIVE} s to live; its holder ended after {measured.seconds:.1f} s"
        )


@pytest.mark.cluster("up")
def test_the_holder_of_the_lease_is_killed(sandbox: Sandbox) -> None:
    with (
        attack("P12", "kill -9 of the one who holds the lease") as measured,
        something_to_do(sandbox, 10),
        controller(sandbox, "up", "--yes") as run,
    ):
        assert run.read_until(begins("gpu2", "remove"))
        measured.begin()
        run.process.send_signal(signal.SIGKILL)
        free = lease_is_free_after(sandbox, measured.began, 5)
        assert free <= 1.0, f"free after {free:.2f} s"
        measured.figure = f"free after {free:.2f} s"


def revive(sandbox: Sandbox) -> None:
    """Start the hosts that are dead."""
    subprocess.run([VCLUSTER, "sandbox", "up", "--dir", str(sandbox.folder)], check=True, timeout=120)


@contextmanager
def host_comes_back(sandbox: Sandbox) -> Iterator[None]:
    """However the attack ends: the next one finds all hosts."""
    try:
        yield
    finally:
        revive(sandbox)


@pytest.mark.cluster("empty", leaves="up")
@pytest.mark.parametrize("victim", ["gpu2", "gpu1"])
def test_a_host_dies_in_the_middle(sandbox: Sandbox, empty: Stand, victim: str) -> None:
    what = f"docker kill of {'the head' if victim == 'gpu1' else 'a worker'}'s host while its node is created"
    with host_comes_back(sandbox), attack("P6", what) as measured:
        with controller(sandbox, "up", "--yes") as run:
            assert run.read_until(begins(victim, "create"))
            measured.begin()
            subprocess.run(["docker", "kill", sandbox.container(victim)], check=True, capture_output=True)
            assert run.end() != 0
            took = measured.seconds
            error = run.error()
        assert took <= 30
        assert f"{victim}: create: " in error["message"]
        revive(sandbox)
        sandbox.vcluster("up", "--yes", "--wait", "30").ok()
        settle(sandbox, with_nodes(empty), 30)
        measured.figure = f"exit 1 after {took:.1f} s naming the host and what is unknown; rerun converged"


@pytest.mark.cluster("empty", leaves="up")
def test_a_stopped_docker(sandbox: Sandbox, empty: Stand) -> None:
    """The connection lives on, and nothing that is asked of Docker is answered."""
    with attack("P18", "SIGSTOP of a worker's Docker while its node is created") as measured:
        with controller(sandbox, "up", "--yes") as run:
            assert run.read_until(begins("gpu2", "create"))
            with broken(sandbox, "gpu2", "kill -STOP $(cat /run/docker.pid)", "kill -CONT $(cat /run/docker.pid)"):
                measured.begin()
                assert run.end() == 1
                took = measured.seconds
            error = run.error()
        assert (error["code"], error["host"]) == ("docker-timed-out", "gpu2"), error
        # Once for what was asked, and once to take back what had been made.
        assert took <= 2 * CALL_SECONDS + MARGIN
        sandbox.vcluster("up", "--yes", "--wait", "30").ok()
        settle(sandbox, with_nodes(empty), CALL_SECONDS)
        measured.figure = f"timed out after {took:.1f} s, by name; after it went on, the rerun converged"


@pytest.mark.cluster("up")
def test_a_stopped_sshd(sandbox: Sandbox, empty: Stand) -> None:
    stop, go = "pkill -STOP sshd", "pkill -CONT sshd"
    with attack("P18", "SIGSTOP of every sshd of a host while it works") as measured:
        with something_to_do(sandbox, 1), controller(sandbox, "up", "--yes") as run:
            assert run.read_until(begins("gpu2", "remove"))
            with broken(sandbox, "gpu2", stop, go):
                measured.begin()
                assert run.end() == 1
                took = measured.seconds
        assert took <= SILENCE + MARGIN
        left = settle(sandbox, with_nodes(empty), SILENCE)
        measured.figure = f"given up after {took:.1f} s; {left:.1f} s after it went on nothing of vcluster ran there"
