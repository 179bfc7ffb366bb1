"""How Docker hands out GPUs: every engine, with and without a CDI file, its CDI on or off, the toolkit there or not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support import world
from vllm_cluster.kernel.checks.registry import check_all, preflight
from vllm_cluster.kernel.docker.container_body import node_body
from vllm_cluster.kernel.facts.host_facts import DockerFacts
from vllm_cluster.kernel.plan.desired import desired
from vllm_cluster.kernel.plan.gpus import KIND, ways

# What `docker info` has of each: 20.10 and 24 know nothing of CDI; until 28.2 it is off, and what it has is not listed.
ENGINES: dict[str, dict[str, Any]] = {
    "20.10.24": {"cdi_enabled": None},
    "24.0.7": {"cdi_enabled": None},
    "26.1.5+dfsg1": {"cdi_enabled": False},
    "26.1.5+dfsg1, CDI on": {"cdi_enabled": True},
    "28.2.2": {"cdi_enabled": True},
    "28.2.2, CDI off": {"cdi_enabled": False},
    "29.0.0, a client of 24": {"cdi_enabled": None},
}
# Engine → the way for: no file and no toolkit, a file alone, the toolkit's hook and runtime without and with a file,
# and the runtime alone (the toolkit's base package), without and with a file.
TABLE: dict[str, tuple[str, str, str, str, str, str]] = {
    "20.10.24": ("", "", "request", "request", "runtime", "runtime"),
    "24.0.7": ("", "", "request", "request", "runtime", "runtime"),
    "26.1.5+dfsg1": ("", "", "request", "request", "runtime", "runtime"),
    "26.1.5+dfsg1, CDI on": ("", "cdi", "request", "request", "runtime", "runtime"),
    "28.2.2": ("", "cdi", "request", "cdi", "runtime", "cdi"),
    "28.2.2, CDI off": ("", "", "request", "request", "runtime", "runtime"),
    "29.0.0, a client of 24": ("", "cdi", "request", "cdi", "runtime", "cdi"),
}
CASES = [
    (name, spec, toolkit, way)
    for name, row in TABLE.items()
    for (toolkit, spec), way in zip(
        [("none", False), ("none", True), ("whole", False), ("whole", True), ("base", False), ("base", True)],
        row,
        strict=True,
    )
]


def engine(name: str, spec: bool, toolkit: str) -> DockerFacts:
    """An engine as its host's facts describe it."""
    runtimes = ("io.containerd.runc.v2", *(("nvidia",) if toolkit != "none" else ()), "runc")
    words: dict[str, Any] = {
        "cdi_specs": (KIND,) if spec else (),
        "gpu_hook": toolkit == "whole",
        "container_runtimes": runtimes,
    }
    return replace(world.host(1).docker, version=name.partition(",")[0], **words, **ENGINES[name])


# fault: kernel/plan/gpus.py: by_cdi = cdi_on(docker) and KIND in → by_cdi = KIND in
# fault: kernel/plan/gpus.py: if by_cdi and survives_restart(docker): → if by_cdi:
@pytest.mark.promise("P40")
@pytest.mark.parametrize(("name", "spec", "toolkit", "way"), CASES)
def test_the_engine_decides_and_not_a_file(name: str, spec: bool, toolkit: str, way: str) -> None:
    """One way that works there, or one error before anything changes."""
    one = engine(name, spec, toolkit)
    facts = {"gpu1": replace(world.host(1), docker=one)}
    words = world.inventory(1)
    errors = [finding.code for finding in preflight(words, facts) if finding.error]
    assert (ways(one)[:1], errors) == (((way,), []) if way else ((), ["gpu-runtime-missing"]))
    if way:
        (head,) = desired(words, facts, world.INPUTS)
        assert head.gpus is not None
        assert head.gpus.way == way


def test_what_each_way_asks_of_docker() -> None:
    words = world.inventory(1)

    def host_config(name: str, spec: bool, toolkit: str) -> dict[str, Any]:
        facts = {"gpu1": replace(world.host(1), docker=engine(name, spec, toolkit))}
        body: dict[str, Any] = node_body(desired(words, facts, world.INPUTS)[0], "image", "")
        return {"env": [entry for entry in body["Env"] if entry.startswith("NVIDIA")], **body["HostConfig"]}

    by_cdi = host_config("28.2.2", True, "whole")
    assert by_cdi["DeviceRequests"] == [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=all"]}]
    by_request = host_config("26.1.5+dfsg1", True, "whole")
    assert by_request["DeviceRequests"] == [{"Driver": "nvidia", "DeviceIDs": ["0", "1"], "Capabilities": [["gpu"]]}]
    by_runtime = host_config("26.1.5+dfsg1", True, "base")
    assert (by_runtime["DeviceRequests"], by_runtime["Runtime"]) == ([], "nvidia")
    assert by_runtime["env"] == ["NVIDIA_VISIBLE_DEVICES=0,1", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"]
    assert all("Runtime" not in config and not config["env"] for config in (by_cdi, by_request))


def test_a_way_that_a_restart_of_docker_breaks_is_reported() -> None:
    """Docker before 28.2 leaves containers with CDI devices down when it starts."""
    facts = {"gpu1": replace(world.host(1), docker=engine("26.1.5+dfsg1, CDI on", True, "none"))}
    (found,) = preflight(world.inventory(1), facts)
    assert (found.code, found.error) == ("cdi-restart", False)
    assert "until vcluster up" in found.message


# fault: kernel/checks/docker.py: docker) and ways(docker → docker) and not ways(docker
def test_a_file_that_docker_ignores_is_reported() -> None:
    facts = {"gpu1": replace(world.host(1), docker=engine("26.1.5+dfsg1", True, "whole"))}
    assert [found.code for found in preflight(world.inventory(1), facts)] == []
    (found,) = check_all(world.inventory(1), facts)
    assert (found.code, found.error) == ("cdi-off", False)
    alone = {"gpu1": replace(world.host(1), docker=engine("26.1.5+dfsg1", True, "none"))}
    (error,) = preflight(world.inventory(1), alone)
    assert (error.code, "ignored" in error.message) == ("gpu-runtime-missing", True)
