"""The `docker create` line that `plan` shows makes the container that `up` makes: both made by a real Docker."""

from __future__ import annotations

import json
import shlex
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.support import world
from tests.support.create_line import create_line
from vllm_cluster.core.desired import desired
from vllm_cluster.core.spec import BASE_IMAGE, SPEC, ContainerSpec, GpuRequest
from vllm_cluster.docker.client import DIAL
from vllm_cluster.docker.container_body import node_body

CLUSTER = f"line-{uuid.uuid4().hex[:8]}"
IMAGE = f"vcluster-test/{CLUSTER}:empty"


def docker(*argv: str, stdin: bytes = b"") -> str:
    """What a docker command prints."""
    done = subprocess.run(["docker", *argv], input=stdin, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


@pytest.fixture(scope="module", autouse=True)
def empty_image() -> Iterator[None]:
    """An image with nothing in it: these containers never start."""
    docker("import", "-", IMAGE, stdin=bytes(10240))
    yield
    docker("image", "rm", IMAGE)


@pytest.fixture
def spec() -> Iterator[ContainerSpec]:
    """A head's container, which is removed with its volumes."""
    words = world.inventory(cluster=CLUSTER, image=IMAGE, model_cache="/srv", environment={"NOTE": "a 'b' $c,d\n"})
    head = desired(words, world.hosts(), world.INPUTS)[0]
    yield head
    docker("rm", "-f", f"vcluster-{CLUSTER}")
    docker("volume", "rm", "-f", head.state_volume, head.secrets_volume)


def made(spec: ContainerSpec) -> Any:
    """What Docker has of the container and its volumes, without what is new each time."""
    (seen,) = json.loads(docker("inspect", spec.name))
    volumes = [json.loads(docker("volume", "inspect", name))[0] for name in (spec.state_volume, spec.secrets_volume)]
    # With a terminal or not, a run would attach; a container that is started later does not.
    for key in ("AttachStdout", "AttachStderr"):
        seen["Config"].pop(key)
    for label in (BASE_IMAGE, SPEC):
        seen["Config"]["Labels"].pop(label, None)
    seen["HostConfig"].pop("ConsoleSize", None)
    keep = {key: seen[key] for key in ("Name", "Path", "Args", "Config", "HostConfig", "Mounts")}
    keep["Config"].pop("Hostname")  # the host's, or the id
    # The command line writes CAP_IPC_LOCK for IPC_LOCK, as newer engines do themselves.
    added = seen["HostConfig"]["CapAdd"] or []
    seen["HostConfig"]["CapAdd"] = [f"CAP_{name.removeprefix('CAP_')}" for name in added]
    # Docker keeps both as maps, in an order of its own.
    keep["Config"]["Env"].sort()
    keep["Mounts"].sort(key=lambda mount: str(mount["Destination"]))
    keep["volumes"] = [{"Name": volume["Name"], "Labels": volume["Labels"]} for volume in volumes]
    return _without_empty(keep)


def _without_empty(value: Any) -> Any:
    """A key that is left out and one that is empty mean the same to Docker."""
    if isinstance(value, dict):
        return {k: kept for k, v in value.items() if (kept := _without_empty(v)) not in (None, "", [], {}, False, 0)}
    return [_without_empty(entry) for entry in value] if isinstance(value, list) else value


def by_body(spec: ContainerSpec) -> None:
    """Make the container as `up` does: the body, over the API."""
    body = json.dumps(node_body(spec, spec.image, "")).encode()
    request = (
        f"POST /v1.41/containers/create?name={spec.name} HTTP/1.1\r\nHost: d\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    done = subprocess.run(DIAL, input=request.encode() + body, capture_output=True, timeout=120, check=False)
    assert done.stdout.startswith(b"HTTP/1.1 201"), done.stdout.decode() + done.stderr.decode()


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"gpus": None},
    "the runtime's GPUs": {"gpus": GpuRequest(("0", "1"))},
    "RDMA": {
        "gpus": None,
        "devices": ("/dev/null", "/dev/zero"),
        "capabilities": ("IPC_LOCK",),
        "unlimited_memlock": True,
    },
    "privileged": {"gpus": None, "privileged": True},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_the_line_and_the_body_make_one_container(spec: ContainerSpec, name: str) -> None:
    wanted = replace(spec, **VARIANTS[name])
    by_body(wanted)
    by_api = made(wanted)
    docker("rm", wanted.name)
    docker("volume", "rm", wanted.state_volume, wanted.secrets_volume)
    docker(*shlex.split(create_line(wanted))[1:])
    assert made(wanted) == by_api
