"""Whether what a host has is this cluster's, and the head's: what every verb that asks one host alone must know."""

from __future__ import annotations

from collections.abc import Mapping

from vllm_cluster.kernel.checks.docker import warn_of_foreign
from vllm_cluster.kernel.checks.finding import Finding, ensure_no_errors
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.plan.identity import authority, node_of
from vllm_cluster.kernel.plan.spec import HEAD_ADDRESS, ID, ROLE


def worker_for_head(inventory: Inventory, facts: HostFacts) -> Finding | None:
    """The finding of a worker's node on the inventory's head: `head:` was changed, and no `up` has moved the head yet.

    Only of a cluster that is known to be meant: to one of another team with this name the remedy would lead.
    """
    node = node_of(inventory.cluster, facts)
    if facts.host != inventory.head_name or node is None or node.labels.get(ROLE) != "worker":
        return None
    if not (authority(inventory, {facts.host: facts}).owns(node.labels) or _remembers(inventory, facts, node.labels)):
        return None
    address = node.labels.get(HEAD_ADDRESS, "")
    name = next((one.name for one in inventory.hosts.values() if address and one.address == address), "")
    text = f"the node there is a worker of the head at {address or 'another address'}" + (f" ({name})" if name else "")
    fix = f"set head: {name or 'to that host'} in the inventory; or, to make {facts.host} the head:"
    return Finding("other-head", facts.host, text, f"{fix}\nvcluster plan\nvcluster up")


def _remembers(inventory: Inventory, facts: HostFacts, labels: Mapping[str, str]) -> bool:
    """Whether this machine knows the head that a node names, or this host itself, as a head of the node's cluster.

    An id in the inventory decides instead.
    """
    of, address = labels.get(ID), labels.get(HEAD_ADDRESS)
    led = {one.id for one in facts.known_heads.every if one.address == address}
    return not inventory.id and of is not None and of in (facts.was_head_of, *led)


def not_own(inventory: Inventory, facts: HostFacts) -> list[Finding]:
    """Why a host that is looked at alone is not of this cluster, or not the head that it should be."""
    worker = worker_for_head(inventory, facts)
    return [worker] if worker else list(warn_of_foreign(inventory, {facts.host: facts}))


def require_own(inventory: Inventory, facts: HostFacts) -> None:
    """Refuse a host that is not of this cluster, or is not the head that it should be.

    Raises:
        PreflightFailed: with the remedies.
    """
    ensure_no_errors(not_own(inventory, facts))
