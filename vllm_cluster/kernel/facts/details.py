"""The details of a host, which take longer than its facts; None and empty mean unknown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class GpuHealth:
    """Output of `nvidia-smi -q` for one GPU beyond its size; the values are the driver's own texts."""

    uuid: str
    mig: str = ""
    ecc: str = ""
    ecc_uncorrected: int | None = None
    fabric_state: str = ""
    fabric_status: str = ""
    repair_pending: tuple[str, ...] = ()
    recovery: str = ""


@dataclass(frozen=True)
class NvLinks:
    """The NVLinks of one GPU: how many carry traffic, how many there are."""

    gpu: int
    active: int
    total: int


@dataclass(frozen=True)
class FileSystem:
    """What carries a path; `source` is a device or ``server:/path``, sizes are in bytes."""

    path: str
    kind: str
    source: str
    mount: str
    total_bytes: int
    uuid: str = ""


@dataclass(frozen=True)
class ImageDetails:
    """The inventory's image as it lies on the host; `cuda` is the version that it was built for."""

    id: str
    architecture: str
    cuda: str = ""
    entrypoint: tuple[str, ...] = ()


@dataclass(frozen=True)
class Details:
    """A longer look at a host. `xids` is None where the kernel log may not be read."""

    cuda: str = ""
    gpu_health: tuple[GpuHealth, ...] = ()
    nvlinks: tuple[NvLinks, ...] = ()
    xids: tuple[str, ...] | None = None
    fabric_manager: str = ""
    peermem: bool = False
    open_driver: bool = False
    acs_enabled: bool | None = None
    iommu: str = ""
    docker_memlock: str = ""
    hostname_addresses: tuple[str, ...] | None = None
    filesystems: tuple[FileSystem, ...] = ()
    revisions: Mapping[str, str] = field(default_factory=dict)
    incomplete_files: tuple[str, ...] = ()
    broken_symlinks: tuple[str, ...] = ()
    without_tokenizer: tuple[str, ...] = ()
    image: ImageDetails | None = None
