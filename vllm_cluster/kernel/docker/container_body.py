"""A container spec in the Engine API's words."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from vllm_cluster.kernel.plan.gpus import RUNTIME
from vllm_cluster.kernel.plan.identity import Owner, owner_of
from vllm_cluster.kernel.plan.spec import BASE_IMAGE, ContainerSpec, GpuRequest, Mount

# Docker's own grace is 10 s; vLLM and Ray need longer to end in order.
STOP_SECONDS = 30


def node_body(spec: ContainerSpec, node_image: str, base_image_id: str) -> dict[str, object]:
    """The body of the call that creates a node's container."""
    return {
        "Image": node_image,
        "Entrypoint": [spec.command[0]],
        "Cmd": list(spec.command[1:]),
        "Env": [f"{key}={value}" for key, value in (*spec.environment, *_runtime_variables(spec))],
        "Labels": {**spec.labels(), BASE_IMAGE: base_image_id},
        **({"User": spec.user} if spec.user else {}),
        "StopSignal": "SIGTERM",
        "StopTimeout": STOP_SECONDS,
        "HostConfig": host_config(spec),
    }


def host_config(spec: ContainerSpec) -> dict[str, object]:
    """What of this body is about the host."""
    memlock = [{"Name": "memlock", "Soft": -1, "Hard": -1}] if spec.unlimited_memlock else []
    return {
        "NetworkMode": "host",
        # Not the host's: logind removes segments there when the user's last session ends (RemoveIPC).
        "IpcMode": "private",
        "ShmSize": spec.shm_size,
        "Init": True,
        "RestartPolicy": {"Name": "unless-stopped"},
        "LogConfig": {"Type": "json-file", "Config": {"max-size": "50m", "max-file": "3"}},
        "Binds": [f"{m.source}:{m.target}:{'ro' if m.read_only else 'rw'}" for m in spec.mounts if not _volume(m)],
        "Mounts": [volume_mount(m, owner_of(spec)) for m in spec.mounts if _volume(m)],
        "Devices": [
            {"PathOnHost": device, "PathInContainer": device, "CgroupPermissions": "rw"} for device in spec.devices
        ],
        "DeviceRequests": _device_requests(spec),
        **({"Runtime": RUNTIME} if spec.gpus and spec.gpus.way == "runtime" else {}),
        "CapAdd": list(spec.capabilities),
        "Ulimits": memlock,
        "Privileged": spec.privileged,
        "SecurityOpt": [] if spec.privileged else ["no-new-privileges"],
    }


def _volume(mount: Mount) -> bool:
    return not mount.source.startswith("/")


def volume_mount(mount: Mount, owner: Owner, labels: Mapping[str, str] = MappingProxyType({})) -> dict[str, object]:
    """A volume with the cluster's labels also where Docker makes it again: else nothing would ever remove it."""
    options = {"Labels": {**owner.labels, **labels}}
    place = {"Type": "volume", "Source": mount.source, "Target": mount.target, "ReadOnly": mount.read_only}
    return {**place, "VolumeOptions": options}


def _device_requests(spec: ContainerSpec) -> list[dict[str, object]]:
    match spec.gpus:
        case GpuRequest(ids, "cdi"):
            return [{"Driver": "cdi", "DeviceIDs": list(ids)}]
        case GpuRequest(ids, "request"):
            return [{"Driver": "nvidia", "DeviceIDs": list(ids), "Capabilities": [["gpu"]]}]
    return []


def _runtime_variables(spec: ContainerSpec) -> tuple[tuple[str, str], ...]:
    """What the runtime called nvidia reads in the place of a request; CUDA needs no more than these capabilities."""
    if spec.gpus is None or spec.gpus.way != "runtime":
        return ()
    devices = ",".join(spec.gpus.ids)
    return (("NVIDIA_VISIBLE_DEVICES", devices), ("NVIDIA_DRIVER_CAPABILITIES", "compute,utility"))


def volume_writer_body(
    owner: Owner, image: str, volume: Mount, labels: Mapping[str, str] = MappingProxyType({})
) -> dict[str, object]:
    """The body for a container that never starts: a door through which files get into a volume.

    Where the volume is not there, Docker makes it with these labels beside the owner's.
    """
    return {
        "Image": image,
        "Entrypoint": ["true"],
        "Cmd": [],
        "Labels": owner.labels,
        "HostConfig": {"NetworkMode": "none", "Mounts": [volume_mount(volume, owner, labels)]},
    }
