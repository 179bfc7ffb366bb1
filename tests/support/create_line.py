"""A node's container as a `docker create` line for people, derived from the body that is sent."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vllm_cluster.core.spec import BASE_IMAGE, SPEC, ContainerSpec
from vllm_cluster.docker.container_body import node_body

# What the line cannot hold; it is shown with it.
MISSING = "without Ray where the image has none, and without the files and secrets that are copied in before the start"


def create_line(spec: ContainerSpec) -> str:
    """The `docker create` line of this container, without the spec's label, Ray in its image and what is copied in."""
    body = node_body(spec, spec.image, "")
    # The one is known once the image is there; the other is all of this line once more, as JSON.
    labels = {key: value for key, value in body["Labels"].items() if key not in (BASE_IMAGE, SPEC)}
    argv = ["docker", "create", "--name", spec.name, *_host(body["HostConfig"])]
    argv += ["--user", body["User"]] if "User" in body else []
    argv += ["--stop-signal", body["StopSignal"], "--stop-timeout", str(body["StopTimeout"])]
    argv += ["--no-healthcheck"] if body["Healthcheck"] == {"Test": ["NONE"]} else []
    argv += _each("--label", (f"{key}={value}" for key, value in labels.items()))
    argv += _each("--env", body["Env"])
    return shlex.join([*argv, "--entrypoint", *body["Entrypoint"], body["Image"], *body["Cmd"]])


# What Docker keeps as one value, by the option that sets it: a new setting of a node needs no more than this here.
_VALUES = {
    "NetworkMode": "--network",
    "IpcMode": "--ipc",
    "ShmSize": "--shm-size",
    "Runtime": "--runtime",
    "Memory": "--memory",
    "MemorySwap": "--memory-swap",
    "CpusetCpus": "--cpuset-cpus",
    "PidsLimit": "--pids-limit",
    "OomScoreAdj": "--oom-score-adj",
    "CgroupParent": "--cgroup-parent",
}


def _host(config: Mapping[str, Any]) -> Iterator[str]:
    left = dict(config)
    for key, option in _VALUES.items():
        yield from (option, str(left.pop(key))) if key in left else ()
    log = left.pop("LogConfig")
    yield from ("--restart", left.pop("RestartPolicy")["Name"], "--log-driver", log["Type"])
    yield from _each("--log-opt", (f"{key}={value}" for key, value in log["Config"].items()))
    yield from ["--init"] if left.pop("Init") else []
    yield from ["--privileged"] if left.pop("Privileged") else []
    yield from _each("--security-opt", left.pop("SecurityOpt"))
    yield from _each("--cap-add", left.pop("CapAdd"))
    yield from _each("--ulimit", (f"{one['Name']}={one['Soft']}:{one['Hard']}" for one in left.pop("Ulimits")))
    for device in left.pop("Devices"):
        yield from ("--device", f"{device['PathOnHost']}:{device['PathInContainer']}:{device['CgroupPermissions']}")
    for request in left.pop("DeviceRequests"):
        if request["Driver"] == "cdi":
            yield from _each("--device", request["DeviceIDs"])
        else:
            yield from ("--gpus", _fields([f"driver={request['Driver']}", f"device={','.join(request['DeviceIDs'])}"]))
    yield from _each("--volume", left.pop("Binds"))
    for mount in left.pop("Mounts"):
        labels = [f"volume-label={key}={value}" for key, value in mount["VolumeOptions"]["Labels"].items()]
        place = [f"type={mount['Type']}", f"source={mount['Source']}", f"target={mount['Target']}", *labels]
        yield from ("--mount", _fields([*place, *(["readonly"] if mount["ReadOnly"] else [])]))
    if left:
        # Else people would paste another container than the one that is made.
        raise ValueError(f"no option of docker create for {', '.join(left)}")


def _each(option: str, values: Any) -> list[str]:
    return [word for value in values for word in (option, value)]


def _fields(values: Sequence[str]) -> str:
    """Docker reads these options as one line of CSV: a value with a comma is quoted."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(values)
    return line.getvalue()
