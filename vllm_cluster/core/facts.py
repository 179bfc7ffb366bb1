"""What a host is and what runs there: the answer of one observation, as types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_interface


@dataclass(frozen=True)
class Nic:
    """A network interface; addresses are written as ``10.0.0.1/24``."""

    name: str
    addresses: tuple[str, ...]
    mtu: int
    state: str

    def holds(self, address: str) -> bool:
        """Whether this interface carries the address."""
        return any(str(ip_interface(entry).ip) == address for entry in self.addresses)


@dataclass(frozen=True)
class Hca:
    """A port of an InfiniBand or RoCE adapter, with the device files that a container needs for it."""

    device: str
    port: int
    state: str
    link_layer: str
    rate: str
    uverbs: tuple[str, ...]

    @property
    def active(self) -> bool:
        """Whether the port carries traffic; sysfs writes ``4: ACTIVE``."""
        return self.state.endswith("ACTIVE")


@dataclass(frozen=True)
class Gpu:
    """A GPU as its driver names it; memory in MiB."""

    index: int
    uuid: str
    name: str
    memory_mib: int


@dataclass(frozen=True)
class Engine:
    """The Docker engine of a host; `problem` says why it does not answer, in the client's own words."""

    version: str = ""
    api_version: str = ""
    architecture: str = ""
    runtimes: tuple[str, ...] = ()
    cdi_devices: tuple[str, ...] = ()
    root: str = ""
    problem: str = ""


@dataclass(frozen=True)
class Container:
    """A container as the engine lists it."""

    id: str
    name: str
    state: str
    image_id: str
    labels: Mapping[str, str]


@dataclass(frozen=True)
class Image:
    """An image of a host with the names and digests it answers to."""

    id: str
    tags: tuple[str, ...]
    digests: tuple[str, ...]
    labels: Mapping[str, str]


@dataclass(frozen=True)
class HostFacts:
    """Everything that one look at a host tells; sizes in bytes, the clock in seconds since 1970.

    `slots` is the number of logical GPUs that a CPU host offers, None where it says nothing.
    `routes` maps each address that was asked for to the interface that leads there, None for none.
    `missing_paths` are those asked-for paths that the host does not have.
    """

    host: str
    machine_id: str
    hostname: str
    clock: float
    nics: tuple[Nic, ...]
    hcas: tuple[Hca, ...]
    gpus: tuple[Gpu, ...]
    slots: int | None
    memory: int
    listening: frozenset[int]
    routes: Mapping[str, str | None]
    missing_paths: frozenset[str]
    free: Mapping[str, int]
    engine: Engine
    containers: tuple[Container, ...] = ()
    images: tuple[Image, ...] = ()

    def interface_of(self, address: str) -> Nic | None:
        """The interface that holds the address."""
        return next((nic for nic in self.nics if nic.holds(address)), None)
