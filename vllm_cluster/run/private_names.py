"""What an anonymous bundle replaces: every name and path that shows whose machines these are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from vllm_cluster.core.facts import HostFacts
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.run.fleet import endpoints
from vllm_cluster.run.runtime import SYSTEM, Runtime
from vllm_cluster.transport.sshconfig import Resolved

# What everybody has says nothing of anyone; a report without them is harder to read.
_PUBLIC = frozenset(("root", "ubuntu", "localhost", "local", "none", "nc", "ssh", "vllm", "vllm/vllm-openai"))
# "connect" in a proxy command or "WARN" under environment are words of every log.
_SAYS_MORE = re.compile(r"(?=.{6})(?=.*[^A-Za-z0-9_%:-])|(?=.{8})(?=.*[A-Za-z])(?=.*\d)")


def private_names(inventory: Inventory, facts: Iterable[HostFacts], runtime: Runtime = SYSTEM) -> Iterator[str]:
    """Names of hosts, users, jump hosts and proxies as the inventory and ssh_config have them, images and paths."""
    found = (*_of_the_inventory(inventory), *_of_ssh(inventory, runtime))
    yield from (name for name in found if name and name not in _PUBLIC)
    for host in facts:
        yield from filter(None, (host.hostname, host.machine_id))


def _of_the_inventory(inventory: Inventory) -> Iterator[str]:
    ssh = inventory.ssh
    for name, host in inventory.hosts.items():
        yield from (name, host.ssh.host or "", host.ssh.user or "", str(host.ssh.identity or ""))
        yield from _hops(host.ssh.jump)
    yield from (inventory.cluster, ssh.user or "", *_hops(ssh.jump))
    yield from (str(path) for path in (ssh.config, ssh.identity, Path.home(), inventory.path) if path)
    yield from _of_image(inventory.image)
    yield from (inventory.model_cache, *(path for one in inventory.volumes for path in (one.source, one.target)))
    yield from filter(_SAYS_MORE.match, inventory.environment.values())


def _of_image(image: str) -> Iterator[str]:
    """Registry and path, whole and in parts: an error names one or the other."""
    folder, slash, last = image.partition("@")[0].rpartition("/")
    last = last.partition(":")[0]
    if folder + slash + last not in _PUBLIC:
        registry, _, port = folder.partition("/")[0].rpartition(":")
        yield from (folder + slash + last, folder, registry or port, *folder.split("/"), last)


def _of_ssh(inventory: Inventory, runtime: Runtime) -> Iterator[str]:
    # Where ssh_config is wrong, that is reported elsewhere, and keeps nothing else from being packed.
    for end in endpoints(inventory, runtime).values():
        yield from _of_way(end)


def _of_way(end: Resolved | None) -> Iterator[str]:
    while end:
        yield from (end.host, end.destination, end.user, end.host_key_alias or "")
        if end.proxy_command:
            yield end.proxy_command
            words = filter(_SAYS_MORE.match, end.proxy_command.split())
            yield from (part for word in words for part in (word, word.rpartition(":")[0]))
        end = end.jump


def _hops(jump: str | None) -> Iterator[str]:
    for hop in (jump or "").split(","):
        user, _, place = hop.rpartition("@")
        yield from (hop, user, place, place.partition(":")[0])
