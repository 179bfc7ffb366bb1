"""The hosts: containers with a fixed address, each with sshd, its own Docker engine and its own models."""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from docker.client import DockerClient
from docker.errors import APIError, NotFound
from docker.models.containers import Container

from vcluster_sandbox.containers import create, in_volume, remove, wait_for_engine
from vcluster_sandbox.local_docker import File, execute, put
from vcluster_sandbox.names import LABEL, LABEL_HOST, LABEL_RECIPE, Sandbox
from vllm_cluster.kernel.errors import VclusterError
from vllm_cluster.kernel.shell_line import command_line

LOOPBACK = "127.0.0.1"
_FIRST = 11
_SSH_S, _KEY_S = 30, 30
# Its type, and itself.
_KEY_WORDS = 2
_USER_ID = 1000


@dataclass(frozen=True)
class SandboxHost:
    """A running host, as the laptop and the other hosts reach it."""

    name: str
    address: str
    port: int
    key: str


def found(engine: DockerClient, sandbox: Sandbox) -> dict[str, Container]:
    """The sandbox's hosts by name, running or not."""
    found = engine.containers.list(all=True, filters={"label": f"{LABEL}={sandbox.id}"})
    return {container.labels[LABEL_HOST]: container for container in found}


def ensure_network(engine: DockerClient, sandbox: Sandbox) -> ipaddress.IPv4Network:
    """The hosts' network, in a subnet that Docker itself found free."""
    for network in engine.networks.list(names=[sandbox.network]):
        if network.name == sandbox.network:
            return _subnet(network)
    # Addresses can be fixed only in a subnet that was asked for by name, so ask for the one that Docker would take.
    probe = engine.networks.create(sandbox.network, driver="bridge", labels={LABEL: sandbox.id})
    probe.reload()
    subnet = _subnet(probe)
    probe.remove()
    ipam: Any = {"Driver": "default", "Config": [{"Subnet": str(subnet)}]}
    engine.networks.create(sandbox.network, driver="bridge", labels={LABEL: sandbox.id}, ipam=ipam)
    return subnet


def _subnet(network: Any) -> ipaddress.IPv4Network:
    return ipaddress.IPv4Network(network.attrs["IPAM"]["Config"][0]["Subnet"])


def address_of(subnet: ipaddress.IPv4Network, index: int) -> str:
    """The fixed address of the host with this number, counted from 0."""
    return str(subnet.network_address + _FIRST + index)


def remove_host(engine: DockerClient, sandbox: Sandbox, image: str, host: str, container: Container) -> None:
    """Remove a host with its images and models; its identity stays in the volume, for the one that comes after it."""
    remove(container)
    in_volume(engine, image, "rm", "-rf", f"{sandbox.data(host)}/docker", f"{sandbox.data(host)}/models")


def make_host(
    engine: DockerClient,
    sandbox: Sandbox,
    host: str,
    *,
    image: str,
    golden: str,
    recipe: str,
    address: str,
    allowed: dict[str, Any],
) -> Container:
    """Create a host; nothing of it runs yet."""
    # A port chosen now, not by Docker: Docker would choose another one at every start.
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port = probe.getsockname()[1]
    published = {"22/tcp": [{"HostIp": LOOPBACK, "HostPort": str(port)}]}
    return create(
        engine,
        image=image,
        name=sandbox.container(host),
        hostname=host,
        command=[golden, sandbox.data(host)],
        labels={LABEL: sandbox.id, LABEL_HOST: host, LABEL_RECIPE: recipe},
        host_config={**allowed, "PortBindings": published},
        network=(sandbox.network, address),
    )


def configure(container: Container, public_key: str, gpus: int) -> None:
    """Allow the user's key, and write how many logical GPUs the host offers."""
    key = File(".ssh/authorized_keys", f"{public_key}\n".encode(), mode=0o600, owner=_USER_ID)
    put(container, "/home/vcluster", [key])
    put(container, "/etc/vcluster", [File("slots", f"{gpus}\n".encode())])


def wait_until_up(container: Container, sandbox: Sandbox) -> SandboxHost:
    """Wait for its Docker engine and its sshd; its key comes from the host itself, not over the network."""
    wait_for_engine(container)
    container.reload()
    name = container.labels[LABEL_HOST]
    attrs = container.attrs
    port = int(attrs["HostConfig"]["PortBindings"]["22/tcp"][0]["HostPort"])
    _wait_for_ssh(name, port)
    key = _read_key(container, name, f"{sandbox.data(name)}/ssh_host_ed25519_key.pub")
    address = attrs["NetworkSettings"]["Networks"][sandbox.network]["IPAddress"]
    return SandboxHost(name, address, port, key)


def _read_key(container: Container, name: str, path: str) -> str:
    """The host key, once it can be read: under load Docker has returned nothing of a command that had ended well.

    Raises:
        VclusterError: the host has ended, or its key cannot be read in time.
    """
    end, why = time.monotonic() + _KEY_S, "it is empty"
    while True:
        try:
            words = execute(container, ["cat", path], deadline=10).split()
        except (VclusterError, APIError) as error:
            words, why = [], str(error)
        if len(words) >= _KEY_WORDS:
            return " ".join(words[:_KEY_WORDS])
        container.reload()
        if container.status != "running" or time.monotonic() >= end:
            text = f"{name}: its host key cannot be read: {why}; its container {container.name} is {container.status}"
            look = command_line("docker", "logs", str(container.name))
            raise VclusterError(text, hint=f"vcluster sandbox up\n{look}")
        time.sleep(0.05)


def _wait_for_ssh(name: str, port: int) -> None:
    """Until sshd greets: Docker's own proxy accepts connections before anything listens behind it."""
    end = time.monotonic() + _SSH_S
    while time.monotonic() < end:
        try:
            with socket.create_connection((LOOPBACK, port), timeout=2) as connection:
                connection.settimeout(2)
                if connection.recv(4) == b"SSH-":
                    return
        except OSError:
            pass
        time.sleep(0.05)
    raise VclusterError(f"{name}: sshd does not answer at {LOOPBACK}:{port} after {_SSH_S} s")


def start_all(containers: Sequence[Container]) -> list[Container]:
    """Start those that do not run; returns which."""
    stopped = [container for container in containers if container.status != "running"]
    for container in stopped:
        container.start()
    return stopped


def remove_network(engine: DockerClient, sandbox: Sandbox) -> None:
    """Remove the hosts' network, if it is the sandbox's."""
    for network in engine.networks.list(filters={"label": f"{LABEL}={sandbox.id}"}):
        try:
            network.remove()
        except NotFound:
            continue
