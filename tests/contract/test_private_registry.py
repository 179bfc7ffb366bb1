"""A real registry that demands a login: the host's own login is used, and without one the error has the remedy."""

from __future__ import annotations

import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import bcrypt
import pytest

from tests.support import docker_api
from tests.support.ports import free_port
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import CommandFailed
from vllm_cluster.kernel.hosts.connection import HostConnection
from vllm_cluster.kernel.images.pull import pull

pytestmark = pytest.mark.promise("P31")

USER, PASSWORD = "someone", "a-password-of-the-host"
CONFIG = """
version: 0.1
storage: {{filesystem: {{rootdirectory: {folder}/data}}}}
http: {{addr: "127.0.0.1:{port}"}}
auth: {{htpasswd: {{realm: test, path: {folder}/htpasswd}}}}
"""


@dataclass(frozen=True)
class Registry:
    """A registry on loopback that holds one image."""

    where: str
    image: str


def docker(*argv: str, config: Path, stdin: str = "") -> None:
    """Run docker with a configuration of its own."""
    command = ["docker", "--config", str(config), *argv]
    subprocess.run(command, check=True, input=stdin, text=True, stdout=subprocess.DEVNULL, timeout=60)


def log_in(registry: str, config: Path) -> None:
    """`docker login`, as a person does it once on a host."""
    docker("login", "--username", USER, "--password-stdin", registry, config=config, stdin=PASSWORD)


def await_challenge(url: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until the registry answers, and demands a login."""
    deadline = Deadline.after(20)
    while deadline.left():
        assert process.poll() is None, "the registry ended"
        try:
            urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=2)
        except urllib.error.HTTPError as error:
            assert error.code == 401
            return
        except OSError:
            time.sleep(0.05)
    raise AssertionError("the registry does not answer")


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A registry with an image that this machine's Docker has no more."""
    program = shutil.which("docker-registry")
    assert program, "docker-registry not found; scripts/setup-sshd.sh installs it"
    folder = tmp_path_factory.mktemp("registry")
    port = free_port()
    (folder / "htpasswd").write_text(f"{USER}:{bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(5)).decode()}\n")
    (folder / "config.yml").write_text(CONFIG.format(folder=folder, port=port))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, "serve", str(folder / "config.yml")], stdout=log, stderr=log)
    try:
        await_challenge(f"http://127.0.0.1:{port}/v2/", process)
        where = f"127.0.0.1:{port}"
        made, pusher = Registry(where, f"{where}/team/private:1"), folder / "pusher"
        source = docker_api.real()
        log_in(where, pusher)
        docker("tag", source.image, made.image, config=pusher)
        docker("push", made.image, config=pusher)
        docker("rmi", made.image, source.image, config=pusher)
        yield made
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: Registry) -> Iterator[HostConnection]:
    """A host whose docker has a configuration of its own, empty at first, in `tmp_path`."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    link = HostConnection("gpu1", docker_api.here())
    link.may_change = True  # these tests hold no lease
    link.open_docker("1.41")
    yield link
    link.close()
    subprocess.run(["docker", "rmi", registry.image], check=False, capture_output=True)


def test_without_a_login_the_error_names_the_command(host: HostConnection, registry: Registry) -> None:
    with pytest.raises(CommandFailed) as caught:
        pull(host, registry.image, Deadline.after(60), lambda _: None)
    assert str(caught.value).startswith(f"gpu1: cannot pull {registry.image}: Error response from daemon: ")
    assert "no basic auth credentials" in str(caught.value)
    assert f"run on gpu1: docker login {registry.where}" in str(caught.value.hint).splitlines()[0]


def test_the_login_of_the_host_is_used(host: HostConnection, registry: Registry, tmp_path: Path) -> None:
    log_in(registry.where, tmp_path)
    told: list[str] = []
    pull(host, registry.image, Deadline.after(60), told.append)
    assert host.docker.image_info(registry.image) is not None
    assert told[-1] == f"pulling {registry.image}: 1 of 1 layers"


def test_a_name_that_is_not_there(host: HostConnection, registry: Registry, tmp_path: Path) -> None:
    log_in(registry.where, tmp_path)
    with pytest.raises(CommandFailed, match="manifest unknown"):
        pull(host, f"{registry.where}/team/none:1", Deadline.after(60), lambda _: None)
