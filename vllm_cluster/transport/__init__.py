"""How bytes and commands reach a host: one Protocol, several carriers."""

from __future__ import annotations

from typing import Literal

from vllm_cluster.transport.base import Target, Transport

Kind = Literal["fabric", "openssh", "local"]


def make(target: Target, kind: Kind) -> Transport:
    """The carrier for a host; the ssh destination `local` is this machine itself."""
    # Fabric takes longer to import than everything else: only those who connect pay for it.
    if kind == "local" or target.destination == "local":
        from vllm_cluster.transport.local import LocalTransport  # noqa: PLC0415

        return LocalTransport(target)
    if kind == "openssh":
        from vllm_cluster.transport.openssh import OpenSshTransport  # noqa: PLC0415

        return OpenSshTransport(target)
    from vllm_cluster.transport.fabric import FabricTransport  # noqa: PLC0415

    return FabricTransport(target)
