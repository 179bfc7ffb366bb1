"""How a person's own ssh reaches a host of the inventory."""

from __future__ import annotations

from vllm_cluster.actions.assess import require_name
from vllm_cluster.errors import UsageError
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.run.connection import ssh_line


def ssh_command(inventory: Inventory, host: str) -> list[str]:
    """The ssh command that leads to a host, with the inventory's settings.

    Raises:
        UsageError: the host is this machine.
    """
    require_name(inventory, [host])
    argv = ssh_line(inventory, inventory.hosts[host])
    if not argv:
        raise UsageError(f"{host} is this machine (ssh: local)", hint="run the command without vcluster ssh")
    return argv
