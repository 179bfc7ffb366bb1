"""Hosts and links on which `up` cannot work: one clear error each, and nothing is changed."""

from __future__ import annotations

import re

import pytest

from tests.support.attack import attack
from tests.support.breaks import broken
from tests.support.hosts import Sandbox

pytestmark = [pytest.mark.e2e, pytest.mark.deep]


def untouched(cluster: Sandbox) -> bool:
    """Whether no host has anything of the cluster."""
    return cluster.nodes() == {}


# Another program that listens: a second sshd, with the host's own key.
LISTEN = (
    "/usr/sbin/sshd -p {} -o PidFile=/run/taken.pid -h $(ls /sandbox/hosts/*/gpu1/ssh_host_ed25519_key | head -n 1)"
)
HANG_UP = "kill $(cat /run/taken.pid)"
OLD = r"""printf '#!/bin/sh
case "$*" in *version*) echo "{\\"Version\\":\\"19.03.8\\",\\"ApiVersion\\":\\"1.40\\"}";; esac
' >/usr/local/bin/docker; chmod 755 /usr/local/bin/docker"""


@pytest.mark.cluster("empty")
@pytest.mark.parametrize(
    ("script", "undo", "message"),
    [
        ("mv /usr/bin/docker /root/docker", "mv /root/docker /usr/bin/docker", "Docker is not installed"),
        ("gpasswd -d vcluster docker", "gpasswd -a vcluster docker", "this user may not use Docker"),
        ("mv /run/docker.sock /run/away.sock", "mv /run/away.sock /run/docker.sock", "Docker does not answer"),
        (OLD, "rm /usr/local/bin/docker", "Docker 19.03.8 is too old"),
        (LISTEN.format(6380), HANG_UP, "port 6380 is already in use"),
    ],
)
def test_a_host_that_will_not_do(cluster: Sandbox, script: str, undo: str, message: str) -> None:
    with broken(cluster, "gpu2", script, undo), attack("P8", message) as measured:
        refused = cluster.vcluster("up")
        assert (refused.code, f"gpu2: {message}" in refused.err) == (3, True), refused.err
        remedy, *_ = [line.strip() for line in refused.err.splitlines() if line.strip().startswith("fix: ")]
        assert re.match(r"fix: (gpu2: |ssh .* gpu2 ')", remedy), remedy
        measured.figure = f"one finding with its fix after {measured.seconds:.1f} s, exit 3; nothing changed"
    assert untouched(cluster)


@pytest.mark.cluster("empty")
def test_no_route_between_hosts(cluster: Sandbox) -> None:
    head = next(
        host["address"] for host in cluster.vcluster("status", "--json").json()["hosts"] if host["host"] == "gpu1"
    )
    route = f"route %s unreachable {head}/32"
    with broken(cluster, "gpu2", f"ip {route % 'add'}", f"ip {route % 'del'}"):
        refused = cluster.vcluster("up")
    assert refused.code == 3
    assert f"gpu2: no route to gpu1 ({head})" in refused.err
    assert untouched(cluster)


@pytest.mark.cluster("empty", leaves="up")
def test_a_firewall_between_hosts_is_reported_by_the_worker(cluster: Sandbox) -> None:
    rule = "OUTPUT -p tcp --dport 6379 -j DROP"
    with broken(cluster, "gpu2", f"iptables -I {rule}", f"iptables -D {rule}"):
        failed = cluster.vcluster("up")
    assert failed.code == 1
    assert "gpu2: no connection to the head for 3" in failed.err
    cluster.vcluster("up").ok()
