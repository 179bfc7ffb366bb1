"""A Docker of our own that is stopped and started: what it still knows of labels."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support import docker_api
from tests.support.docker_api import LABEL, Docker
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import HostError

AS_ROOT = [] if os.geteuid() == 0 else ["sudo", "-n"]
# In a network of its own: with --bridge=none dockerd removes the machine's docker0, with a bridge it takes it over.
ALONE = ("unshare", "--net")
WITHOUT_NETWORK = ("--bridge=none", "--iptables=false", "--ip-masq=false", "--ip-forward=false")


class Daemon:
    """A dockerd with folders and a socket of its own, beside the machine's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = f"unix://{folder}/socket"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        places = [f"--{name}={self.folder / name}" for name in ("data-root", "exec-root", "pidfile")]
        argv = [*ALONE, "dockerd", f"--host={self.socket}", f"--group={os.getgid()}", *places, *WITHOUT_NETWORK]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen([*AS_ROOT, *argv], stdout=log, stderr=log)
        deadline = Deadline.after(60)
        version = ["docker", "--host", self.socket, "version"]
        while subprocess.run(version, capture_output=True, check=False, timeout=20).returncode:
            assert self._process.poll() is None, (self.folder / "log").read_text()[-2000:]
            assert deadline.left(), "dockerd does not answer"
            time.sleep(0.1)

    def stop(self) -> None:
        """Stop it as a service manager does."""
        if self._process:
            subprocess.run([*AS_ROOT, "kill", (self.folder / "pidfile").read_text().strip()], check=True)
            self._process.wait(60)
            self._process = None


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """A running dockerd that the client finds."""
    folder = Path(tempfile.mkdtemp(prefix="vc-dockerd-", dir="/tmp"))  # the path of a socket is short
    made = Daemon(folder)
    try:
        made.start()
        monkeypatch.setenv("DOCKER_HOST", made.socket)
        yield made
    finally:
        with suppress(FileNotFoundError):
            made.stop()
        subprocess.run([*AS_ROOT, "rm", "-rf", str(folder)], check=True)


def restarted(docker: Docker, daemon: Daemon | None) -> None:
    """Restart the real one; the fake one answers as after a restart, always."""
    docker.close()
    if daemon:
        daemon.stop()
        daemon.start()


def remembers(docker: Docker, daemon: Daemon | None) -> None:
    """Volumes and containers keep their labels, and those of the cluster are known by them."""
    name = docker.name("volume")
    docker.client.volumes.create(name, docker.labels)
    made = docker.create("one", "exit 0")
    restarted(docker, daemon)
    again = docker.ask("POST", "/volumes/create", json_body={"Name": name, "Labels": docker.labels})
    assert (again.status, again.json["Labels"] in (None, docker.labels)) == (201, True)
    assert docker.ask("GET", f"/volumes/{name}").json["Labels"] == docker.labels
    docker.client.volumes.create(name, docker.labels)
    with pytest.raises(HostError, match="exists but does not belong to this cluster"):
        docker.client.volumes.create(name, {LABEL: "other"})
    assert docker.client.volumes.labelled(f"{LABEL}={docker.label}").keys() == {name}
    (kept,) = docker.client.containers(f"{LABEL}={docker.label}")
    assert (kept.id, dict(kept.labels)) == (made, docker.labels)
    docker.close()


def test_a_restarted_docker_knows_its_labels(daemon: Daemon) -> None:
    assert shutil.which("dockerd"), "dockerd not found; scripts/setup-docker.sh installs it"
    remembers(docker_api.real(), daemon)


def test_so_does_the_fake_one() -> None:
    remembers(docker_api.fake(), None)
