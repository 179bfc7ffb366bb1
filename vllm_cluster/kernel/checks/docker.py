"""Docker itself, its room, and the containers that are already there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from vllm_cluster.kernel.checks.finding import Finding, each_host, has_node
from vllm_cluster.kernel.checks.heads import history_line, undecided_head
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.facts.values import number
from vllm_cluster.kernel.inventory.model import Host, Inventory
from vllm_cluster.kernel.plan import identity
from vllm_cluster.kernel.plan.desired import found_gpus
from vllm_cluster.kernel.plan.gpus import KIND, cdi_on, survives_restart, ways
from vllm_cluster.kernel.plan.images import find_image
from vllm_cluster.kernel.plan.spec import FORMAT, FORMAT_LABEL, ID, ROLE, VERSION, node_name
from vllm_cluster.kernel.shell_line import Option, command_line

MIN_DOCKER = "20.10"
# What no vLLM image fits into, unpacked, and what some need: the size is known only while it is pulled.
MIN_IMAGE_SPACE, GOOD_IMAGE_SPACE = 10e9, 40e9
# With less a container cannot even be made; with little, logs and a Ray layer fill it soon.
MIN_FREE_SPACE, GOOD_FREE_SPACE = 64e6, 2e9
# What the fact script prints where Docker refuses the user and answers to `sudo -n docker`.
SUDO = "sudo docker answers"
# What the fact script prints where Docker has not answered it in time: it runs, and hangs.
FROZEN = "no answer within"
# Before 1.18 a `systemctl daemon-reload` took the GPUs out of running containers.
SAFE_TOOLKIT = (1, 18)
# By the ids of /etc/os-release; each has Docker among its own packages, Red Hat's and Fedora's have not.
_INSTALL = {
    "debian": "sudo apt-get update && sudo apt-get install -y docker.io",
    "amzn": "sudo dnf install -y docker && sudo systemctl enable --now docker",
    "arch": "sudo pacman -S --noconfirm docker && sudo systemctl enable --now docker",
    "suse": "sudo zypper --non-interactive install docker && sudo systemctl enable --now docker",
}
_PAGES = ("fedora", "rhel")
# What other ways of starting vLLM and Ray over several hosts call their containers.
OTHER_LAUNCHERS = re.compile(r"(node(-\d+)?|vllm_node|ray[-_](head|worker)([-_]\d+)?|sparkrun[-_][\w.-]*)")


def engine_problem(facts: HostFacts) -> Finding | None:
    """Why the host's Docker cannot be used, None when it can."""
    docker, problem = facts.docker, facts.docker.problem
    if "not found" in problem or "No such file" in problem:
        return Finding("docker-missing", facts.host, "Docker is not installed", _install(facts))
    if "permission denied" in problem:
        text = f"this user may {'use Docker only with sudo' if SUDO in problem.splitlines() else 'not use Docker'}"
        fix = f'on {facts.host}: sudo usermod -aG docker "$USER", then log in again'
        return Finding("docker-forbidden", facts.host, text, fix)
    if problem.startswith(FROZEN):
        fix = f"on {facts.host}: sudo systemctl restart docker"
        return Finding("docker-stopped", facts.host, f"Docker does not answer: {problem}", fix)
    if problem:
        fix = f"on {facts.host}: sudo systemctl start docker"
        return Finding("docker-stopped", facts.host, f"Docker does not answer: {problem.splitlines()[-1]}", fix)
    if tuple(int(part) for part in docker.api_version.split(".")) < (1, 41):
        text = f"Docker {docker.version} is too old"
        return Finding("docker-old", facts.host, text, f"upgrade to {MIN_DOCKER} or newer")
    return None


def _install(facts: HostFacts) -> str:
    """The command that installs Docker there, else the page of Docker's own for the distribution."""
    if command := next((_INSTALL[name] for name in facts.distribution if name in _INSTALL), None):
        return f"on {facts.host}: {command}"
    page = next((f"/{name}" for name in facts.distribution if name in _PAGES), "")
    return f"on {facts.host}: install it as docs.docker.com/engine/install{page} describes"


def warn_of_foreign(inventory: Inventory, facts: Mapping[str, HostFacts]) -> Iterator[Finding]:
    """Nodes and volumes of other clusters, and a node of this one that a newer version made."""
    who = {labels[ID]: line for labels, line in _histories(facts)}
    for other in identity.find_foreign(inventory, facts):
        same = other.cluster == inventory.cluster
        fix = "use that cluster's inventory, or take the host out of this one"
        if same:
            yours = f"{_if_yours(inventory, facts, other)}{_known_as(inventory, facts, other)}"
            fix = f"{fix}, or give this cluster another name (cluster:){yours}"
        if other.id in who:
            fix = f"{fix}; who changed it last:\n{who[other.id]}"
        yield Finding("other-cluster", other.host, other.text, fix)
    yield from undecided_head(inventory, facts)
    for name, entry in facts.items():
        node = identity.node_of(inventory.cluster, entry)
        if node and _newer(node.labels.get(FORMAT_LABEL)):
            text = f"its container was made by a newer vcluster ({node.labels.get(VERSION)})"
            yield Finding("newer-format", name, text, "upgrade vcluster on this machine")


def _if_yours(inventory: Inventory, facts: Mapping[str, HostFacts], other: identity.Foreign) -> str:
    """What a person writes into the inventory, whose cluster that is after all."""
    if not re.fullmatch("[0-9a-f]{16}", other.id):
        return ""
    mine = f"; or, if that cluster is yours, set id: {other.id}"
    own = facts.get(inventory.head_name)
    same, is_head = (
        other.id == identity.authority(inventory, facts).id,
        own is not None and identity.is_head(inventory.cluster, own),
    )
    if same and is_head:
        # Of the head that the inventory names all is kept.
        return mine
    if other.head not in {host.address for host in inventory.hosts.values()}:
        # Without its address: that is the host's word, and the key would be brought there.
        there = "add its head to hosts: and set head: to it, run vcluster up, and then change the head"
        return f"; or, if that cluster is yours, {there}; if its head is gone for good, set id: {other.id}"
    for name, host in inventory.hosts.items() if not same else ():
        may_be = name in facts and host.address == other.head and name != inventory.head_name
        node = identity.node_of(inventory.cluster, facts[name]) if may_be else None
        if node and node.labels.get(ID) == other.id and identity.is_head(inventory.cluster, facts[name]):
            # Then this machine knows it as the head, from which another one may take over.
            return f"{mine} and head: {name}, run vcluster up, and then change the head"
    return mine


def _known_as(inventory: Inventory, facts: Mapping[str, HostFacts], other: identity.Foreign) -> str:
    """As what this machine knows a cluster of that name: an id that a host shows is its own word."""
    every = (led for entry in facts.values() for led in entry.known_heads.every if led.leads and led.id != other.id)
    known = dict.fromkeys(f"id {led.id} (head {led.address})" for led in every)
    return f"; this machine knows {inventory.cluster} as {', '.join(list(known)[:3])}" if known else ""


def _histories(facts: Mapping[str, HostFacts]) -> Iterator[tuple[Mapping[str, str], str]]:
    """The labels of each head that runs, and the command that shows who changed its cluster last."""
    for host, entry in facts.items():
        for one in entry.containers:
            if one.labels.get(ROLE) == "head" and ID in one.labels and one.state == "running":
                yield one.labels, history_line(one.name, host)


def _newer(label: str | None) -> bool:
    found = number(label)
    return label is not None and (found is None or found > FORMAT)


def _remove(host: Host, container: str) -> str:
    return f"on {host.name}, if it is unused: {command_line('docker', 'rm', Option('-f'), container)}"


@each_host
def name_taken(inventory: Inventory, host: Host, facts: HostFacts) -> Iterator[Finding]:
    """A container of another owner with the name of this cluster's node."""
    for container in facts.other_containers:
        if container.name == node_name(inventory.cluster):
            text = f"container {container.name} ({container.image}, {container.state}) does not belong to this cluster"
            fix = f"{_remove(host, container.name)}; or set another name in cluster"
            yield Finding("name-taken", host.name, text, fix)


@each_host
def other_containers(inventory: Inventory, host: Host, facts: HostFacts) -> Iterator[Finding]:
    """Leftover containers of other vLLM launchers."""
    for container in facts.other_containers:
        if OTHER_LAUNCHERS.fullmatch(container.name):
            text = f"container {container.name} ({container.image}, {container.state})"
            text += " looks like a leftover of another launcher"
            fix = _remove(host, container.name)
            yield Finding("leftover-container", host.name, text, fix, severity="warning")


@each_host
def disk_space(inventory: Inventory, host: Host, facts: HostFacts) -> Iterator[Finding]:
    """Room for the image that must be pulled, else for containers, logs and a layer."""
    free = facts.free_bytes.get(facts.docker.data_root)
    fix = f"on {host.name}: docker system df\nvcluster image prune\nor move Docker's data root to a larger disk"
    if free is None:
        return
    if find_image(inventory.image, facts.images) is None and free < GOOD_IMAGE_SPACE:
        text = f"{inventory.image} must be pulled, and {facts.docker.data_root} has {free / 1e9:.1f} GB free"
        yield Finding("image-space", host.name, text, fix, severity="error" if free < MIN_IMAGE_SPACE else "warning")
    elif free < GOOD_FREE_SPACE:
        text = f"{facts.docker.data_root} has {free / 1e6:.0f} MB free"
        # Nothing may have to be made where the node runs.
        full = free < MIN_FREE_SPACE and not has_node(inventory, facts, "running")
        yield Finding("disk-full", host.name, text, fix, severity="error" if full else "warning")


@each_host
def gpu_access(inventory: Inventory, host: Host, facts: HostFacts) -> Iterator[Finding]:
    """Whether Docker can give GPUs to containers, also after a restart."""
    docker = facts.docker
    if inventory.accelerator != "nvidia" or not found_gpus(facts, "nvidia"):
        return
    known = ways(docker)
    if not known:
        ignored = KIND in docker.cdi_specs
        cdi = "its CDI is off, so that the CDI file on the host is ignored" if ignored else "no CDI device"
        text = f"Docker cannot give GPUs to containers: no container runtime nvidia, no hook, {cdi}"
        fix = f"on {host.name}: install nvidia-container-toolkit, then sudo nvidia-ctk runtime configure "
        yield Finding("gpu-runtime-missing", host.name, text, f"{fix}&& sudo systemctl restart docker")
    if known[:1] == ("cdi",) and not survives_restart(docker):
        text = f"Docker {docker.version} does not restart containers with CDI devices after a restart of its own"
        fix = f"on {host.name}: upgrade Docker to 28.2, or sudo nvidia-ctk runtime configure && sudo systemctl restart"
        yield Finding("cdi-restart", host.name, f"{text}: after a reboot the node stays down until vcluster up",
                      f"{fix} docker", severity="warning")  # fmt: skip
    if known[:1] == ("cdi",) and docker.missing_cdi_paths:
        text = f"the CDI file names {', '.join(docker.missing_cdi_paths)}, which does not exist"
        fix = f"on {host.name}: sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
        # Libraries carry the driver's version and go into every container; a device may be of a GPU not asked for.
        yield Finding(
            "cdi-stale",
            host.name,
            text,
            fix,
            severity="error" if any(".so" in path for path in docker.missing_cdi_paths) else "warning",
        )


@each_host
def cdi_ignored(inventory: Inventory, host: Host, facts: HostFacts) -> Iterator[Finding]:
    """A CDI file for GPUs that the engine does not read, where another way is taken."""
    docker = facts.docker
    if inventory.accelerator == "nvidia" and KIND in docker.cdi_specs and not cdi_on(docker) and ways(docker):
        text = f"the CDI file for {KIND} is ignored: CDI is off in Docker {docker.version}, which has another way"
        switch = '{"features": {"cdi": true}} in /etc/docker/daemon.json (Docker 25 or newer)'
        fix = f"to use CDI all the same, on {host.name}: {switch}"
        yield Finding("cdi-off", host.name, text, fix, severity="warning")


@each_host
def toolkit(inventory: Inventory, host: Host, facts: HostFacts) -> Iterator[Finding]:
    """A toolkit with which GPUs get lost after hours."""
    docker = facts.docker
    old = docker.toolkit_version and tuple(int(part) for part in docker.toolkit_version.split(".")[:2]) < SAFE_TOOLKIT
    if old and docker.cgroup_driver == "systemd" and ways(docker)[:1] != ("cdi",):
        text = f"NVIDIA Container Toolkit {docker.toolkit_version} with systemd's cgroups"
        fix = f"on {host.name}: upgrade nvidia-container-toolkit to 1.18 or newer, or use CDI: "
        yield Finding("toolkit-old", host.name, text, f"{fix}sudo nvidia-ctk cdi generate", severity="warning")
