"""What is known to go wrong before anything is touched."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low

from vllm_cluster.core.desired import found_gpus, interface
from vllm_cluster.core.facts import HostFacts
from vllm_cluster.core.images import find
from vllm_cluster.core.spec import CLUSTER, FORMAT, FORMAT_LABEL, HEAD_ADDRESS, VERSION
from vllm_cluster.inventory.model import Host, Inventory

OLDEST_DOCKER = "20.10"
# Hosts further apart than this cannot have their logs put in order (k0s draws the same line).
CLOCK_TOLERANCE = 30.0
# What no vLLM image fits into, unpacked, and what some need: the size is known only while it is pulled.
LEAST_ROOM, GOOD_ROOM = 10e9, 40e9


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, on which host, and what to do; only errors keep `up` from starting."""

    code: str
    host: str
    text: str
    fix: str
    error: bool = True


def engine_problem(facts: HostFacts) -> Finding | None:
    """Why the host's Docker cannot be used, None when it can."""
    engine, said = facts.engine, facts.engine.problem
    if "not found" in said or "No such file" in said:
        return Finding("docker-missing", facts.host, "Docker is not installed", "install it: docs.docker.com/engine")
    if "permission denied" in said:
        fix = f"on {facts.host}: sudo usermod -aG docker $USER, then log in again"
        return Finding("docker-forbidden", facts.host, "this user may not use Docker", fix)
    if said:
        fix = f"on {facts.host}: sudo systemctl start docker"
        return Finding("docker-stopped", facts.host, f"Docker does not answer: {said.splitlines()[-1]}", fix)
    if tuple(int(part) for part in engine.api_version.split(".")) < (1, 41):
        text = f"Docker {engine.version} is too old"
        return Finding("docker-old", facts.host, text, f"upgrade to {OLDEST_DOCKER} or newer")
    return None


def preflight(inventory: Inventory, facts: Mapping[str, HostFacts]) -> tuple[Finding, ...]:
    """Everything found, errors first; nothing is touched while there is an error."""
    findings: list[Finding] = []
    for name, host in inventory.hosts.items():
        for check in _HOST_CHECKS:
            findings += check(inventory, host, facts[name])
    findings += _machines(facts)
    findings += _clocks(facts)
    findings += _one_image(inventory, facts)
    return tuple(sorted(findings, key=lambda finding: not finding.error))


def _gpus(inventory: Inventory, host: Host, facts: HostFacts) -> Iterator[Finding]:
    found = found_gpus(facts, inventory.accelerator)
    if inventory.accelerator == "cpu" and host.gpus is not None and facts.slots is None:
        found = host.gpus  # a CPU host that says nothing offers what the inventory asks
    kind = "logical GPUs (from /etc/vcluster/slots)" if inventory.accelerator == "cpu" else "GPUs (by nvidia-smi)"
    if host.gpus is not None and host.gpus > found:
        text = f"the inventory says {host.gpus} GPUs, the host has {found} {kind}"
        yield Finding("gpus-fewer", host.name, text, f"set hosts.{host.name}.gpus to {found}, or mend the host")
    elif not found:
        text = f"no {kind} found"
        yield Finding("gpus-none", host.name, text, "install the NVIDIA driver, or take the host out of the inventory")


def _network(inventory: Inventory, host: Host, facts: HostFacts) -> Iterator[Finding]:
    if facts.interface_of(host.address) is None:
        have = ", ".join(f"{a} ({nic.name})" for nic in facts.nics if nic.name != "lo" for a in nic.addresses)
        text = f"no interface holds the address {host.address}; it has {have or 'none that `ip -j addr` shows'}"
        yield Finding("address", host.name, text, f"correct hosts.{host.name}.address")
    wanted = interface(host, facts)
    if wanted and not any(nic.name == wanted for nic in facts.nics):
        have = ", ".join(nic.name for nic in facts.nics)
        text = f"there is no interface {wanted}; it has {have}"
        yield Finding("interface", host.name, text, f"correct hosts.{host.name}.interface")
    for name, peer in inventory.hosts.items():
        if name != host.name and facts.routes.get(peer.address) is None:
            text = f"no route to {name} ({peer.address})"
            yield Finding("route", host.name, text, "put both hosts' addresses on one private network")
        elif name != host.name and facts.routes.get(peer.address) == "lo":
            text = f"{peer.address}, the address of {name}, is its own"
            yield Finding("address", host.name, text, f"correct hosts.{name}.address")


def _hcas(_: Inventory, host: Host, facts: HostFacts) -> Iterator[Finding]:
    for device in host.hcas or ():
        ports = [hca for hca in facts.hcas if hca.device == device]
        if not any(port.active for port in ports):
            state = ports[0].state if ports else "not there"
            yield Finding("hca", host.name, f"{device} is {state}", f"correct hosts.{host.name}.hcas, or cable it")


def _ports(inventory: Inventory, host: Host, facts: HostFacts) -> Iterator[Finding]:
    name = f"vcluster-{inventory.cluster}"
    if any(container.name == name and container.state in ("running", "paused") for container in facts.containers):
        return  # what listens is ours; a paused one goes on listening
    ports = inventory.ports
    wanted = ["node_manager", "object_manager", "dashboard_agent", "runtime_env_agent"]
    wanted += ["gcs", "dashboard", "client_server"] if host.name == inventory.head_name else []
    for key in wanted:
        port = getattr(ports, key)
        if port in facts.listening:
            text = f"port {port} is taken (ports.{key})"
            yield Finding(
                "port", host.name, text, f"end what listens there (ss -ltnp 'sport = {port}'), or set ports.{key}"
            )


def _foreign(inventory: Inventory, host: Host, facts: HostFacts) -> Iterator[Finding]:
    addresses = {entry.address for entry in inventory.hosts.values()}
    for container in facts.containers:
        labels = container.labels
        cluster, head = labels.get(CLUSTER), labels.get(HEAD_ADDRESS)
        if cluster != inventory.cluster:
            text = f"it already belongs to the cluster {cluster}"
            fix = "run vcluster down with that cluster's inventory, or take the host out of this one"
            yield Finding("other-cluster", host.name, text, fix)
        elif _newer(labels.get(FORMAT_LABEL)):
            text = f"its container was made by a newer vcluster ({labels.get(VERSION)})"
            yield Finding("newer", host.name, text, "upgrade vcluster on this machine")
        elif head not in addresses and head is not None:
            text = f"it belongs to a cluster of the same name, {cluster}, whose head is {head}"
            yield Finding("other-cluster", host.name, text, "give this cluster another name, or use that inventory")


def _newer(label: str | None) -> bool:
    return label is not None and not (label.isdecimal() and int(label) <= FORMAT)


def _room(inventory: Inventory, host: Host, facts: HostFacts) -> Iterator[Finding]:
    free = facts.free.get(facts.engine.root)
    if free is None or find(inventory.image, facts.images):
        return
    fix = f"on {host.name}: docker system prune, or move Docker's data root to a larger disk"
    if free < GOOD_ROOM:
        text = f"{inventory.image} must be pulled, and {facts.engine.root} has {free / 1e9:.1f} GB free"
        yield Finding("room", host.name, text, fix, error=free < LEAST_ROOM)


def _paths(inventory: Inventory, host: Host, facts: HostFacts) -> Iterator[Finding]:
    for volume in inventory.volumes:
        if volume.source in facts.missing_paths:
            text = f"{volume.source}, a volume of the inventory, does not exist"
            yield Finding("volume", host.name, text, f"on {host.name}: mkdir -p {volume.source}, or correct volumes")
    if inventory.model_cache in facts.missing_paths:
        text = f"the model cache {inventory.model_cache} does not exist and will be made"
        yield Finding("model-cache", host.name, text, "correct model_cache if models are elsewhere", error=False)


_HOST_CHECKS: Sequence[Callable[[Inventory, Host, HostFacts], Iterator[Finding]]] = (
    _gpus,
    _network,
    _hcas,
    _ports,
    _foreign,
    _room,
    _paths,
)


def _machines(facts: Mapping[str, HostFacts]) -> Iterator[Finding]:
    seen: dict[str, str] = {}
    for name, host in facts.items():
        first = seen.setdefault(host.machine_id, name) if host.machine_id else name
        if first != name:
            text = f"{name} and {first} are one machine, or clones with one machine id ({host.machine_id})"
            fix = "take one out; on clones: rm /etc/machine-id && systemd-machine-id-setup"
            yield Finding("same-machine", name, text, fix)


def _clocks(facts: Mapping[str, HostFacts]) -> Iterator[Finding]:
    # The low one: with two hosts, the middle between them would halve the difference.
    middle = median_low(host.clock for host in facts.values())
    for name, host in facts.items():
        if abs(host.clock - middle) > CLOCK_TOLERANCE:
            text = f"its clock is {host.clock - middle:+.0f} s from the other hosts'"
            yield Finding("clock", name, text, f"on {name}: chronyc makestep, or timedatectl set-ntp true", error=False)


def _one_image(inventory: Inventory, facts: Mapping[str, HostFacts]) -> Iterator[Finding]:
    ids: dict[str, list[str]] = {}
    for name, host in facts.items():
        image = find(inventory.image, host.images)
        if image:
            ids.setdefault(image.id, []).append(name)
    if len(ids) > 1:
        common = max(ids.values(), key=len)
        for image_id, names in ids.items():
            if names is not common:
                text = f"{inventory.image} is {image_id[:19]} here and another image on {', '.join(common)}"
                yield Finding(
                    "image-differs", names[0], text, f"docker pull {inventory.image} on every host, or pin a digest"
                )
