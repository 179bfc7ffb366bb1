"""Images between hosts without a registry: sent whole and the same, or refused; and removed when nothing needs them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.figures import record
from tests.support.hosts import Sandbox
from vcluster_sandbox.names import CPU_IMAGE

pytestmark = pytest.mark.e2e

NAME = "lab/pushed"
MEGABYTES = 8


@contextmanager
def built(sandbox: Sandbox, tag: str, *, megabytes: int = MEGABYTES, host: str = "gpu1") -> Iterator[str]:
    """An image that is a layer more than the sandbox's, on one host; removed from all of them."""
    name = f"{NAME}:{tag}"
    lines = [f"FROM {CPU_IMAGE}", "COPY blob /opt/blob", "LABEL test=push"]
    script = f"""set -eu; folder=$(mktemp -d); cd $folder; head -c {megabytes}000000 /dev/urandom > blob
    printf '%s\\n' {" ".join(f"'{line}'" for line in lines)} > Dockerfile
    DOCKER_BUILDKIT=0 docker build --quiet --tag {name} . 2>/dev/null; rm -rf $folder"""
    try:
        sandbox.on(host, "sh", "-c", script)
        yield name
    finally:
        for one in ("gpu1", "gpu2"):
            sandbox.on(one, "sh", "-c", f"docker rmi --force {name} >/dev/null 2>&1 || true")


@contextmanager
def slow(sandbox: Sandbox, host: str) -> Iterator[None]:
    """What a host sends takes its time: 200 MB some 40 s."""
    route = sandbox.on(host, "ip", "-o", "route", "get", "172.31.255.1")
    found = re.search(r" dev (\S+)", route)
    assert found
    sandbox.on(host, "sh", "-c", f"tc qdisc add dev {found[1]} root tbf rate 40mbit burst 1m latency 400ms", root=True)
    try:
        yield
    finally:
        sandbox.on(host, "sh", "-c", f"tc qdisc del dev {found[1]} root", root=True)


def seen(sandbox: Sandbox, host: str, name: str) -> Any:
    """What Docker has of an image."""
    (found,) = json.loads(sandbox.docker(host, "image", "inspect", name))
    return found


def same(sandbox: Sandbox, name: str) -> bool:
    """Whether it is one image on both hosts."""
    one, other = (seen(sandbox, host, name) for host in ("gpu1", "gpu2"))
    return bool(one["Id"] == other["Id"] and one["RootFS"] == other["RootFS"] and one["Config"] == other["Config"])


def names(sandbox: Sandbox, host: str) -> list[str]:
    return sandbox.docker(host, "images", "--format", "{{.Repository}}:{{.Tag}}").split()


def runs_there(sandbox: Sandbox, host: str, name: str) -> bool:
    """Whether a container of it finds the new file."""
    argv = ("run", "--rm", "--network", "none", "--entrypoint", "stat", name, "-c", "%s", "/opt/blob")
    return sandbox.docker(host, *argv).strip() == f"{MEGABYTES}000000"


@pytest.mark.promise("P45")
@pytest.mark.cluster("up")
def test_a_host_gets_the_layer_that_it_lacks(sandbox: Sandbox) -> None:
    nodes = sandbox.nodes()
    with built(sandbox, "one") as name:
        done = sandbox.vcluster("image", "push", name, "--json").ok()
        (sent,) = [event for event in done.events() if event["event"] == "start" and "layers" in event]
        assert (sent["host"], sent["layers"]) == ("gpu2", 1)
        # What is sent: the file, with the archive around it and the config.
        assert 0 < sent["bytes"] - MEGABYTES * 10**6 < 8192
        arrived = [event["message"] for event in done.events() if event["event"] == "progress" and "bytes" in event]
        assert arrived[-1].endswith("its Docker unpacks it")
        result = done.event("result")
        assert (result["source"], result["sent"]) == ("gpu1", ["gpu2"])
        assert same(sandbox, name)
        assert runs_there(sandbox, "gpu2", name)
        again = sandbox.vcluster("image", "push", name, "--json").ok()
        assert again.event("result")["sent"] == []
        # Another name for what is there is no transfer.
        sandbox.docker("gpu2", "rmi", name)
        sandbox.docker("gpu1", "tag", name, f"{NAME}:kept")
        record("P45", "an image of one more layer, to a host that has the others", f"{MEGABYTES} MB sent", True)
    sandbox.docker("gpu1", "rmi", f"{NAME}:kept")
    assert sandbox.nodes() == nodes


@pytest.mark.deep
@pytest.mark.promise("P45")
@pytest.mark.cluster("up")
def test_what_cannot_be_sent_is_refused_before_it_is(sandbox: Sandbox) -> None:
    unknown = sandbox.vcluster("image", "push", "lab/there-is-none:1")
    assert unknown.code == 3
    assert "neither a host nor this machine has it" in unknown.err
    assert sandbox.vcluster("image", "push", CPU_IMAGE, "gpu9").code == 2


@pytest.mark.deep
@pytest.mark.promise("P45")
@pytest.mark.cluster("up")
def test_hosts_that_cannot_reach_each_other_get_it_through_this_machine(sandbox: Sandbox) -> None:
    source = re.search(r"gpu1: \{address: ([0-9.]+)", sandbox.inventory.read_text())
    assert source
    rule = f"OUTPUT -d {source[1]} -p tcp --dport 6384 -j DROP"
    with built(sandbox, "apart") as name:
        sandbox.on("gpu2", "sh", "-c", f"iptables -I {rule}", root=True)
        try:
            done = sandbox.vcluster("image", "push", name).ok()
        finally:
            sandbox.on("gpu2", "sh", "-c", f"iptables -D {rule}", root=True)
        assert "it goes through this machine" in done.err
        assert same(sandbox, name)
        assert runs_there(sandbox, "gpu2", name)
    record("P45", "the port between the hosts is closed", "sent through the laptop, the same image", True)


@pytest.mark.deep
@pytest.mark.promise("P45")
@pytest.mark.cluster("up")
def test_a_killed_sender_is_reported_and_the_next_push_completes(sandbox: Sandbox) -> None:
    with built(sandbox, "cut", megabytes=200) as name:
        with slow(sandbox, "gpu1"):
            call = sandbox.start("image", "push", name, "--json")
            assert call.stdout
            lines = [next(line for line in call.stdout if '"bytes"' in line and '"progress"' in line)]
            sender = sandbox.docker("gpu1", "ps", "--quiet", "--filter", "name=-image-").strip()
            sandbox.docker("gpu1", "kill", sender)
            lines += call.communicate(timeout=120)[0].splitlines()
        last = json.loads(lines[-1])
        assert (call.returncode, last["event"]) == (1, "error"), lines
        assert "gpu" in last["message"]
        assert name not in names(sandbox, "gpu2")
        sandbox.vcluster("image", "push", name).ok()
        assert same(sandbox, name)
        assert not sandbox.docker("gpu1", "ps", "--all", "--quiet", "--filter", "name=-image-").strip()
    record("P45", "kill -9 of the sender in the middle", "exit 1, no name there; the next push completes", True)


@pytest.mark.deep
@pytest.mark.promise("P45")
@pytest.mark.cluster("up", leaves="changed")
def test_an_image_that_nothing_needs_is_removed_and_no_other(sandbox: Sandbox) -> None:
    """Three images one after the other: the first is neither wanted nor the one before."""
    foreign = f"{NAME}:by-hand"
    text = sandbox.inventory.read_text()
    with built(sandbox, "first") as first, built(sandbox, "second") as second, built(sandbox, "third") as third:
        sandbox.docker("gpu1", "tag", CPU_IMAGE, "colleague/vllm:mine")
        sandbox.on("gpu1", "sh", "-c", f"tar -c -C /etc hostname | docker import - {foreign}")
        for name in (first, second, third):
            inventory = sandbox.rewrite(Path("images.yaml"), replace=[(CPU_IMAGE, name)])
            sandbox.vcluster("image", "push", inventory=inventory).ok()
            sandbox.vcluster("up", "--yes", inventory=inventory).ok()
        assert sandbox.inventory.read_text() == text
        listed = sandbox.vcluster("image", "ls", "--json", inventory=inventory).ok().json()["hosts"]
        states = {image["names"][0]: image["state"] for image in listed["gpu2"] if image["names"]}
        assert (states[first], states[second], states[third]) == ("unused", "previous", "in-use")
        before = set(names(sandbox, "gpu2"))
        refused = sandbox.vcluster("image", "prune", inventory=inventory)
        assert (refused.code, set(names(sandbox, "gpu2"))) == (2, before)
        sandbox.vcluster("image", "prune", "--yes", inventory=inventory).ok()
        engine = f"vcluster-node:{seen(sandbox, 'gpu2', second)['Id'][7:19]}"
        assert first not in names(sandbox, "gpu2")
        assert any(one.startswith(engine) for one in names(sandbox, "gpu2"))
        assert {second, third} < set(names(sandbox, "gpu2"))
        assert {"colleague/vllm:mine", foreign, CPU_IMAGE} < set(names(sandbox, "gpu1"))
        sandbox.vcluster("down", "--yes", inventory=inventory).ok()
        sandbox.on("gpu1", "sh", "-c", f"docker rmi colleague/vllm:mine {foreign}")
    record("P45", "prune after two other images", "the first removed; the one before and all of others kept", True)
