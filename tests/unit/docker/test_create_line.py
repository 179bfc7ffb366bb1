"""The line that people read, derived from the body."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from tests.support import world
from vllm_cluster.core.desired import desired
from vllm_cluster.core.spec import GpuRequest
from vllm_cluster.docker import create_line as module
from vllm_cluster.docker.container_body import node_body
from vllm_cluster.docker.create_line import create_line


def test_it_quotes_what_a_shell_would_read() -> None:
    words = world.inventory(environment={"NOTE": "a b; rm -rf $HOME"})
    line = create_line(desired(words, world.hosts(), world.INPUTS)[0])
    assert "'NOTE=a b; rm -rf $HOME'" in line
    assert line.startswith("docker create --name vcluster-lab --network host --ipc private")


# fault: docker/container_body.py: "SecurityOpt": [] if spec.privileged else ["no-new-privileges"], → "SecurityOpt": [],
# fault: docker/container_body.py: "RestartPolicy": {"Name": "unless-stopped"}, → "RestartPolicy": {"Name": "no"},
# fault: docker/create_line.py: "--restart" → "--restarts"
def test_every_node_comes_back_ends_in_order_and_gains_no_rights() -> None:
    line = create_line(desired(world.inventory(), world.hosts(), world.INPUTS)[0])
    for words in (
        "--restart unless-stopped",
        "--security-opt no-new-privileges",
        "--init",
        "--stop-signal SIGTERM --stop-timeout 30",
        "--log-opt max-size=50m --log-opt max-file=3",
        "--no-healthcheck",
    ):
        assert f" {words} " in line
    assert "--privileged" not in line


def test_it_holds_nothing_twice() -> None:
    line = create_line(desired(world.inventory(), world.hosts(), world.INPUTS)[0])
    assert "io.vcluster.cluster=lab" in line
    assert "io.vcluster.spec" not in line


def test_a_setting_that_the_line_would_leave_out_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is one that it knows; a new kind of setting needs its option before it can be shown."""
    spec = desired(world.inventory(), world.hosts(), world.INPUTS)[0]

    def show(**more: object) -> str:
        body = node_body(spec, spec.image, "")
        monkeypatch.setattr(module, "node_body", lambda *_: {**body, "HostConfig": {**body["HostConfig"], **more}})
        return create_line(spec)

    assert " --memory 64 " in show(Memory=64)
    with pytest.raises(ValueError, match="no option of docker create for Sysctls"):
        show(Sysctls={"net.core.somaxconn": "1024"})


def test_gpus_by_the_runtime_and_by_cdi() -> None:
    spec = desired(world.inventory(), world.hosts(), world.INPUTS)[0]
    runtime = shlex.split(create_line(replace(spec, gpus=GpuRequest(("0", "1")))))
    assert runtime[runtime.index("--gpus") + 1] == 'driver=nvidia,"device=0,1"'
    cdi = shlex.split(create_line(replace(spec, gpus=GpuRequest(("nvidia.com/gpu=0",), "cdi"))))
    assert cdi[cdi.index("--device") + 1] == "nvidia.com/gpu=0"
    named = shlex.split(create_line(replace(spec, gpus=GpuRequest(("0", "1"), "runtime"))))
    assert named[named.index("--runtime") + 1] == "nvidia"
    assert {"NVIDIA_VISIBLE_DEVICES=0,1", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"} <= set(named)
