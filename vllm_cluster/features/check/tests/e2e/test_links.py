"""Links between real hosts, broken one way at a time, are reported before anything is started over them."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from tests.support.hosts import Sandbox
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.deep]

HOSTS = ("gpu1", "gpu2")


def address(sandbox: Sandbox, host: str) -> str:
    """A host's address on the network between the hosts."""
    found = re.search(rf"^  {host}: {{address: ([\d.]+)", sandbox.inventory.read_text(), re.MULTILINE)
    assert found
    return found[1]


def left(sandbox: Sandbox) -> str:
    """What of the cluster is on the hosts: containers, volumes, programs."""
    script = "docker ps -aq; docker volume ls -q; pgrep -fa 'probe|collective' | grep -v pgrep || true"
    return "".join(sandbox.on(host, "sh", "-c", script, root=True) for host in HOSTS)


def found(sandbox: Sandbox, *options: str) -> tuple[Any, list[Any]]:
    """The report, which comes soon and leaves nothing on the hosts; and what it found of links."""
    began = time.monotonic()
    run = sandbox.vcluster("check", "--json", *options)
    report = run.json()
    assert run.code == (0 if report["ok"] else 3), run.err
    assert time.monotonic() - began < (90 if options else 10)
    assert left(sandbox) == ""
    return report, [one for one in report["findings"] if one["code"].startswith(("link-", "allreduce-"))]


def lines(process: subprocess.Popen[str]) -> Iterator[str]:
    """What is shown to people while it happens, without the seconds."""
    assert process.stderr
    for line in process.stderr:
        yield line.partition("s  ")[2].rstrip()


@contextmanager
def rules(sandbox: Sandbox, host: str, *words: str) -> Iterator[None]:
    """Firewall rules on a host, taken away afterwards."""
    for rule in words:
        sandbox.on(host, "sh", "-c", f"iptables -I {rule}", root=True)
    try:
        yield
    finally:
        for rule in words:
            sandbox.on(host, "sh", "-c", f"iptables -D {rule}", root=True)


@pytest.mark.cluster("empty")
def test_sound_links_are_found_sound(cluster: Sandbox) -> None:
    assert found(cluster)[1] == []


@pytest.mark.cluster("empty")
@pytest.mark.parametrize(
    ("rule", "code", "host", "words"),
    [
        ("-p tcp --dport 6379 -j DROP", "link-silent", "gpu1", "port 6379 (gcs): no answer"),
        (
            "-p tcp --dport 10001:19999 -j REJECT",
            "link-refused",
            "gpu1",
            "10001 (client server), 10002 (workers)",
        ),
        ("-p tcp --dport 32768:60999 --syn -j DROP", "link-silent", "gpu1", "ports that the kernel chooses"),
        ("-p tcp --syn -j DROP", "link-silent", "gpu1", "every port: no answer"),
        ("-m length --length 1401:65535 -j DROP", "link-mtu", "gpu2", "packets of 1400 bytes arrive, of 1500 do not"),
    ],
    ids=["a pinned port", "a range rejected", "ephemeral ports", "every port", "large packets"],
)
def test_what_is_closed_one_way_only(cluster: Sandbox, rule: str, code: str, host: str, words: str) -> None:
    """The rule is on gpu1, for what comes from gpu2; the other way all is well."""
    with rules(cluster, "gpu1", f"INPUT -s {address(cluster, 'gpu2')} {rule}"):
        (one,) = found(cluster)[1]
    assert (one["code"], one["host"], one["severity"] == "error") == (code, host, True)
    assert one["message"].startswith("gpu2 → gpu1: ")
    assert words in one["message"]


@pytest.mark.cluster("empty")
def test_interfaces_of_two_mtus_are_a_warning(cluster: Sandbox) -> None:
    cluster.on("gpu1", "ip", "link", "set", "dev", "eth0", "mtu", "1400", root=True)
    try:
        (one,) = found(cluster)[1]
    finally:
        cluster.on("gpu1", "ip", "link", "set", "dev", "eth0", "mtu", "1500", root=True)
    assert (one["code"], one["host"], one["severity"] == "error") == ("link-mtu-differs", "gpu2", False)


@pytest.mark.cluster("empty")
def test_a_kernel_that_sends_from_another_address_is_a_warning(cluster: Sandbox) -> None:
    other, gpu1 = address(cluster, "gpu2").rpartition(".")[0] + ".77", address(cluster, "gpu1")
    made = f"ip addr add {other}/16 dev eth0 && ip route add {gpu1} dev eth0 src {other}"
    cluster.on("gpu2", "sh", "-c", made, root=True)
    try:
        (one,) = found(cluster)[1]
    finally:
        cluster.on("gpu2", "sh", "-c", f"ip route del {gpu1} && ip addr del {other}/16 dev eth0", root=True)
    assert (one["code"], one["host"], one["severity"] == "error") == ("link-source-address", "gpu2", False)
    assert f"gpu1 sees source address {other}" in one["message"]


@pytest.mark.cluster("empty")
def test_the_all_reduce_passes_with_figures(cluster: Sandbox) -> None:
    report, wrong = found(cluster, "--deep")
    assert wrong == []
    tried = report["allreduce"]
    assert [row["bytes"] for row in tried["rows"]] == [1 << 10, 64 << 10, 1 << 20, 16 << 20]
    assert all(row["seconds"] > 0 and row["bus_gb_per_s"] > 0 for row in tried["rows"])
    assert (tried["world_size"], tried["torch"]) == (4, "2.13.0+cpu")
    assert (tried["nccl_transport"]["kinds"], tried["nccl_transport"]["interfaces"]) == (["TCP"], ["eth0"])


@pytest.mark.cluster("empty")
@pytest.mark.parametrize("moment", ["starting", "all-reduce of 1 KiB"])
def test_a_link_that_turns_into_a_black_hole_is_reported(cluster: Sandbox, moment: str) -> None:
    gpu2, began = address(cluster, "gpu2"), time.monotonic()
    cut = (f"INPUT -s {gpu2} -j DROP", f"OUTPUT -d {gpu2} -j DROP")
    with cluster.start("check", "--deep") as process, ExitStack() as cuts:
        for line in lines(process):
            if line.startswith(moment):
                cuts.enter_context(rules(cluster, "gpu1", *cut))
                break
        assert process.stdout
        for _ in lines(process):
            pass
        output = process.stdout.read()
    assert time.monotonic() - began < 90
    assert process.returncode == 3
    assert re.search(r"^error allreduce-link  gpu\d: gpu1 ↔ gpu2: .*each alone works", output, re.MULTILINE), output
    assert left(cluster) == ""


@pytest.mark.cluster("empty")
@pytest.mark.parametrize(
    ("options", "moment"), [([], "testing "), (["--deep"], "4 ranks have found")], ids=["links", "all-reduce"]
)
def test_nothing_stays_of_a_killed_controller(cluster: Sandbox, options: list[str], moment: str) -> None:
    # A closed port keeps the probes busy for seconds.
    with rules(cluster, "gpu1", f"INPUT -s {address(cluster, 'gpu2')} -p tcp --dport 6379 -j DROP"):
        with cluster.start("check", *options) as process:
            assert any(line.startswith(moment) for line in lines(process))
            until(lambda: left(cluster) != "", 30)
            process.kill()
        until(lambda: left(cluster) == "", 30)


@pytest.mark.cluster("up")
def test_ports_of_a_cluster_that_is_up_are_connected_to(cluster: Sandbox) -> None:
    """Ray listens where the probe would; no person is disturbed."""
    nodes = cluster.nodes()
    report = cluster.vcluster("check", "--json").ok().json()
    assert [one for one in report["findings"] if one["code"].startswith("link-")] == []
    assert cluster.nodes() == nodes
    assert cluster.vcluster("status", "--json").json()["up"] is True
