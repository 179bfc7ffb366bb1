"""How bytes and commands reach a host: one Protocol, several carriers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from vllm_cluster.kernel.debug_log import logged
from vllm_cluster.kernel.transport.base import Target, Transport
from vllm_cluster.kernel.transport.jumps import Jumps
from vllm_cluster.kernel.transport.ssh_config import SshEndpoint, Words, ask_ssh_config, resolve_endpoint

Kind = Literal["fabric", "openssh", "local"]


def locate(target: Target, ask: Callable[[Target], Words] = ask_ssh_config) -> SshEndpoint:
    """Where ssh_config sends a host; asked of ssh."""
    with logged(target.name, "ssh -G", target.destination) as call:
        found = resolve_endpoint(target, ask)
        call.result = f"{found.host}:{found.port}"
        return found


def make_transport(target: Target, kind: Kind, jumps: Jumps, endpoint: SshEndpoint | None = None) -> Transport:
    """The transport for a host, through jump hosts that others share; the destination `local` is this machine itself.

    `endpoint` is the host's endpoint by ssh_config, if already resolved.
    """
    # Fabric takes longer to import than everything else: only those who connect pay for it.
    if kind == "local" or target.destination == "local":
        from vllm_cluster.kernel.transport.local import LocalTransport  # noqa: PLC0415

        return LocalTransport(target)
    if kind == "openssh":
        from vllm_cluster.kernel.transport.openssh import OpenSshTransport  # noqa: PLC0415

        return OpenSshTransport(target, jumps, endpoint)
    from vllm_cluster.kernel.transport.fabric import FabricTransport  # noqa: PLC0415

    return FabricTransport(target, jumps, endpoint)
