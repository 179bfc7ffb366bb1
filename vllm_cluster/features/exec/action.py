"""Run a person's command in the containers of the nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from vllm_cluster.features.exec.node_exec import NodeCommand
from vllm_cluster.kernel.errors import UsageError, VclusterError
from vllm_cluster.kernel.hosts.connection import Fleet, HostConnection, ssh_line
from vllm_cluster.kernel.hosts.runtime import SYSTEM, Runtime
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.node.handle import open_node

__all__ = ["NodeCommand", "command_on", "exec_all", "ssh_command"]


@contextmanager
def command_on(
    inventory: Inventory,
    host: str,
    argv: Sequence[str],
    size: tuple[int, int] | None,
    environment: Mapping[str, str],
    *,
    runtime: Runtime = SYSTEM,
) -> Iterator[NodeCommand]:
    """Connect to one host for a command; `size` is that of its terminal, None for none."""
    with Fleet(inventory, runtime, [host]) as fleet:
        yield NodeCommand(open_node(inventory, fleet.connections[host]), argv, size, environment)


def exec_all(
    inventory: Inventory,
    argv: Sequence[str],
    out: Callable[[str, bool, bytes], None],
    attach: Callable[[NodeCommand], None],
    *,
    runtime: Runtime = SYSTEM,
) -> tuple[dict[str, int], dict[str, VclusterError]]:
    """Run a command on every host side by side, without input; exit codes, and why it could not be run on others."""
    with Fleet(inventory, runtime) as fleet:

        def run(connection: HostConnection) -> int:
            command = NodeCommand(open_node(inventory, connection), argv, None, {})
            attach(command)
            return command.run(lambda of_errors, data: out(connection.name, of_errors, data), None)

        return fleet.each(run)


def ssh_command(inventory: Inventory, host: str) -> list[str]:
    """The ssh command that leads to a host, with the inventory's settings.

    Raises:
        UsageError: the host is this machine.
    """
    argv = ssh_line(inventory, inventory.hosts[host])
    if not argv:
        raise UsageError(f"{host} is this machine (ssh: local)", hint="run the command without vcluster")
    return argv
