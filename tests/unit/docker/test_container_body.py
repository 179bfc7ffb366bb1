"""The body that makes a container: how it restarts, its GPUs, its user, and whose the files are in it."""

from __future__ import annotations

import io
import re
import tarfile
from dataclasses import replace
from typing import Any

import pytest

from tests.support import world
from tests.support.paths import ROOT
from vllm_cluster.kernel.docker.client import packed
from vllm_cluster.kernel.docker.container_body import node_body
from vllm_cluster.kernel.docker.temporary import TemporaryContainer
from vllm_cluster.kernel.plan.desired import desired
from vllm_cluster.kernel.plan.identity import owner_of
from vllm_cluster.kernel.plan.spec import LABEL, GpuRequest, Mount, user_numbers

PAGE = ROOT / "docs" / "architecture.md"


@pytest.mark.parametrize(("text", "numbers"), [("", (0, 0)), ("1000", (1000, 0)), ("1000:100", (1000, 100))])
def test_its_numbers(text: str, numbers: tuple[int, int]) -> None:
    assert user_numbers(text) == numbers


# fault: kernel/docker/container_body.py: **({"User": spec.user} if spec.user else {}), →
def test_node_and_glance_run_as_the_user_and_have_a_home() -> None:
    head = desired(world.inventory(user="1000:100"), world.hosts(), world.INPUTS)[0]
    beside = TemporaryContainer(owner_of(head), "probe", "i", like=head).body(["python3"])
    assert node_body(head, "i", "")["User"] == beside["User"] == "1000:100"
    assert dict(head.environment)["HOME"].startswith("/var/lib/vcluster/")
    plain = desired(world.inventory(), world.hosts(), world.INPUTS)[0]
    assert "User" not in node_body(plain, "i", "")
    assert "HOME" not in dict(plain.environment)


# fault: kernel/docker/container_body.py: "SecurityOpt": [] if spec.privileged else ["no-new-privileges"], → "SecurityOpt": [],
# fault: kernel/docker/container_body.py: "RestartPolicy": {"Name": "unless-stopped"}, → "RestartPolicy": {"Name": "no"},
def test_every_node_comes_back_ends_in_order_and_gains_no_rights() -> None:
    body: dict[str, Any] = node_body(desired(world.inventory(), world.hosts(), world.INPUTS)[0], "i", "")
    host = body["HostConfig"]
    assert (host["RestartPolicy"], host["SecurityOpt"]) == ({"Name": "unless-stopped"}, ["no-new-privileges"])
    assert (host["Init"], host["Privileged"], host["NetworkMode"]) == (True, False, "host")
    assert host["LogConfig"]["Config"] == {"max-size": "50m", "max-file": "3"}
    assert (body["StopSignal"], body["StopTimeout"]) == ("SIGTERM", 30)


# fault: docs/architecture.md: `base-image`, `requirements`, → `base-image`, `ray`,
def test_the_page_lists_the_labels_of_a_node() -> None:
    spec = replace(desired(world.inventory(), world.hosts(), world.INPUTS)[0], secrets=(("ray-token", "id"),))
    body: dict[str, Any] = node_body(spec, "i", "")
    made = {name.removeprefix(LABEL) for name in body["Labels"]}
    (row,) = re.findall(r"^\| what runs \| labels on containers \((.*?)\)", PAGE.read_text(), re.MULTILINE)
    listed = {name.removeprefix(LABEL) for name in re.findall(r"`(.+?)`", row)}
    assert listed == {"secret.*" if name.startswith("secret.") else name for name in made}


def test_gpus_by_request_by_cdi_and_by_the_runtime() -> None:
    spec = desired(world.inventory(), world.hosts(), world.INPUTS)[0]

    def given(request: GpuRequest) -> dict[str, Any]:
        return node_body(replace(spec, gpus=request), "i", "")

    (asked,) = given(GpuRequest(("0", "1")))["HostConfig"]["DeviceRequests"]
    assert (asked["Driver"], asked["DeviceIDs"]) == ("nvidia", ["0", "1"])
    (cdi,) = given(GpuRequest(("nvidia.com/gpu=0",), "cdi"))["HostConfig"]["DeviceRequests"]
    assert (cdi["Driver"], cdi["DeviceIDs"]) == ("cdi", ["nvidia.com/gpu=0"])
    named = given(GpuRequest(("0", "1"), "runtime"))
    assert named["HostConfig"]["Runtime"] == "nvidia"
    assert {"NVIDIA_VISIBLE_DEVICES=0,1", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"} <= set(named["Env"])


def test_of_a_volume_nothing_else_is_mounted() -> None:
    head = desired(world.inventory(user="1000:100"), world.hosts(), world.INPUTS)[0]
    state = Mount(head.state_volume, "/state")
    made = TemporaryContainer(owner_of(head), "probe", "i", user="0:0", volume=state)
    body: dict[str, Any] = made.body(["python3", "-c"])
    assert (body["User"], body["Cmd"], body["HostConfig"]["NetworkMode"]) == ("0:0", ["-c"], "none")
    assert [mount["Source"] for mount in body["HostConfig"]["Mounts"]] == [head.state_volume]


def test_files_are_the_users() -> None:
    with tarfile.open(fileobj=io.BytesIO(packed({"a": (b"x", 0o600)}, (1000, 100)))) as tar:
        entry = tar.getmember("a")
    assert (entry.uid, entry.gid, entry.mode) == (1000, 100, 0o600)
