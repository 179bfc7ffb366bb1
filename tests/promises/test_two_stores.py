"""P57: a fleet of which one Docker keeps its images in containerd, where the id of an image is another one."""

from __future__ import annotations

from pathlib import Path
from shutil import which

import pytest

from tests.support.attack import attack
from tests.support.breaks import broken
from tests.support.hosts import Sandbox
from tests.support.two_stores import TwoStores, two_stores
from vcluster_sandbox import names
from vcluster_sandbox.names import CPU_IMAGE

pytestmark = [pytest.mark.promise, pytest.mark.deep]

# The engine's own script without the driver that it names; the data of the other store stays beside it.
CONTAINERD = """set -eu
engine stop
mkdir -p /etc/docker
echo '{{"features": {{"containerd-snapshotter": true}}}}' >/etc/docker/daemon.json
sed 's/ --storage-driver overlay2//' "$(command -v engine)" >/tmp/engine
sh /tmp/engine start {data} >/dev/null 2>&1
until docker version >/dev/null 2>&1; do sleep 0.1; done
"""
OVERLAY = """docker system prune --all --force --volumes >/dev/null
engine stop
rm -f /etc/docker/daemon.json /tmp/engine
engine start {data} >/dev/null 2>&1
until docker version >/dev/null 2>&1; do sleep 0.1; done
"""


@pytest.mark.e2e
@pytest.mark.cluster("empty")
@pytest.mark.parametrize("host", ["gpu1", "gpu2"])
def test_hosts_with_two_stores_are_one_fleet(sandbox: Sandbox, host: str) -> None:
    """No registry has the image: the host gets it from the other one, then gives it back under another name."""
    other = "gpu2" if host == "gpu1" else "gpu1"
    data = names.Sandbox(sandbox.folder).data(host)
    with (
        broken(sandbox, host, CONTAINERD.format(data=data), OVERLAY.format(data=data)),
        attack("P57", f"Docker on {host} keeps its images in containerd") as measured,
    ):
        sandbox.vcluster("up", "--yes").ok()
        look = ("image", "inspect", "--format", "{{.Id}}", CPU_IMAGE)
        assert sandbox.docker(host, *look) != sandbox.docker(other, *look)
        nodes = sandbox.nodes()
        again = sandbox.vcluster("up", "--yes", "--json").ok()
        assert again.event("result")["operations"] == 0
        assert sandbox.nodes() == nodes
        pushed = "lab/two-stores:1"
        for source in (host, other):
            sandbox.docker(source, "tag", CPU_IMAGE, pushed)
            sandbox.vcluster("image", "push", pushed, "--from", source).ok()
            for one in (host, other):
                sandbox.docker(one, "rmi", pushed)
        assert sandbox.vcluster("plan", "--exit-code").code == 0
        sandbox.vcluster("down", "--yes").ok()
        measured.figure = "up converges; the second one: 0 operations; pushed both ways"


# What Docker saves of an image, with one layer that is another one: packed, it is a thousandth of what it becomes.
LYING = """#!/usr/bin/env python3
import gzip, io, json, os, subprocess, sys, tarfile
docker = {docker!r}
if sys.argv[1:2] != ["save"]:
    os.execv(docker, ["docker", *sys.argv[1:]])
saved = tarfile.open(fileobj=io.BytesIO(subprocess.run([docker, *sys.argv[1:]], stdout=-1, check=True).stdout))
made = tarfile.open(fileobj=sys.stdout.buffer, mode="w|")
def add(name, data):
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    made.addfile(entry, io.BytesIO(data))
for entry in saved:
    if entry.name != "manifest.json":
        made.addfile(entry, saved.extractfile(entry) if entry.isfile() else None)
listed = json.load(saved.extractfile("manifest.json"))
listed[0]["Layers"][-1] = "other"
large = tarfile.TarInfo("large")
large.size = 256 << 20
add("other", gzip.compress(large.tobuf() + bytes(large.size + 1024)))
add("manifest.json", json.dumps(listed).encode())
made.close()
"""


def push(stores: TwoStores, name: str, source: str) -> None:
    """Push an image that the other host lacks; another push sends nothing."""
    sent = stores.vcluster("image", "push", name, "--from", source)
    assert sent.returncode == 0, sent.stderr
    assert "the image is there, and the same" in sent.stderr
    again = stores.vcluster("image", "push", name, "--from", source)
    assert (again.returncode, again.stderr.rstrip().endswith("(no changes)")) == (0, True), again.stderr


def test_an_image_goes_from_docker_to_a_containerd_store_and_back(tmp_path: Path) -> None:
    """Two engines of two versions: Debian's of this machine, and 26.1 with containerd's store."""
    with (
        attack("P57", "image push from Docker's own store to containerd's, and a new layer back") as measured,
        two_stores(tmp_path) as stores,
    ):
        stores.docker("classic", "tag", stores.base, "stores/first:1")
        push(stores, "stores/first:1", "classic")
        ids = {stores.docker(host, "image", "inspect", "-f", "{{.Id}}", "stores/first:1") for host in stores.sockets}
        assert len(ids) == 2
        # Each field that Docker knows of an image: both stores describe it the same way.
        recipe = "FROM stores/first:1\nRUN head -c 5000000 /dev/urandom >/new\n"
        recipe += "ENV A=b C=\nLABEL d=e\nEXPOSE 80/tcp\nVOLUME /data\nWORKDIR /srv\nSTOPSIGNAL SIGINT\n"
        recipe += 'SHELL ["/bin/sh", "-ec"]\nHEALTHCHECK --interval=3s CMD true\nONBUILD RUN id\n'
        stores.docker("containerd", "build", "--network", "none", "-t", "stores/second:1", "-", text=recipe)
        push(stores, "stores/second:1", "containerd")
        look = ("run", "--rm", "--network", "none", "stores/second:1", "sha256sum", "/new")
        assert stores.docker("classic", *look) == stores.docker("containerd", *look)
        for host in stores.sockets:
            assert "stores" not in stores.docker(
                host, "ps", "--all", "--format", "{{.Names}}", "--filter", "name=vcluster-stores"
            )
        engines = [stores.docker(host, "version", "-f", "{{.Server.Version}}") for host in stores.sockets]
        measured.figure = f"whole both ways, Docker {engines[0]} and {engines[1]}; again: nothing is sent"


@pytest.mark.promise("P47")
def test_a_host_that_saves_another_layer_than_its_own_reaches_no_other_hosts_docker(tmp_path: Path) -> None:
    """The remedy does not ask it again; and the images of both are as they were."""
    with (
        attack("P47", "image push from a host whose docker save gives a layer that unpacks to 256 MB") as measured,
        two_stores(tmp_path) as stores,
    ):
        stores.docker("classic", "tag", stores.base, "stores/first:1")
        stores.replace("classic", "docker", LYING.format(docker=which("docker")))
        before = stores.docker("containerd", "images", "--all", "--quiet")
        sent = stores.vcluster("image", "push", "stores/first:1", "containerd", "--from", "classic")
        assert sent.returncode == 1, sent.stderr
        assert "classic: docker save failed: it gave other layers than those that its Docker lists" in sent.stderr
        assert "fix: pull the image on each host" in sent.stderr
        assert "--from" not in sent.stderr
        assert stores.docker("containerd", "images", "--all", "--quiet") == before
        measured.figure = "refused before a byte is sent; the source is named"
