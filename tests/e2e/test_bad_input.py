"""Each bad input is one clear error with the right exit code, and once it is corrected, another `up` is enough."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.attack import attack
from tests.support.hosts import Sandbox
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.deep]


def untouched(cluster: Sandbox) -> bool:
    """Whether no host has anything of the cluster."""
    return cluster.nodes() == {}


def inventory(cluster: Sandbox, name: str, old: str, new: str) -> Path:
    """The sandbox's inventory with one word changed."""
    return cluster.rewrite(Path(f"{name}.yaml"), replace=[(old, new)])


@pytest.mark.cluster("empty")
@pytest.mark.parametrize(
    ("old", "new", "code", "message"),
    [
        ("gpu2: {address", "gpu2: {adress", 2, "hosts.gpu2.adress: unknown key, did you mean address?"),
        ("{address: ", "{address: x", 2, "hosts.gpu1.address"),
        ("cluster: sandbox", "cluster: sandbox\nhead: [gpu1, gpu2]", 2, "head"),
        ("gpu2:", "gpu1:", 2, "gpu1"),
        ("gpu2: {", "gpu2: {ssh: gpu1, ", 2, "list each host once"),
        ("gpu2: {", "gpu2: {ssh: nobody.invalid, ", 4, "gpu2:"),
        ("gpu2: {", "gpu2: {ssh: {port: 1}, ", 4, "gpu2:"),
        ("gpu2: {", "gpu2: {ssh: {user: mallory}, ", 4, "gpu2:"),
        ("gpu2: {", "gpu2: {interface: bond7, ", 3, "gpu2: there is no interface bond7"),
        (
            "vllm-cpu:0.32.0",
            "vllm-cpu:9.9.9",
            1,
            "gpu1, gpu2: prepare image: cannot pull vcluster-sandbox/vllm-cpu:9.9.9",
        ),
    ],
)
def test_a_wrong_inventory(cluster: Sandbox, old: str, new: str, code: int, message: str) -> None:
    refused = cluster.vcluster("up", inventory=inventory(cluster, "bad", old, new))
    assert (refused.code, message in refused.err) == (code, True), refused.err
    assert "Traceback" not in refused.err
    assert untouched(cluster)


@pytest.mark.cluster("empty")
def test_a_wrong_host_key(cluster: Sandbox) -> None:
    known = cluster.folder / "known_hosts"
    right = known.read_text()
    lines = right.splitlines()
    first, second = lines[0].split(), lines[1].split()
    known.write_text(" ".join([first[0], *second[1:]]) + "\n" + lines[1] + "\n")
    try:
        refused = cluster.vcluster("up")
    finally:
        known.write_text(right)
    assert refused.code == 4
    assert "gpu1" in refused.err
    assert "known_hosts:1" in refused.err
    assert untouched(cluster)


@contextmanager
def root_does(cluster: Sandbox, host: str, script: str, undo: str) -> Iterator[None]:
    """Break a host as its root would, and repair it."""
    cluster.on(host, "sh", "-c", script, root=True)
    try:
        yield
    finally:
        cluster.on(host, "sh", "-c", undo, root=True)


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
    with root_does(cluster, "gpu2", script, undo), attack("P8", message) as measured:
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
    with root_does(cluster, "gpu2", f"ip {route % 'add'}", f"ip {route % 'del'}"):
        refused = cluster.vcluster("up")
    assert refused.code == 3
    assert f"gpu2: no route to gpu1 ({head})" in refused.err
    assert untouched(cluster)


@pytest.mark.cluster("empty", leaves="up")
def test_a_firewall_between_hosts_is_reported_by_the_worker(cluster: Sandbox) -> None:
    rule = "OUTPUT -p tcp --dport 6379 -j DROP"
    with root_does(cluster, "gpu2", f"iptables -I {rule}", f"iptables -D {rule}"):
        failed = cluster.vcluster("up")
    assert failed.code == 1
    assert "gpu2: no connection to the head for 3" in failed.err
    cluster.vcluster("up").ok()


@pytest.mark.cluster("up")
def test_another_cluster_on_the_same_hosts(cluster: Sandbox) -> None:
    before = cluster.nodes()
    other = inventory(cluster, "other", "cluster: sandbox", "cluster: other")
    refused = cluster.vcluster("up", inventory=other)
    assert refused.code == 3
    assert "gpu1, gpu2: vcluster-sandbox belongs to another cluster, sandbox (id " in refused.err
    assert cluster.vcluster("down", "--yes", inventory=other).code == 0
    assert cluster.nodes() == before


@pytest.mark.cluster("up", leaves="empty")
def test_a_lease_that_another_run_holds(cluster: Sandbox) -> None:
    """The lock is a flock on the head; here a person holds it."""
    folder = "/tmp/vcluster"
    made = f"mkdir {folder} && chgrp docker {folder} && chmod 2770 {folder}"
    locked = f"exec 9>>{folder}/lock; flock 9; echo ada@laptop since noon >{folder}/holder; echo held"
    hold = f"{made} && {locked} && cat && rm -r {folder}"
    argv = ["ssh", "-F", str(cluster.folder / "ssh_config"), "gpu1", hold]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        refused = cluster.vcluster("down", "--yes")
        waited = cluster.start("down", "--yes", "--wait", "60", "--json")
        assert waited.stdout is not None
        until_waiting = next(line for line in waited.stdout if "ada@laptop" in line)
        holder.communicate("", timeout=30)
    assert until_waiting
    assert refused.code == 75
    assert "ada@laptop since noon" in refused.err
    assert waited.wait(timeout=60) == 0
    waited.communicate()


@pytest.mark.cluster("up")
@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["sandbox/tiny-llama", "--", "--port", "9"], 2, "set ports.api in the inventory"),
        (["sandbox/tiny-llama", "--tp", "3"], 2, "choose one of 1, 2, 4"),
        (["sandbox/tiny-llama", "--tp", "3", "--pp", "1"], 3, "TP=3 does not divide its 4 attention heads"),
        (["sandbox/tiny-llama", "--tp", "4", "--pp", "2"], 2, "needs 8 GPUs; the cluster has 4"),
        (["sandbox/tiny-llama", "--hosts", "gpu9"], 2, 'the inventory has no host "gpu9"'),
        (["sandbox/tiny-llama", "--hosts", "gpu2", "--tp", "4", "--pp", "1"], 2, "needs 4 GPUs; gpu2 has 2"),
        (["sandbox/tiny-lama"], 3, "did you mean sandbox/tiny-llama?"),
        (["sandbox/tiny-llama", "--", "--max-model-ln", "64"], 3, "unrecognized arguments: --max-model-ln"),
        (["sandbox/tiny-llama", "--", "--max-model-len", "100000"], 3, "max_model_len (100000) is greater"),
        (["sandbox/tiny-llama", "--", "--config", "/models/n.yml"], 3, "No such file or directory: '/models/n.yml'"),
    ],
)
def test_what_cannot_be_served(cluster: Sandbox, argv: list[str], code: int, message: str) -> None:
    """Though nothing is served yet: each is refused before anything starts."""
    refused = cluster.vcluster("serve", *argv)
    assert (refused.code, message in refused.err) == (code, True), refused.err
    assert cluster.vcluster("status", "--json").json()["up"] is True


@pytest.mark.cluster("empty", leaves="up")
def test_serving_needs_a_cluster_and_a_port(cluster: Sandbox) -> None:
    refused = cluster.vcluster("serve", "sandbox/tiny-llama")
    assert refused.code == 3
    assert "the cluster is not up: gpu1" in refused.err, refused.err
    assert f"fix: vcluster up -i {cluster.inventory}" in refused.err
    cluster.vcluster("up").ok()
    with root_does(cluster, "gpu1", LISTEN.format(8000), HANG_UP):
        taken = cluster.vcluster("serve", "sandbox/tiny-llama")
        checked = cluster.vcluster("check", "--json").ok().json()
    assert [(one["host"], one["message"]) for one in checked["findings"] if one["code"] == "port-in-use"] == [
        ("gpu1", "port 8000 is already in use (ports.api)")
    ]
    assert (taken.code, "gpu1: serve: port 8000 is already in use (ports.api)" in taken.err) == (3, True)


@pytest.mark.cluster("up")
def test_a_tunnel_whose_port_is_taken_here(cluster: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = cluster.vcluster("endpoint", "--tunnel", "--port", str(port))
    assert refused.code == 2
    assert f"cannot listen on 127.0.0.1:{port}" in refused.err
    assert "Traceback" not in refused.err


@pytest.mark.cluster("up", leaves="empty")
def test_down_names_the_hosts_it_could_not_reach(cluster: Sandbox) -> None:
    lost = inventory(cluster, "lost", "gpu2: {", "gpu2: {ssh: {port: 1}, ")
    partly = cluster.vcluster("down", "--yes", inventory=lost)
    assert (partly.code, "gpu2:" in partly.err) == (4, True)
    until(lambda: set(cluster.nodes()) == {"gpu2"})
    cluster.vcluster("down", "--yes").ok()
    assert untouched(cluster)
