"""What the cluster remembers about its members."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from vllm_cluster.kernel.checks.finding import Finding
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.plan.members import former, record_of
from vllm_cluster.kernel.shell_line import Option, command_line


def left(inventory: Inventory, facts: Mapping[str, HostFacts]) -> Iterator[Finding]:
    """Members that left the inventory: their nodes may still run and hold GPUs."""
    kept = record_of(inventory, facts)
    for name, member in former(inventory, facts, kept.record if kept else None).items():
        text = f"{name} ({member.address}) left the inventory, and is still a member: its node may hold GPUs"
        line, gone = member.former_line, command_line("vcluster", "up", Option("--forget"), name)
        text += f"; vcluster up removes it, --forget where {name} is gone for good"
        fix = "\n".join(filter(None, ("vcluster up", line and f"where no inventory here has named it: {line}", gone)))
        yield Finding("member-not-in-inventory", inventory.head_name, text, fix, severity="warning")
