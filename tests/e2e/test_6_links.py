"""Links between real hosts, broken one way at a time, are named before anything is started over them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.e2e.conftest import ROOT, Sandbox
from tests.e2e.waiting import until

pytestmark = pytest.mark.e2e

HOSTS = ("gpu1", "gpu2")


def address(sandbox: Sandbox, host: str) -> str:
    """A host's address on the network between the hosts."""
    found = re.search(rf"^  {host}: {{address: ([\d.]+)", sandbox.inventory.read_text(), re.MULTILINE)
    assert found
    return found[1]


def left(sandbox: Sandbox) -> str:
    """What of ours is on the hosts: containers, volumes, programs."""
    script = "docker ps -aq; docker volume ls -q; pgrep -fa 'probe|collective' | grep -v pgrep || true"
    return "".join(sandbox.on(host, "sh", "-c", script, root=True) for host in HOSTS)


@pytest.fixture(scope="module")
def empty(sandbox: Sandbox) -> Sandbox:
    """Two hosts on which nothing of ours is."""
    sandbox.vcluster("down", "--wait", "30").ok()
    return sandbox


def start(sandbox: Sandbox, what: str) -> subprocess.Popen[str]:
    """Look at the links, or try the collective, as a process of its own."""
    argv = [sys.executable, "-m", "tests.e2e.linked", str(sandbox.inventory), what]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ})


def look(sandbox: Sandbox, what: str = "mesh", seen: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """What is found; `seen` is told of every event meanwhile. Nothing stays on the hosts."""
    began = time.monotonic()
    with start(sandbox, what) as process:
        assert process.stdout
        rows = []
        for line in process.stdout:
            rows.append(json.loads(line))
            seen(str(rows[-1].get("text")))
    assert process.returncode == 0
    assert rows[-1]["event"] == "result"
    assert left(sandbox) == ""
    return {**rows[-1], "took": time.monotonic() - began}


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


def test_sound_links_are_found_sound(empty: Sandbox) -> None:
    found = look(empty)
    assert found["findings"] == []
    assert found["took"] < 10


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
def test_what_is_closed_one_way_only(empty: Sandbox, rule: str, code: str, host: str, words: str) -> None:
    """The rule stands on gpu1, for what comes from gpu2; the other way all is well."""
    with rules(empty, "gpu1", f"INPUT -s {address(empty, 'gpu2')} {rule}"):
        result = look(empty)
    (found,) = result["findings"]
    assert (found["code"], found["host"], found["error"]) == (code, host, True)
    assert found["text"].startswith("gpu2 → gpu1: ")
    assert words in found["text"]
    assert result["took"] < 10


def test_interfaces_of_two_mtus_are_a_warning(empty: Sandbox) -> None:
    empty.on("gpu1", "ip", "link", "set", "dev", "eth0", "mtu", "1400", root=True)
    try:
        (found,) = look(empty)["findings"]
    finally:
        empty.on("gpu1", "ip", "link", "set", "dev", "eth0", "mtu", "1500", root=True)
    assert (found["code"], found["host"], found["error"]) == ("link-mtu-differs", "gpu2", False)


def test_a_kernel_that_sends_from_another_address_is_a_warning(empty: Sandbox) -> None:
    other, gpu1 = address(empty, "gpu2").rpartition(".")[0] + ".77", address(empty, "gpu1")
    made = f"ip addr add {other}/16 dev eth0 && ip route add {gpu1} dev eth0 src {other}"
    empty.on("gpu2", "sh", "-c", made, root=True)
    try:
        (found,) = look(empty)["findings"]
    finally:
        empty.on("gpu2", "sh", "-c", f"ip route del {gpu1} && ip addr del {other}/16 dev eth0", root=True)
    assert (found["code"], found["host"], found["error"]) == ("link-source", "gpu2", False)
    assert f"gpu1 sees it come from {other}" in found["text"]


def test_the_collective_passes_with_figures(empty: Sandbox) -> None:
    result = look(empty, "collective")
    assert result["findings"] == []
    assert [row["bytes"] for row in result["rows"]] == [1 << 10, 64 << 10, 1 << 20, 16 << 20]
    assert all(row["seconds"] > 0 and row["bus"] > 0 for row in result["rows"])
    assert (result["world"], result["torch"]) == (4, "2.13.0+cpu")
    assert (result["transport"]["kinds"], result["transport"]["interfaces"]) == (["TCP"], ["eth0"])


@pytest.mark.parametrize("moment", ["starting", "all-reduce of 1 KiB"])
def test_a_link_that_turns_into_a_black_hole_is_named(empty: Sandbox, moment: str) -> None:
    gpu2 = address(empty, "gpu2")
    cut = [f"INPUT -s {gpu2} -j DROP", f"OUTPUT -d {gpu2} -j DROP"]
    with rules(empty, "gpu1"):
        done: list[str] = []

        def seen(text: str) -> None:
            if text.startswith(moment) and not done:
                done.extend(cut)
                empty.on("gpu1", "sh", "-c", " && ".join(f"iptables -I {rule}" for rule in cut), root=True)

        try:
            result = look(empty, "collective", seen)
        finally:
            for rule in done:
                empty.on("gpu1", "sh", "-c", f"iptables -D {rule}", root=True)
    (found,) = result["findings"]
    assert found["code"] == "collective-link"
    assert found["text"].startswith("gpu1 ↔ gpu2: ")
    assert "each alone works" in found["text"]
    assert result["took"] < 90


@pytest.mark.parametrize(("what", "moment"), [("mesh", "looking at"), ("collective", "4 ranks have found")])
def test_nothing_stays_of_a_killed_controller(empty: Sandbox, what: str, moment: str) -> None:
    # A closed port keeps the probes busy for seconds.
    with rules(empty, "gpu1", f"INPUT -s {address(empty, 'gpu2')} -p tcp --dport 6379 -j DROP"):
        with start(empty, what) as process:
            assert process.stdout
            for line in process.stdout:
                if json.loads(line)["text"].startswith(moment):
                    break
            until(lambda: left(empty) != "", 30)
            process.kill()
        until(lambda: left(empty) == "", 30)


def test_ports_of_a_cluster_that_is_up_are_connected_to(empty: Sandbox) -> None:
    """Ray listens where the probe would; nobody is disturbed."""
    empty.vcluster("up", "--yes").ok()
    nodes = empty.nodes()
    with start(empty, "mesh") as process:
        assert process.stdout
        *_, last = (json.loads(line) for line in process.stdout)
    assert (process.returncode, last["findings"]) == (0, [])
    assert empty.nodes() == nodes
    assert empty.vcluster("status", "--json").ok().json()["up"] is True
