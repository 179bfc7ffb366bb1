"""Deals the GPUs of hosts to several replicas: whole hosts first, then those of one host; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.text import count

# As many as fit, before it is known how many these are.
MAX = 1 << 16


@dataclass(frozen=True)
class Share:
    """The GPUs of a replica (host → number); `devices` are which of a host's, where it does not take it whole."""

    gpus: Mapping[str, int]
    devices: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def leader(self, head: str, *, alone: bool) -> str:
        """The host whose part answers requests: the head, where nothing else shares the cluster with it."""
        return head if alone or head in self.gpus else next(iter(self.gpus))

    def fits(self, host: str, number: int) -> bool:
        """Whether a host with so many GPUs has what this takes there."""
        return max((*self.devices.get(host, ()), self.gpus[host] - 1)) < number


def replica_sizes(
    nodes: Mapping[str, int], tp: int | None, pp: int | None, dp: int, replicas: int
) -> tuple[int, int, str]:
    """TP and PP of each of several replicas, unless given, and why.

    Raises:
        UsageError: so many do not fit.
    """
    hosts, least = len(nodes), min(nodes.values(), default=0)
    if least < 1:
        raise UsageError("every host needs at least one GPU to serve on")
    if tp or pp or dp > 1:
        return tp or 1, pp or 1, f"{replicas} replicas of {(tp or 1) * (pp or 1) * dp} GPUs (from the command line)"
    if replicas > hosts:
        each = -(-replicas // hosts)
        if each > least:
            raise _too_many(nodes, 1, replicas)
        tp = least // each
        return tp, 1, f"{replicas} replicas over {count(hosts, 'host')}: {each} on a host, TP={tp}"
    if replicas == hosts:
        return least, 1, f"{replicas} replicas: one on each host, TP={least}"
    over = hosts // replicas
    return least, over, f"{replicas} replicas over {hosts} hosts: {count(over, 'host')} each, TP={least} × PP={over}"


def most(nodes: Mapping[str, int], tp: int | None, pp: int | None, dp: int) -> int:
    """How many replicas fit: one a host, where no layout is given."""
    size = (tp or 1) * (pp or 1) * dp
    if not (tp or pp or dp > 1):
        return len(nodes)
    if size <= min(nodes.values()):
        return sum(number // size for number in nodes.values())
    each = min(nodes.values())
    return len(nodes) // -(-size // each)


def deal(
    nodes: Mapping[str, int], tp: int, size: int, replicas: int, kept: Mapping[int, Share] = {}
) -> tuple[Share, ...]:
    """So many shares of `size` GPUs; `kept` has by index what runs, which stays there where it may.

    Raises:
        UsageError: there are fewer.
    """
    free = {name: list(range(number)) for name, number in nodes.items()}
    found: dict[int, Share] = {}
    for index, share in kept.items():
        if index < replicas and all(_has(free, host, _devices(share, host)) for host in share.gpus):
            found[index] = share
            for host in share.gpus:
                free[host] = [one for one in free[host] if one not in _devices(share, host)]
    for index in range(replicas):
        if index not in found:
            found_next = _next(nodes, free, tp, size)
            if found_next is None:
                raise _too_many(nodes, size, replicas)
            found[index] = found_next
    return tuple(found[index] for index in range(replicas))


def _next(nodes: Mapping[str, int], free: dict[str, list[int]], tp: int, size: int) -> Share | None:
    """The next share, and its GPUs are free no more: of the host that it fills best, or of whole hosts together."""
    fitting = [name for name, there in free.items() if len(there) >= size]
    if fitting:
        # Whole hosts first: there are as many GPUs as it takes, or it is the first on its host.
        name = min(fitting, key=lambda one: (len(free[one]) != size, len(free[one]) != nodes[one], -len(free[one])))
        taken, free[name] = tuple(free[name][:size]), free[name][size:]
        whole = size == nodes[name]
        return Share({name: size}, {} if whole else {name: taken})
    whole_hosts = [name for name, there in free.items() if there and len(there) == nodes[name]]
    for number in range(2, len(whole_hosts) + 1):
        each, rest = divmod(size, number)
        hosts = [name for name in whole_hosts if nodes[name] == each][:number]
        if not rest and len(hosts) == number and (each % tp == 0 or tp % each == 0):
            for name in hosts:
                free[name] = []
            return Share(dict.fromkeys(hosts, each))
    return None


def _devices(share: Share, host: str) -> tuple[int, ...]:
    return share.devices.get(host) or tuple(range(share.gpus[host]))


def _has(free: Mapping[str, list[int]], host: str, devices: tuple[int, ...]) -> bool:
    return {*devices} <= {*free.get(host, ())}


def _too_many(nodes: Mapping[str, int], size: int, replicas: int) -> UsageError:
    there = ", ".join(f"{number} on {name}" for name, number in nodes.items())
    fits = most(nodes, size, None, 1)
    text = f"{replicas} replicas of {count(size, 'GPU')} each do not fit: there are {there}"
    return UsageError(text, hint=f"give at most --replicas {fits}" if fits else "choose a smaller --tp or --pp")
