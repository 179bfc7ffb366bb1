"""What an anonymous bundle replaces: every name and path that shows whose machines these are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from vllm_cluster.core.members import Record
from vllm_cluster.core.spec import CLUSTER, NODE
from vllm_cluster.facts.host_facts import HostFacts
from vllm_cluster.inventory.model import Host, Inventory
from vllm_cluster.laptop import expanded, user, whoami
from vllm_cluster.run.connection import endpoints
from vllm_cluster.run.runtime import SYSTEM, Runtime
from vllm_cluster.transport.ssh_config import SshEndpoint

# What everybody has identifies no one; a report without them is harder to read.
_PUBLIC = frozenset(("root", "ubuntu", "localhost", "local", "none", "nc", "ssh", "head", "main", "ray", "nvidia"))
_PUBLIC |= {"vllm", "vllm-openai", "vllm/vllm-openai", "docker.io", "ghcr.io", "nvcr.io", "quay.io"}
_TAG = re.compile(r"v?\d[\w.+-]*|latest|stable|nightly[\w.-]*")
# "connect" in a proxy command or "WARN" under environment are words of every log.
_DISTINCTIVE = re.compile(r"(?=.{6})(?=.*[^A-Za-z0-9_%:-])|(?=.{8})(?=.*[A-Za-z])(?=.*\d)")
# What a driver or the system names by itself, and variables of programs that everybody has.
_INTERFACE = re.compile(
    r"(?:lo|eth|en[opsx]|ib[ops]?|bond|br-?|docker|veth|tun|tap|wg|wl|rdma|mlx|usb|virbr)[0-9a-fnps]*"
)
_VARIABLE = re.compile(
    r"(?:AWS|CUDA|CUBLAS|DO|FI|FLASHINFER|GLOO|GOOGLE|HF|HTTPS?|KMP|LMCACHE|MKL|NCCL|NO|NVIDIA|OMP|OTEL|PYTHON|PYTORCH|RAY"
    r"|S3|TOKENIZERS|TORCH|TORCHINDUCTOR|TRANSFORMERS|TRITON|UCX|VLLM|XDG)_\w+|PROXY|TZ|LANG",
    re.IGNORECASE,
)


def private_names(inventory: Inventory, facts: Iterable[HostFacts], runtime: Runtime = SYSTEM) -> Iterator[str]:
    """Names of hosts, users, jump hosts, proxies, images and paths: of the inventory, ssh_config, hosts and laptop."""
    found = [*_of_the_inventory(inventory), *_of_ssh(inventory, runtime)]
    found += [user(), *_of_name(whoami().rpartition("@")[2])]
    for host in facts:
        found += _of_host(host)
    yield from (name for name in found if name and name not in _PUBLIC)


def _of_host(host: HostFacts) -> Iterator[str]:
    yield from (*_of_name(host.hostname), host.machine_id, host.boot_id)
    yield from (gpu.uuid for gpu in host.gpus)
    yield from (nic.name for nic in host.nics if not _INTERFACE.fullmatch(nic.name))
    if host.docker.data_root != "/var/lib/docker":
        yield host.docker.data_root
    # Also what other people run there, and the members that a head remembers.
    for container in (*host.containers, *host.other_containers):
        yield from (container.name, *(container.labels.get(label, "") for label in (CLUSTER, NODE)))
    record, _ = Record.read(host.member_record.encode())
    for member in record.members if record else ():
        yield from (member.name, member.machine_id, *_of_name(member.host), member.user or "", *_hops(member.jump))


def _of_name(name: str) -> Iterator[str]:
    """A host's name whole, without its domain as logs have it, and the domain alone."""
    first, _, domain = name.partition(".")
    yield name
    if not first.isdigit() and ":" not in name:
        yield first
        yield domain if "." in domain else ""


def _of_the_inventory(inventory: Inventory) -> Iterator[str]:
    ssh = inventory.ssh
    for host in inventory.hosts.values():
        yield from _of_entry(host)
    yield from (inventory.cluster, ssh.user or "", *_hops(ssh.jump))
    yield from (name for name in (*inventory.environment, *inventory.secrets) if not _VARIABLE.fullmatch(name))
    references = (inventory.hf_token, inventory.api_key, *inventory.secrets.values())
    yield from (reference.value for reference in references if reference and not _VARIABLE.fullmatch(reference.value))
    yield from (str(path) for path in (ssh.config, ssh.identity, expanded("~"), inventory.path) if path)
    yield from _of_image(inventory.image)
    yield from (inventory.model_cache, *(path for one in inventory.volumes for path in (one.source, one.target)))
    yield from filter(_DISTINCTIVE.match, inventory.environment.values())


def _of_entry(host: Host) -> Iterator[str]:
    yield from (host.name, *_of_name(host.ssh.host or ""), host.ssh.user or "", str(host.ssh.identity or ""))
    yield from _hops(host.ssh.jump)
    if host.interface and not _INTERFACE.fullmatch(host.interface):
        yield host.interface


def _of_image(image: str) -> Iterator[str]:
    """Registry and path, whole and in parts: an error names one or the other."""
    folder, slash, last = image.partition("@")[0].rpartition("/")
    last, _, tag = last.partition(":")
    if folder + slash + last not in _PUBLIC:
        registry, _, port = folder.partition("/")[0].rpartition(":")
        yield from (folder + slash + last, folder, registry or port, *folder.split("/"), last)
        yield "" if _TAG.fullmatch(tag) else tag


def _of_ssh(inventory: Inventory, runtime: Runtime) -> Iterator[str]:
    # Where ssh_config is wrong, that is reported elsewhere, and keeps nothing else from being packed.
    for end in endpoints(inventory, runtime, inventory.hosts.values()).values():
        yield from _of_way(end)


def _of_way(end: SshEndpoint | None) -> Iterator[str]:
    while end:
        yield from (*_of_name(end.host), *_of_name(end.destination), end.user, end.host_key_alias or "")
        if end.proxy_command:
            yield end.proxy_command
            words = filter(_DISTINCTIVE.match, end.proxy_command.split())
            yield from (part for word in words for part in (word, word.rpartition(":")[0]))
        end = end.jump


def _hops(jump: str | None) -> Iterator[str]:
    for hop in (jump or "").split(","):
        login, _, place = hop.rpartition("@")
        yield from (hop, login, place, *_of_name(place.partition(":")[0]))
