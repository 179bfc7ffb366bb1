"""vLLM's own processes on each host: every host runs the same command, and they meet at a port of the one that leads.

Needs nothing beside vLLM. Between hosts vLLM watches nothing then: that is for the node programs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vllm_cluster.kernel.backends.seam import Chosen, Degrees, Role
from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.wire.order import Part

if TYPE_CHECKING:
    from vllm_cluster.kernel.inventory.model import Inventory, Ports

FLAGS: tuple[str, ...] = ()
NODE_PORTS: tuple[str, ...] = ()
HEAD_PORTS: tuple[str, ...] = ("master", "data_parallel")
LOOPBACK_PORTS: tuple[str, ...] = ()
WORKER_PORTS: tuple[str, ...] = ()
SHM_BYTES = 0
LED_BY_HEAD = False
# API servers for so many engines of data parallel; by itself vLLM starts one for each.
ENGINES_A_SERVER, MAX_SERVERS = 4, 4


def requirements(_: Inventory) -> tuple[str, ...]:
    """Return nothing: an image with vLLM has all of it."""
    return ()


def start_argv(_: Role, *, address: str, head_address: str, gpus: int, ports: Ports) -> list[str]:
    """Return no command: the roll joins the nodes."""
    del address, head_address, gpus, ports
    return []


def environment(*, head_address: str, ports: Ports, token_file: str) -> dict[str, str]:
    """Return where the cluster's token is, for the roll."""
    del head_address, ports
    return {"VCLUSTER_NODE_TOKEN_FILE": token_file}


def take(nodes: Mapping[str, int], degrees: Degrees) -> dict[str, int]:
    """Choose the fewest hosts that give the same number of GPUs each, the head among them.

    vLLM divides its ranks evenly over the hosts. A rank of data parallel lies within a host; so does a tensor parallel
    group, or it fills hosts whole.

    Raises:
        UsageError: no hosts do.
    """
    for hosts in range(1, len(nodes) + 1):
        each, rest = divmod(degrees.size, hosts)
        group = degrees.tp * degrees.pp if degrees.dp > 1 else degrees.tp
        whole = each > 0 and (each % group == 0 or (degrees.dp == 1 and group % each == 0))
        chosen = [name for name, count in nodes.items() if count >= each][:hosts]
        if not rest and whole and len(chosen) == hosts and chosen[0] == next(iter(nodes)):
            return dict.fromkeys(chosen, each)
    least = min(nodes.values())
    there = ", ".join(f"{count} on {name}" for name, count in nodes.items())
    text = f"without Ray every host gives the same number of GPUs: {degrees.size} of {there} cannot be"
    words = f"--tp {least} --pp {len(nodes)}" if degrees.dp == 1 else f"--dp {len(nodes)} --tp {least}"
    raise UsageError(text, hint=f"use {words}, or --backend ray for hosts with unlike numbers")


def parts(argv: Sequence[str], env: Mapping[str, str], chosen: Chosen, degrees: Degrees) -> tuple[Part, ...]:
    """Return what each host runs: the same words with its rank; all but the first one without an API."""
    head, gpus, at = chosen.head, chosen.gpus, chosen.addresses
    store, engines = chosen.rendezvous
    hosts = [head, *(name for name in gpus if name != head)]
    words = list(argv)
    if len(hosts) > 1:
        words += [f"--nnodes={len(hosts)}", f"--master-addr={at[head]}", f"--master-port={store}"]
        words += [f"--data-parallel-rpc-port={engines}"] if degrees.dp > 1 else []
    servers = max(1, min(MAX_SERVERS, degrees.dp // ENGINES_A_SERVER))
    leads = [f"--api-server-count={servers}"] if degrees.dp > 1 else []
    ranks = range(len(hosts)) if len(hosts) > 1 else ()
    own = [[f"--node-rank={rank}", *(["--headless"] if rank else leads)] for rank in ranks] or [leads]
    return tuple(_part(name, (*words, *more), env, chosen) for name, more in zip(hosts, own, strict=True))


def _part(name: str, argv: tuple[str, ...], env: Mapping[str, str], chosen: Chosen) -> Part:
    devices = chosen.devices.get(name, ())
    # The numbers are those of the container, which has the node's GPUs alone.
    env = {**env, "CUDA_VISIBLE_DEVICES": ",".join(map(str, devices))} if devices else env
    return Part(name, chosen.addresses[name], chosen.gpus[name], argv, env, devices)
