"""Checks over several keys: duplicates, names without a host, port conflicts."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from vllm_cluster.kernel.inventory.document import Document
from vllm_cluster.kernel.inventory.model import MAX_HOSTS, Host, Ports, SshSettings, Volume
from vllm_cluster.kernel.inventory.problems import Loc, key_of
from vllm_cluster.kernel.inventory.words import nearest, quote_value

_Model = TypeVar("_Model", bound=BaseModel)


@dataclass(frozen=True)
class _Parts:
    """The parts of a document that are sound by themselves, even where others are not."""

    hosts: Mapping[str, Host]
    ports: Ports
    ssh: SshSettings
    volumes: Mapping[int, Volume]


def check(document: Document) -> None:
    """Note every contradiction in the document, as far as its parts can be read."""
    if not isinstance(document.data, dict):
        return
    parts = _parts(document.data)
    _head(document, document.data)
    _twice(document, parts.hosts, "address", lambda host: host.address or (host.name,))
    _twice(document, parts.hosts, "ssh", lambda host: ssh_key(host, parts.ssh))
    _ports(document, parts.ports)
    _volumes(document, parts.volumes, document.data.get("model_cache"))
    _variables(document, document.data.get("environment"), document.data.get("secrets"))


def ssh_key(host: Host, settings: SshSettings) -> Hashable:
    """What makes two ways to a host the same way."""
    name = host.destination
    if name == "local":
        return name
    ssh = host.ssh
    # One private address behind two bastions is two machines.
    return (name.lower().rstrip("."), ssh.port or settings.port, ssh.user or settings.user, ssh.jump or settings.jump)


def _parts(data: Mapping[str, object]) -> _Parts:
    raw_hosts, raw_volumes = data.get("hosts"), data.get("volumes")
    hosts = {
        name: host.model_copy(update={"name": name})
        for name, raw in list(raw_hosts.items() if isinstance(raw_hosts, dict) else ())[:MAX_HOSTS]
        if (host := _sound(Host, raw)) is not None
    }
    volumes = {
        index: volume
        for index, raw in enumerate(raw_volumes if isinstance(raw_volumes, list) else ())
        if (volume := _sound(Volume, raw)) is not None
    }
    return _Parts(
        hosts=hosts,
        ports=_sound(Ports, data.get("ports")) or Ports(),
        ssh=_sound(SshSettings, data.get("ssh")) or SshSettings(),
        volumes=volumes,
    )


def _sound(kind: type[_Model], raw: object) -> _Model | None:
    try:
        return kind.model_validate(raw)
    except ValidationError:
        return None


def _head(document: Document, data: Mapping[str, object]) -> None:
    head, hosts = data.get("head"), data.get("hosts")
    if not isinstance(head, str) or not isinstance(hosts, dict) or not hosts or head in hosts:
        return
    meant = nearest(head, hosts)
    names = ", ".join(quote_value(name)[1:-1] for name in list(hosts)[:8]) + (", …" if len(hosts) > 8 else "")
    hint = f", did you mean {meant}?" if meant else f"; there are {names}"
    document.add_problem(("head",), f"no host is called {quote_value(head)}{hint}")


def _twice(document: Document, hosts: Mapping[str, Host], field: str, key: Callable[[Host], Hashable]) -> None:
    seen: dict[Hashable, str] = {}
    words = {"address": "the address", "ssh": "the ssh target"}
    for name, host in hosts.items():
        first = seen.setdefault(key(host), name)
        if first != name:
            loc: Loc = ("hosts", name, field)
            other = document.line(("hosts", first, field))
            where = f"{words[field]} of {key_of(('hosts', first))} on line {other}"
            document.add_problem(loc, f"is {where}: list each host once")


def _ports(document: Document, ports: Ports) -> None:
    low, high = ports.worker_min, ports.worker_max
    if low >= high:
        written = _written(document, "worker_max", "worker_min")
        document.add_problem(("ports", written), f"the workers' range {low} to {high} is empty")
    seen: dict[int, str] = {}
    for name, number in ports.model_dump().items():
        if name in {"worker_min", "worker_max"}:
            continue
        first = seen.setdefault(number, name)
        if first != name:
            written = _written(document, name, first)
            other = first if written == name else name
            document.add_problem(
                ("ports", written), f"{number} is already used by ports.{other}{_default(document, other)}"
            )
        elif low <= number <= high:
            written = _written(document, name, "worker_max", "worker_min")
            text = f"ports.{name} ({number}) lies in the range of Ray's workers, {low} to {high}"
            document.add_problem(("ports", written), text)


def _written(document: Document, *names: str) -> str:
    """The last of the ports that the file itself names: the one to change."""
    return max(names, key=lambda name: document.lines.get(("ports", name), 0))


def _default(document: Document, name: str) -> str:
    return "" if ("ports", name) in document.lines else " (its default)"


def _volumes(document: Document, volumes: Mapping[int, Volume], model_cache: object) -> None:
    seen: dict[str, str] = {}
    if isinstance(model_cache, str) and model_cache:
        seen["/" + model_cache.strip("/")] = "model_cache"
    for index, volume in volumes.items():
        first = seen.setdefault(volume.target, f"volumes[{index}]")
        if first != f"volumes[{index}]":
            document.add_problem(
                ("volumes", index), f"{quote_value(volume.target)} in the container is already used by {first}"
            )


def _variables(document: Document, environment: object, secrets: object) -> None:
    if isinstance(environment, dict) and isinstance(secrets, dict):
        for name in environment.keys() & secrets.keys():
            document.add_problem(("secrets", name), "is under environment too: remove it there")
