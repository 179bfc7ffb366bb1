"""How bytes and commands reach a host: one Protocol, several carriers."""

from __future__ import annotations

from typing import Literal

from vllm_cluster.transport.base import Target, Transport
from vllm_cluster.transport.jumps import Jumps

Kind = Literal["fabric", "openssh", "local"]


def make(target: Target, kind: Kind, jumps: Jumps) -> Transport:
    """The carrier for a host, through jump hosts that others share; the destination `local` is this machine itself."""
    # Fabric takes longer to import than everything else: only those who connect pay for it.
    if kind == "local" or target.destination == "local":
        from vllm_cluster.transport.local import LocalTransport  # noqa: PLC0415

        return LocalTransport(target)
    if kind == "openssh":
        from vllm_cluster.transport.openssh import OpenSshTransport  # noqa: PLC0415

        return OpenSshTransport(target, jumps)
    from vllm_cluster.transport.fabric import FabricTransport  # noqa: PLC0415

    return FabricTransport(target, jumps)
