"""Run a person's command in the containers of the nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from vllm_cluster.actions.assess import require_name
from vllm_cluster.errors import UsageError, VclusterError
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.run.connection import Fleet, HostConnection, ssh_line
from vllm_cluster.run.node_exec import NodeCommand
from vllm_cluster.run.open_node import open_node
from vllm_cluster.run.runtime import SYSTEM, Runtime

# Rows and columns.
Size = tuple[int, int]


class Controlled(Protocol):
    """A command that runs elsewhere, and can be sent a signal or another size of its terminal."""

    def signal(self, name: str) -> None:
        """Send a signal, by its name without SIG."""
        ...

    def resize(self, size: Size) -> None:
        """Give its terminal another size."""
        ...


class Ends(Protocol):
    """This machine's side of a command: where its output goes, and where its input and its signals come from."""

    def size(self) -> Size | None:
        """The size of the terminal that it gets; None for none."""
        ...

    def environment(self) -> Mapping[str, str]:
        """What the command knows of the terminal."""
        ...

    def out(self, of_errors: bool, data: bytes, /) -> None:
        """Write what it prints."""
        ...

    def read(self) -> bytes:
        """What it is sent next; empty at the end."""
        ...

    def attach(self, command: Controlled) -> None:
        """From now on send signals and sizes of the terminal to this command."""
        ...


def exec_one(inventory: Inventory, host: str, argv: Sequence[str], ends: Ends, *, runtime: Runtime = SYSTEM) -> int:
    """Run a command on one host, with this machine's input and terminal; its exit code.

    Raises:
        HostError: it could not be run, or the connection broke.
    """
    require_name(inventory, [host])
    with Fleet(inventory, runtime, [host]) as fleet:
        node = open_node(inventory, fleet.connections[host])
        command = NodeCommand(node, argv, ends.size(), ends.environment())
        ends.attach(command)
        return command.run(ends.out, ends.read)


def exec_all(
    inventory: Inventory,
    argv: Sequence[str],
    out: Callable[[str, bool, bytes], None],
    attach: Callable[[Controlled], None],
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
