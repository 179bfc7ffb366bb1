"""The transport that NCCL chose, parsed from its log."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_VIA = re.compile(r" via (P2P|SHM|NET|COLLNET|NVLS)(\S*)")
# A name is short: each of these would be looked for up to the end of the line, 4 s for one of 64 kB.
_ADAPTER = re.compile(r"\[\d{1,4}\](\S{1,80}:\d{1,4})/(?:IB|RoCE)")
_SOCKET = re.compile(r"NET/Socket : Using.{0,80}?\[\d{1,4}\]([^\s:<]{1,80}):")
_DISABLED = re.compile(r"GPU Direct RDMA Disabled for HCA \d+ '([^']*)'")
_VERSION = re.compile(r"NCCL version (\S+)")


@dataclass(frozen=True)
class NcclTransport:
    """How NCCL moves bytes: the kinds of connection that it made, and what it found to make them with."""

    kinds: tuple[str, ...] = ()
    hcas: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()
    # Adapters to which GPUs cannot send by themselves.
    indirect: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    version: str = ""

    @property
    def socket(self) -> bool:
        """Whether bytes between hosts go by TCP."""
        return "NET/Socket" in self.kinds


def transport(lines: Iterable[str]) -> NcclTransport:
    """The transport named by the log lines of any number of ranks."""
    kinds, adapters, interfaces, indirect, warnings = (dict[str, None]() for _ in range(5))
    version = ""
    for line in lines:
        if via := _VIA.search(line):
            kinds[_kind(via[1], via[2])] = None
        if "NET/IB : Using" in line:
            adapters |= dict.fromkeys(_ADAPTER.findall(line))
        if socket := _SOCKET.search(line):
            interfaces[socket[1]] = None
        # NCCL prints it of every Ethernet interface too, where it means nothing.
        if (disabled := _DISABLED.search(line)) and "NET/Socket" not in line:
            indirect[disabled[1]] = None
        if "NCCL WARN" in line:
            warnings[line.partition("NCCL WARN ")[2].strip()] = None
        if found := _VERSION.search(line):
            version = found[1]
    return NcclTransport(tuple(kinds), tuple(adapters), tuple(interfaces), tuple(indirect), tuple(warnings), version)


def _kind(first: str, rest: str) -> str:
    if first != "NET":
        return first + (f"/{rest.split('/')[1]}" if first == "P2P" and rest else "")
    network = rest.split("/")[1] if rest.count("/") else ""
    return f"NET/{network}" + ("/GDRDMA" if "GDRDMA" in rest else "")
