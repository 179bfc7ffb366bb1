"""P34: inventories that share hosts and differ, and a laptop that is suspended while another one works."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from tests.support.attack import attack
from tests.support.breaks import CLUSTER, HOSTS, LOCK, lease_is_free_after
from tests.support.controller import Controller, Event, begins, controller, judge, planned, race
from tests.support.depth import cases
from tests.support.hosts import Sandbox
from tests.support.waiting import until
from vllm_cluster.kernel.lease.lease import TIME_TO_LIVE

pytestmark = [pytest.mark.e2e, pytest.mark.promise, pytest.mark.deep]

ROUNDS = cases(2, 3, 10)
# What Docker notes of a person who only looks.
LOOKS = ("archive-path", "mount", "unmount")
# A run that wakes up notices within a heartbeat, and does not wait for what it had asked.
GIVES_UP = 20.0


def head_on(sandbox: Sandbox, host: str) -> Sandbox:
    """The same cluster by an inventory whose head is this host."""
    return sandbox.by(sandbox.rewrite(Path(f"head-{host}.yaml"), add=f"head: {host}\n"))


def changed(sandbox: Sandbox) -> Sandbox:
    """The head on gpu2, and another environment: `up` has every node to make."""
    words = [('HF_HUB_OFFLINE: "1"', 'HF_HUB_OFFLINE: "1", SECOND: "1"')]
    return sandbox.by(sandbox.rewrite(Path("second.yaml"), replace=words, add="head: gpu2\n"))


@dataclass
class Heads:
    """When heads were made and removed on the hosts, as Docker reported it."""

    told: list[list[str]] = field(default_factory=list)

    def most(self) -> int:
        """How many there were at once."""
        there, most = 0, 0
        for _, action, _ in sorted(self.told):
            there += 1 if action == "create" else -1
            most = max(most, there)
        return most


@contextmanager
def heads_of(sandbox: Sandbox) -> Iterator[Heads]:
    """Follow what Docker reports of heads, on hosts without one."""
    words = ["--filter", "event=create", "--filter", "event=destroy", "--filter", "label=io.vcluster.role=head"]
    words += ["--since", f"{time.time():.3f}", "--format", "{{.TimeNano}} {{.Action}} {{.ID}}"]
    # It ends with its standard input: what `docker exec` started does not end with the client.
    script = f"docker events {shlex.join(words)} & read -r _; kill $!"
    found = Heads()
    following = [
        subprocess.Popen(
            ["docker", "exec", "-i", sandbox.container(host), "sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for host in HOSTS
    ]
    try:
        yield found
    finally:
        for process in following:
            found.told += [line.split() for line in process.communicate(timeout=30)[0].splitlines()]


def head(sandbox: Sandbox) -> list[str]:
    """The hosts that hold a head of any cluster."""
    argv = ("ps", "-aq", "--filter", "label=io.vcluster.role=head")
    return [host for host in HOSTS for _ in sandbox.docker(host, *argv).split()]


def whole(sandbox: Sandbox) -> None:
    """The cluster is what the inventory declares."""
    left = sandbox.vcluster("plan", "--exit-code")
    assert left.code == 0, left.out + left.err
    assert sandbox.vcluster("status", "--json").json()["up"]


def held_by(sandbox: Sandbox, verb: str) -> None:
    """Wait, on the host itself, until a run of this verb holds its lease."""
    holder = LOCK.replace("lock", "holder")
    script = f"until grep -qs 'vcluster {verb}' {holder}; do sleep 0.01; done"
    argv = ["docker", "exec", sandbox.container("gpu1"), "timeout", "60", "sh", "-c", script]
    subprocess.run(argv, check=True, timeout=90)


@pytest.mark.cluster("empty")
def test_inventories_with_different_heads(sandbox: Sandbox) -> None:
    here, there = head_on(sandbox, "gpu1"), head_on(sandbox, "gpu2")
    with attack("P34 P11", f"two up 100 ms apart, whose inventories name different heads, {ROUNDS} times") as measured:
        first = 0
        for number in range(ROUNDS):
            pair = ((here, "gpu1"), (there, "gpu2"))[:: -1 if number % 2 else 1]
            with heads_of(sandbox) as heads:
                runs = race(pair[0][0], other=pair[1][0])
            judge(runs)
            first += runs[0].process.returncode == 0
            worked, wanted = pair[0] if runs[0].process.returncode == 0 else pair[1]
            assert (head(sandbox), heads.most(), len(heads.told)) == ([wanted], 1, 1)
            worked.vcluster("down", "--yes").ok()
        measured.figure = (
            f"{ROUNDS} of {ROUNDS}: one worked ({first} times the first), the other exited 75; never two heads"
        )


@pytest.mark.cluster("empty")
@pytest.mark.parametrize("wait", [(), ("--wait", "120")], ids=["", "waits"])
def test_clusters_of_different_names(sandbox: Sandbox, wait: tuple[str, ...]) -> None:
    words = [("cluster: sandbox", "cluster: other")]
    other = sandbox.by(sandbox.rewrite(Path("other-name.yaml"), replace=words, add="head: gpu2\n"))
    what = f"two up 100 ms apart for clusters of different names on the same hosts{', the second waits' * bool(wait)}"
    with attack("P34", what) as measured:
        runs = race(sandbox, *wait, other=other, until=partial(held_by, sandbox, "up") if wait else None)
        if wait:
            assert [run.process.returncode for run in runs] == [0, 3], [run.events[-1] for run in runs]
            assert "belongs to another cluster, sandbox" in runs[1].error()["message"]
        else:
            judge(runs)
        worked = sandbox if runs[0].process.returncode == 0 else other
        assert len(head(sandbox)) == 1
        assert {name.partition("\n")[0] for name in sandbox.nodes()} == set(HOSTS)
        whole(worked)
        worked.vcluster("down", "--yes").ok()
        refused = "exit 3, the other cluster by name" if wait else "exit 75"
        measured.figure = f"one cluster was made; the other up: {refused}; nothing of it on the hosts"


# ---- a laptop that is suspended


@dataclass(frozen=True)
class Moment:
    """When a run is stopped: at an event of it (None: as soon as the head shows that it holds the lease), or later."""

    verb: tuple[str, ...]
    event: Callable[[Event], bool] | None
    later: float = 0.0
    transport: str = "fabric"

    def reached(self, sandbox: Sandbox, run: Controller) -> None:
        """Wait for it."""
        if self.event:
            assert run.read_until(self.event), run.events[-1]
        else:
            held_by(sandbox, self.verb[0])
        time.sleep(self.later)  # the attack itself: into what the event announced


UP, DOWN = ("up", "--yes"), ("down", "--yes")
SERVE = ("serve", "--yes", "sandbox/tiny-llama")
MOMENTS = {
    "up, which holds the lease": Moment(UP, None),
    "up, at its plan": Moment(UP, planned),
    "up, before it creates the head": Moment(UP, begins("gpu1", "create")),
    "up, while it creates the head": Moment(UP, begins("gpu1", "create"), 0.3),
    "up, before it records the members": Moment(UP, begins("gpu1", "record members")),
    "up, before it creates the worker": Moment(UP, begins("gpu2", "create")),
    "up, while it creates the worker": Moment(UP, begins("gpu2", "create"), 0.3),
    "serve, which holds the lease": Moment(SERVE, None),
    "serve, before it writes the request": Moment(SERVE, None, 0.1),
    "up over openssh, while it creates the head": Moment(UP, begins("gpu1", "create"), 0.3, "openssh"),
    "down, which holds the lease": Moment(DOWN, None),
    "down, while it removes the worker": Moment(DOWN, lambda event: event.get("host") == "gpu2"),
    "down, while it removes the head": Moment(DOWN, lambda event: event.get("host") == "gpu1"),
}


def changes_since(sandbox: Sandbox, began: float) -> list[str]:
    """What Docker on the hosts has noted since then, but for looks."""
    argv = ("events", "--since", f"{began:.6f}", "--until", f"{time.time():.6f}", "--format", "{{json .}}")
    told = [json.loads(line) for host in HOSTS for line in sandbox.docker(host, *argv).splitlines()]
    return [f"{row['Type']} {row['Action']}" for row in told if row["Action"] not in LOOKS]


def request(sandbox: Sandbox) -> str:
    """What the second laptop's head is asked to serve."""
    files = "/var/lib/vcluster/wanted.json /var/lib/vcluster/cluster.json"
    return sandbox.docker("gpu2", "exec", "vcluster-sandbox", "sh", "-c", f"cat {files} 2>&1; true")


@pytest.mark.cluster("own")
@pytest.mark.parametrize("name", MOMENTS)
def test_a_laptop_that_is_suspended(sandbox: Sandbox, name: str) -> None:
    moment, second = MOMENTS[name], changed(sandbox)
    # Its ssh processes are not stopped with it.
    words = [("{config: ssh_config}", f"{{config: ssh_config, transport: {moment.transport}}}")]
    first = sandbox.by(sandbox.rewrite(Path("stopped.yaml"), replace=words))
    sandbox.vcluster("down", "--yes", "--wait", "30")
    if moment.verb != UP:
        sandbox.vcluster("up", "--yes").ok()
    with attack("P34", f"SIGSTOP of {name}, until another laptop has moved the head") as measured:
        with controller(first, *moment.verb) as run:
            moment.reached(sandbox, run)
            run.process.send_signal(signal.SIGSTOP)
            free = lease_is_free_after(sandbox, time.monotonic(), TIME_TO_LIVE + 2)
            second.vcluster("up", "--yes", "--wait", "30").ok()
            nodes, asked, began = sandbox.nodes(), request(sandbox), time.time()
            measured.begin()
            run.process.send_signal(signal.SIGCONT)
            code = run.end()
            took = measured.seconds
        assert changes_since(sandbox, began) == []
        # A request that was written before it was suspended moved with the head.
        written = moment.verb == SERVE and SERVE[-1] in asked
        assert (code, run.error()["code"]) == (75, "replaced" if written else "lease-lost"), run.events[-1]
        assert (sandbox.nodes(), request(sandbox), head(sandbox)) == (nodes, asked, ["gpu2"])
        assert took <= GIVES_UP
        whole(second)
        measured.figure = (
            f"the lease was free after {free:.1f} s; awake again it changed nothing, exit {code}, {took:.1f} s"
        )
    second.vcluster("down", "--yes").ok()
    until(lambda: not sandbox.docker("gpu1", "ps", "-aq", "--filter", f"label={CLUSTER}").strip(), 10)
