"""Serve what a command line asks for elsewhere: its layout over the hosts that are here, or another one by consent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from vllm_cluster.kernel.backends import vllm
from vllm_cluster.kernel.errors import Aborted, UsageError
from vllm_cluster.kernel.plan.placement import Cluster, available
from vllm_cluster.kernel.text import count
from vllm_cluster.serving.consent import Confirm
from vllm_cluster.wire.order import Deployment

# What is asked for as these hosts can have it.
Fit = Callable[[Deployment, Cluster], Deployment]


def fit_by(confirm: Confirm, cluster_name: str) -> Fit:
    """Ask before a layout that needs more GPUs than there are becomes another one."""

    def fit(asked: Deployment, cluster: Cluster) -> Deployment:
        nodes = [*available(asked, cluster).values()]
        wanted, there = (asked.tp or 1) * (asked.pp or 1) * asked.dp, sum(nodes)
        if not nodes or wanted <= there:
            return asked
        smaller = _smaller(asked, nodes)
        text = f"this command line wants {_degrees(asked)}: {count(wanted, 'GPU')}; {cluster_name} has {there}"
        answer = confirm(f"{text}. {_cost(asked, smaller)}. Serve with {_degrees(smaller)}?")
        if answer is None:
            raise UsageError(f"{text}\n{_cost(asked, smaller)}", again=_words(smaller))
        if not answer:
            raise Aborted
        return smaller

    return fit


def _smaller(asked: Deployment, nodes: list[int]) -> Deployment:
    """The same over the GPUs that there are: fewer engines, else one over all of them."""
    group, there = (asked.tp or 1) * (asked.pp or 1), sum(nodes)
    if asked.dp > 1 and group <= there:
        return replace(asked, dp=there // group)
    chosen = vllm.choose_parallelism(nodes, None, None)
    return replace(asked, tp=chosen.tp, pp=chosen.pp, dp=1)


def _cost(asked: Deployment, smaller: Deployment) -> str:
    """What the smaller layout takes of each GPU, against the one that was asked for."""
    before, after = (_size(one) for one in (asked, smaller))
    much = f"{before / after:.1f} ×"
    if asked.dp == 1:
        return f"{_degrees(smaller)} would need {much} the memory of a GPU for the weights"
    if asked.expert_parallel:
        return f"{_degrees(smaller)} would need up to {much} the memory of a GPU for the experts"
    if smaller.tp == asked.tp and smaller.pp == asked.pp:
        return f"{_degrees(smaller)} has {smaller.dp} of its {count(asked.dp, 'engine')}, and each GPU the same weights"
    return f"{_degrees(smaller)} is one engine in place of {asked.dp}"


def _size(one: Deployment) -> int:
    return (one.tp or 1) * (one.pp or 1) * one.dp


def _degrees(one: Deployment) -> str:
    words = [f"TP={one.tp or 1}", f"PP={one.pp or 1}", *([f"DP={one.dp}"] if one.dp > 1 else [])]
    return " × ".join(words)


def _words(one: Deployment) -> tuple[str, ...]:
    words = ["--tp", str(one.tp or 1), "--pp", str(one.pp or 1)]
    return (*words, *(("--dp", str(one.dp)) if one.dp > 1 else ()))
