"""What a host is and what runs there: the answer of one observation, as types."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Interface, IPv6Interface, ip_interface

from vllm_cluster.kernel.facts.details import Details
from vllm_cluster.kernel.facts.docker_objects import Container, Image
from vllm_cluster.kernel.facts.heads import KnownHeads

TUNNELS = re.compile(r"(tun|wg|tailscale|zt|docker|virbr|cni|flannel)[0-9a-z]*|br-[0-9a-f]{12}")
TUNNEL_KINDS = ("tun", "wireguard", "ipip", "gre", "sit", "vxlan")


@dataclass(frozen=True, slots=True)
class Nic:
    """A network interface, no container's; addresses are written as ``10.0.0.1/24``, `kind` as `ip -d` does: tun, bond

    `speed_mbit` is 0 where unknown; `dynamic` is true where an address came with a lifetime.
    """

    name: str
    addresses: tuple[str, ...]
    mtu: int
    state: str
    kind: str = ""
    speed_mbit: int = 0
    dynamic: bool = False

    def interfaces(self) -> list[IPv4Interface | IPv6Interface]:
        """The addresses with their networks."""
        return [ip_interface(entry) for entry in self.addresses]

    def holds(self, address: str) -> bool:
        """Whether this interface carries the address."""
        return any(str(entry.ip) == address for entry in self.interfaces())

    @property
    def wireless(self) -> bool:
        """Whether it is Wi-Fi, as the kernel and systemd name it: wlan0, wlp3s0, wlP9s9."""
        return self.name.startswith("wl")

    @property
    def inner(self) -> bool:
        """Whether it leads to no network between hosts by itself: loopback, a tunnel, a container bridge."""
        return self.name == "lo" or self.kind in TUNNEL_KINDS or bool(TUNNELS.fullmatch(self.name))


@dataclass(frozen=True, slots=True)
class Hca:
    """A port of an InfiniBand or RoCE adapter, with the device files that a container needs for it.

    `pci_path` is where it hangs: `pci0000:00/0000:00:01.0/0000:06:00.0`.
    """

    device: str
    port: int
    state: str
    link_layer: str
    rate: str
    uverbs: tuple[str, ...]
    netdevs: tuple[str, ...] = ()
    pci: str = ""
    numa: int | None = None
    pci_path: str = ""

    @property
    def active(self) -> bool:
        """Whether the port carries traffic; sysfs writes ``4: ACTIVE``."""
        return self.state.endswith("ACTIVE")


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that computes on a GPU; `user` is empty where unknown.

    `container` is the id that its cgroup names: empty for one outside of any, None where the cgroup cannot be read.
    """

    pid: int
    name: str
    used_mib: int
    user: str = ""
    container: str | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as its driver names it; memory in MiB. `mig` and `ecc_errors` are None where unknown.

    `topology` is how it is joined to each GPU of the host, by index, as `nvidia-smi topo -m` prints it: X for itself,
    NV18, PIX, PXB, PHB, NODE, SYS; empty where unknown.
    `unified` is one that has no memory of its own: `memory_mib` is then the host's, less what that needs itself.
    `pci_path` is where it hangs: `pci0000:00/0000:00:01.0/0000:06:00.0`.
    """

    index: int
    uuid: str
    name: str
    memory_mib: int
    used_mib: int = 0
    driver: str = ""
    mig: bool | None = None
    ecc_errors: int | None = None
    unified: bool = False
    numa: int | None = None
    pci_path: str = ""
    topology: tuple[str, ...] = ()
    processes: tuple[GpuProcess, ...] = ()


@dataclass(frozen=True, slots=True)
class Gid:
    """An address of an adapter's port, with its number and kind (``RoCE v2``, ``IB/RoCE v1``)."""

    device: str
    port: int
    index: int
    address: str
    kind: str
    netdev: str = ""


@dataclass(frozen=True)
class DockerFacts:
    """The Docker daemon of a host; `problem` is the client's error if it does not answer.

    `cdi_specs` are the kinds of device that CDI files on the host describe. Whether Docker reads such files is
    `cdi_enabled`, None where unknown, and `cdi_devices` are those that Docker lists, where it does. `id` is what
    the daemon calls itself, the same by every way to it.
    """

    id: str = ""
    version: str = ""
    api_version: str = ""
    architecture: str = ""
    container_runtimes: tuple[str, ...] = ()
    cdi_specs: tuple[str, ...] = ()
    data_root: str = ""
    problem: str = ""
    cgroup_driver: str = ""
    cgroup_version: str = ""
    rootless: bool = False
    toolkit_version: str = ""
    gpu_hook: bool = False
    missing_cdi_paths: tuple[str, ...] = ()
    cdi_enabled: bool | None = None
    cdi_devices: tuple[str, ...] = ()


# What this machine adds to the facts of a host: no part of a document about the host.
OF_THIS_MACHINE = ("known_heads",)


@dataclass(frozen=True)
class HostFacts:
    """Everything observed on one host; sizes in bytes, the clock in seconds since 1970.

    `observed_at` is when it was asked, by this machine's clock, and `observed_within` how long its answer took.
    `logical_gpus` is the number of logical GPUs that a CPU host offers, None where undeclared.
    `routes` maps each address that was asked for to its outgoing interface, None without a route.
    `volumes` are the labels by name of the volumes of a cluster of this name, asked for where no node has an id.
    `member_record` is what a head remembers of its members.
    `missing_paths` are those asked-for paths that the host does not have; `rdma_devices` the files below
    /dev/infiniband; `gpu_problem` what nvidia-smi printed in place of GPUs. `details`, and `other_containers`, the
    containers of other owners, are set only where they were asked for. `distribution` is the system's own id, and
    those that it is like. `known_heads` do not come from the host: this machine remembers them.
    """

    host: str
    machine_id: str
    hostname: str
    clock: float
    nics: tuple[Nic, ...]
    hcas: tuple[Hca, ...]
    gpus: tuple[Gpu, ...]
    logical_gpus: int | None
    memory_bytes: int
    listening: frozenset[int]
    routes: Mapping[str, str | None]
    missing_paths: frozenset[str]
    free_bytes: Mapping[str, int]
    docker: DockerFacts
    containers: tuple[Container, ...] = ()
    images: tuple[Image, ...] = ()
    available_bytes: int = 0
    gpu_problem: str = ""
    architecture: str = ""
    boot_id: str = ""
    observed_at: float = 0.0
    observed_within: float = 0.0
    rdma_devices: tuple[str, ...] = ()
    details: Details | None = None
    other_containers: tuple[Container, ...] = ()
    volumes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    member_record: str = ""
    gids: tuple[Gid, ...] = ()
    distribution: tuple[str, ...] = ()
    known_heads: KnownHeads = field(default_factory=KnownHeads)

    @property
    def may_lead(self) -> str:
        """The id of the cluster whose head is there, or where a move from here began to lead; empty where none is."""
        here = self.known_heads.here
        return here.id if here and here.leads else ""

    @property
    def was_head_of(self) -> str:
        """The id of the cluster whose head this machine knows there; empty where it knows none."""
        here = self.known_heads.here
        return here.id if here and here.leads and here.done else ""

    @property
    def made_here(self) -> bool:
        """Whether this machine made that head."""
        here = self.known_heads.here
        return bool(self.was_head_of and here and here.made)

    def interface_of(self, address: str) -> Nic | None:
        """The interface that holds the address."""
        return next((nic for nic in self.nics if nic.holds(address)), None)
