"""A node's container as a `docker create` line for people, derived from the body that is sent."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Iterator, Sequence
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


def _host(config: dict[str, Any]) -> Iterator[str]:
    yield from ("--network", config["NetworkMode"], "--ipc", config["IpcMode"], "--shm-size", str(config["ShmSize"]))
    yield from ("--restart", config["RestartPolicy"]["Name"], "--log-driver", config["LogConfig"]["Type"])
    yield from _each("--log-opt", (f"{key}={value}" for key, value in config["LogConfig"]["Config"].items()))
    yield from ["--runtime", config["Runtime"]] if "Runtime" in config else []
    yield from ["--init"] if config["Init"] else []
    yield from ["--privileged"] if config["Privileged"] else []
    yield from _each("--security-opt", config["SecurityOpt"])
    yield from _each("--cap-add", config["CapAdd"])
    yield from _each("--ulimit", (f"{one['Name']}={one['Soft']}:{one['Hard']}" for one in config["Ulimits"]))
    for device in config["Devices"]:
        yield from ("--device", f"{device['PathOnHost']}:{device['PathInContainer']}:{device['CgroupPermissions']}")
    for request in config["DeviceRequests"]:
        if request["Driver"] == "cdi":
            yield from _each("--device", request["DeviceIDs"])
        else:
            yield from ("--gpus", _fields([f"driver={request['Driver']}", f"device={','.join(request['DeviceIDs'])}"]))
    yield from _each("--volume", config["Binds"])
    for mount in config["Mounts"]:
        labels = [f"volume-label={key}={value}" for key, value in mount["VolumeOptions"]["Labels"].items()]
        place = [f"type={mount['Type']}", f"source={mount['Source']}", f"target={mount['Target']}", *labels]
        yield from ("--mount", _fields([*place, *(["readonly"] if mount["ReadOnly"] else [])]))


def _each(option: str, values: Any) -> list[str]:
    return [word for value in values for word in (option, value)]


def _fields(values: Sequence[str]) -> str:
    """Docker reads these options as one line of CSV: a value with a comma is quoted."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(values)
    return line.getvalue()
