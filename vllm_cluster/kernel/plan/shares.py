"""Deals the GPUs of hosts to several replicas: whole hosts first, then those of one host; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.text import count

# As many as fit, before it is known how many these are.
MAX = 1 << 16


@dataclass(frozen=True)
class Share:
    """The GPUs of a replica (host → number); `devices` are which of a host's, where it does not take it whole."""

    gpus: Mapping[str, int]
    devices: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def leader(self, head: str) -> str:
        """The host whose part answers requests: the head, where that gives GPUs."""
        return head if head in self.gpus else next(iter(self.gpus))

    def numbers(self, host: str) -> tuple[int, ...]:
        """Which GPUs of a host: the first ones, where it is not written."""
        return self.devices.get(host) or tuple(range(self.gpus[host]))

    def numbered(self, nodes: Mapping[str, int]) -> Share:
        """The same with the numbers of its GPUs where it takes a part of a host."""
        own = {host: self.numbers(host) for host, number in self.gpus.items() if number < nodes[host]}
        return replace(self, devices={**own, **self.devices})

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
        raise UsageError("every host needs at least one GPU to serve on", hint="vcluster check --facts")
    if tp or pp or dp > 1:
        gpus = count((tp or 1) * (pp or 1) * dp, "GPU")
        return tp or 1, pp or 1, f"{replicas} replicas of {gpus} (from the command line)"
    if replicas > hosts:
        each = -(-replicas // hosts)
        if each > least:
            raise _too_many(nodes, 1, replicas, hosts * least, one_each=sum(nodes.values()) >= replicas)
        tp = least // each
        return tp, 1, f"{replicas} replicas over {count(hosts, 'host')}: {each} on a host, TP={tp}"
    if replicas == hosts:
        return least, 1, f"{replicas} replicas: one on each host, TP={least}"
    over = hosts // replicas
    return least, over, f"{replicas} replicas over {hosts} hosts: {count(over, 'host')} each, TP={least} × PP={over}"


def most(
    nodes: Mapping[str, int],
    tp: int | None,
    pp: int | None,
    dp: int,
    taken: Mapping[str, Collection[int]] = {},
) -> int:
    """How many replicas fit: one a host, where no layout is given.

    `nodes` are all GPUs of the hosts, `taken` the numbers of those that others have.
    """
    if not (tp or pp or dp > 1):
        return len(nodes)
    free, number = _free(nodes, taken), 0
    while _next(nodes, free, Counter(), tp or 1, (tp or 1) * (pp or 1) * dp):
        number += 1
    return number


def deal(
    nodes: Mapping[str, int],
    tp: int,
    size: int,
    indices: Sequence[int],
    *,
    kept: Mapping[int, Share] = {},
    taken: Mapping[str, Collection[int]] = {},
) -> dict[int, Share]:
    """A share of `size` GPUs for each index; `kept` has what runs, which stays there where it may.

    `nodes` are all GPUs of the hosts, `taken` the numbers of those that others have.

    Raises:
        UsageError: there are fewer.
    """
    free = _free(nodes, taken)
    found: dict[int, Share] = {}
    for index, share in kept.items():
        if index in indices and all(_has(free, host, share.numbers(host)) for host in share.gpus):
            found[index] = share
            for host in share.gpus:
                free[host] = [one for one in free[host] if one not in share.numbers(host)]
    own = Counter(host for share in found.values() for host in share.gpus)
    for index in indices:
        if index not in found:
            found_next = _next(nodes, free, own, tp, size)
            if found_next is None:
                there = {name: len(numbers) for name, numbers in _free(nodes, taken).items()}
                fits = most(nodes, tp, size // tp, 1, taken)
                raise _too_many(there, size, len(indices), fits)
            found[index] = found_next
    return {index: found[index] for index in indices}


def _free(nodes: Mapping[str, int], taken: Mapping[str, Collection[int]]) -> dict[str, list[int]]:
    """The numbers of the GPUs of each host that others do not have."""
    return {name: [one for one in range(number) if one not in taken.get(name, ())] for name, number in nodes.items()}


def _next(nodes: Mapping[str, int], free: dict[str, list[int]], own: Counter[str], tp: int, size: int) -> Share | None:
    """The next share, and its GPUs are free no more: of one host, or of whole hosts together.

    `own` are the replicas of each host: where a host goes, the others shall still answer.
    """
    fitting = [name for name, there in free.items() if len(there) >= size]
    if fitting:
        # Then whole hosts: there are as many GPUs as it takes, or it is the first on its host.
        def order(one: str) -> tuple[int, bool, bool, int]:
            return own[one], len(free[one]) != size, len(free[one]) != nodes[one], -len(free[one])

        name = min(fitting, key=order)
        own[name] += 1
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


def _has(free: Mapping[str, list[int]], host: str, devices: tuple[int, ...]) -> bool:
    return {*devices} <= {*free.get(host, ())}


def _too_many(nodes: Mapping[str, int], size: int, replicas: int, fits: int, *, one_each: bool = False) -> UsageError:
    """The refusal; `nodes` are the free GPUs of the hosts, and `one_each` is whether a GPU for each would do."""
    there = ", ".join(f"{number} on {name}" for name, number in nodes.items()) or "none"
    what = f"{count(replicas, 'replica')} of {count(size, 'GPU')}{' each' * (replicas > 1)}"
    does = "do" if replicas > 1 else "does"
    if one_each:
        text = f"{replicas} replicas cannot be as many on each host: free are {there}"
        return UsageError(text, hint=f"give at most --replicas {fits}, or --tp 1 too")
    text = f"{what} {does} not fit: free are {there}"
    return UsageError(text, hint=f"give at most --replicas {fits}" if fits else "choose a smaller --tp or --pp")
