"""Hosts broken one way at a time: `check` names the host and what is wrong within ten seconds."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.breaks import FAST, HOSTS, IMAGE, broken, root
from tests.support.hosts import Sandbox
from tests.support.tree import SMI, UUIDS

pytestmark = pytest.mark.e2e

SECONDS = 10.0
# The address stays when an interface goes down, the way out does not.
RENAME = """way=$(ip route show default | sed 's/ dev .*//'); ip link set {0} down; ip link set {0} name {1}
ip link set {1} up; ip route replace $way dev {1}"""
# The image is there, and next to nothing free: all hosts are on one disk, which must not be filled.
FULL = r"""printf '#!/bin/sh\ncase "$*" in */docker) printf "\\nx 1 1 40000\\n" ;; *) exec /usr/bin/df "$@" ;; esac\n' \
  >/usr/local/bin/df; chmod 755 /usr/local/bin/df"""
# Docker owns the file: it can be written, not replaced.
LOOPBACK = "cp /etc/hosts /root/hosts; { echo 127.0.1.1 gpu2; grep -v gpu2 /root/hosts; } >/etc/hosts"


def check(sandbox: Sandbox, inventory: Path | None = None) -> Any:
    """The report, which must come soon and with the exit code that fits it."""
    began = time.monotonic()
    run = sandbox.vcluster("check", "--json", inventory=inventory)
    assert time.monotonic() - began < SECONDS
    report = run.json()
    assert run.code == (0 if report["ok"] else 3), run.err
    assert report["hosts"] == list(HOSTS)
    return report


def codes(report: Any, *, errors: bool = False) -> set[tuple[str, str]]:
    """What was found, on which host, without the notice that an image has no Ray, and but for the links between."""
    return {
        (one["code"], one["host"])
        for one in report["findings"]
        if (one["severity"] == "error" or not errors)
        and one["code"] != "ray-layer"
        and not one["code"].startswith("link-")
    }


@pytest.mark.cluster("empty")
def test_hosts_on_which_all_is_well(cluster: Sandbox) -> None:
    assert codes(check(cluster)) == set()


@pytest.mark.deep
@pytest.mark.cluster("empty")
@pytest.mark.parametrize(
    ("script", "undo", "code", "error"),
    [
        (LOOPBACK, "cat /root/hosts >/etc/hosts; rm /root/hosts", "hostname-loopback", False),
        (f"docker create --name node-1234 {IMAGE}", "docker rm node-1234", "leftover-container", False),
        (f"docker create --name ray-head {IMAGE}", "docker rm ray-head", "leftover-container", False),
        (f"docker create --name vllm_node {IMAGE}", "docker rm vllm_node", "leftover-container", False),
        (f"docker create --name vcluster-sandbox {IMAGE}", "docker rm vcluster-sandbox", "name-taken", True),
        (FAST, "rm /usr/local/bin/date", "clock-skew", False),
        (FULL, "rm /usr/local/bin/df", "disk-full", True),
        ("ip link set eth0 mtu 1400", "ip link set eth0 mtu 1500", "mtu-differs", False),
        ("mv /run/docker.sock /run/away.sock", "mv /run/away.sock /run/docker.sock", "docker-stopped", True),
        ("chmod 700 $(readlink -f /usr/sbin/ip)", "chmod 755 $(readlink -f /usr/sbin/ip)", "ip-missing", True),
        ("echo 1 >/etc/vcluster/slots", "echo 2 >/etc/vcluster/slots", "gpus-missing", True),
        ("touch /models/hub/x.incomplete", "rm /models/hub/x.incomplete", "cache-incomplete", False),
        ("mv /models/hub /models/away", "mv /models/away /models/hub", "model-absent", False),
    ],
)
def test_a_host_that_is_broken(cluster: Sandbox, script: str, undo: str, code: str, error: bool) -> None:
    inventory = cluster.rewrite(Path("gpus.yaml"), replace=[("gpu2: {", "gpu2: {gpus: 2, ")])
    with broken(cluster, "gpu2", script, undo):
        report = check(cluster, inventory)
        assert codes(report) == {(code, "gpu2")}
        assert codes(report, errors=True) == ({(code, "gpu2")} if error else set())
        assert all(one["why"] and one["fix"] and one["failures"] for one in report["findings"])


@pytest.mark.deep
@pytest.mark.cluster("empty")
def test_an_interface_with_another_name(cluster: Sandbox) -> None:
    inventory = cluster.rewrite(
        Path("names.yaml"), replace=[(f"{host}: {{", f"{host}: {{interface: eth0, ") for host in HOSTS]
    )
    assert codes(check(cluster, inventory)) == set()
    with broken(cluster, "gpu2", RENAME.format("eth0", "enp9"), RENAME.format("enp9", "eth0")):
        assert codes(check(cluster, inventory)) == {("interface-not-found", "gpu2")}
        assert codes(check(cluster)) == set()


@pytest.mark.deep
@pytest.mark.cluster("empty")
def test_gpus_as_they_were_recorded(cluster: Sandbox, tmp_path: Path) -> None:
    """What a host with two H200 printed, reported by hosts that have Docker without any way to hand them out."""
    inventory = cluster.rewrite(Path("nvidia.yaml"), replace=[("accelerator: cpu ", "accelerator: nvidia ")])
    try:
        for host in HOSTS:
            (tmp_path / "smi.xml").write_text(SMI.replace("GPU-0000", f"GPU-{host}"))
            (tmp_path / "nvidia-smi").write_text(
                f"""#!/bin/sh
case "$*" in
*query*) printf '0, GPU-{host}{UUIDS[0][8:]}, NVIDIA H200, 143771, 0, 580.159.04, Disabled, 0\\n' ;;
*-x*) cat /tmp/smi.xml; head -c 50000000 /dev/zero | tr '\\0' '<' ;;
esac
"""
            )
            (tmp_path / "nvidia-smi").chmod(0o755)
            for name, folder in (("smi.xml", "/tmp"), ("nvidia-smi", "/usr/local/bin")):
                put = ["docker", "cp", str(tmp_path / name), f"{cluster.container(host)}:{folder}/{name}"]
                subprocess.run(put, check=True, capture_output=True, timeout=60)
        report = check(cluster, inventory)
        assert codes(report, errors=True) == {("gpu-runtime-missing", host) for host in HOSTS}
        # What comes after the document makes it no document, and then nothing is concluded from it.
        assert {(one["host"], one["what"]) for one in report["not_checked"]} >= {
            (host, "the GPUs' health") for host in HOSTS
        }
        root(cluster, "gpu1", "sed -i 's/head -c.*;;/;;/' /usr/local/bin/nvidia-smi")
        facts = cluster.vcluster("check", "--facts", "gpu1", "--json", inventory=inventory).ok().json()["hosts"]
        assert list(facts) == ["gpu1"]
        assert [gpu["fabric_state"] for gpu in facts["gpu1"]["details"]["gpu_health"]] == ["Completed"] * 2
        assert facts["gpu1"]["gpus"][0]["driver"] == "580.159.04"
    finally:
        for host in HOSTS:
            root(cluster, host, "rm -f /usr/local/bin/nvidia-smi /tmp/smi.xml")


@pytest.mark.deep
@pytest.mark.cluster("empty")
def test_labels_of_others_are_theirs(cluster: Sandbox) -> None:
    make = f"docker create --name theirs --label password=CANARY --env TOKEN=CANARY {IMAGE}"
    with broken(cluster, "gpu1", make, "docker rm theirs"):
        said = cluster.vcluster("check", "--facts", "gpu1", "--json").ok()
    assert [entry["name"] for entry in said.json()["hosts"]["gpu1"]["other_containers"]] == ["theirs"]
    assert "CANARY" not in said.out + said.err


@pytest.mark.deep
@pytest.mark.cluster("empty")
def test_facts_of_hosts(cluster: Sandbox) -> None:
    found = json.loads(cluster.vcluster("check", "--facts", "--json").ok().out)["hosts"]
    for host in HOSTS:
        assert found[host]["docker"]["version"] and found[host]["logical_gpus"] == 2
        (cache,) = [entry for entry in found[host]["details"]["filesystems"] if entry["path"] == "/models"]
        assert cache["total_bytes"] > 1_000_000_000
        image = found[host]["details"]["image"]
        assert image["architecture"] == found[host]["docker"]["architecture"]
        assert image["id"].startswith("sha256:")
        assert found[host]["details"]["revisions"].keys() == {"sandbox--tiny-llama"}
    assert "  docker " in cluster.vcluster("check", "--facts", "gpu2").ok().out
    refused = cluster.vcluster("check", "--facts", "gpu3")
    assert (refused.code, "no host gpu3" in refused.err) == (2, True)


@pytest.mark.deep
@pytest.mark.cluster("up")
def test_a_cluster_that_is_up_is_well(cluster: Sandbox) -> None:
    """Its own containers, ports and memory cause no finding."""
    report = check(cluster)
    assert (report["findings"], report["ok"]) == ([], True)
