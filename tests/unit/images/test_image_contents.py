"""A container on every host before `up`: one that cannot be started is an error, in the engine's words."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, cast

import pytest

from tests.support import world
from vllm_cluster.kernel.checks.finding import Finding
from vllm_cluster.kernel.docker.client import DockerApi
from vllm_cluster.kernel.errors import CommandFailed
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.hosts.connection import Fleet, HostConnection
from vllm_cluster.kernel.images.inspect import look_inside
from vllm_cluster.kernel.transport.base import Transport

WELL = {"python": "3.12.3", "machine": "x86_64", "glibc": "2.39", "have": {"vllm": "0.33.0", "ray": "2.56.1"}}
CGROUP = "runc create failed: write /sys/fs/cgroup/docker/cgroup.procs: no such file or directory"


class Output:
    """What comes of a container's program; docker itself fails where it prints an error."""

    def __init__(self, prints: str, errors: str = "") -> None:
        self._pieces, self._errors = [prints.encode(), b""], errors

    def settimeout(self, seconds: float | None) -> None:
        assert seconds

    def recv(self, _size: int) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""

    def stderr_tail(self) -> str:
        return self._errors

    def exit_code(self) -> int:
        return 1 if self._errors else 0

    def close(self) -> None:
        """Nothing is left."""


class Docker:
    """A host's engine: what it refuses, and what its containers print."""

    def __init__(self, host: str, *, refuses: str = "", prints: str = "", at: str = "start") -> None:
        self.host, self.refuses, self.prints, self.at = host, refuses, prints, at
        self.bodies: dict[str, Mapping[str, Any]] = {}
        self.removed: list[str] = []

    def create(self, name: str, body: Mapping[str, Any]) -> str:
        self._refuse("create")
        self.bodies[name] = body
        return name

    def without_idle(self) -> AbstractContextManager[None]:
        return nullcontext()

    def open_stream(self, argv: Sequence[str], _deadline: object) -> Output:
        (name,) = self.bodies
        assert list(argv) == ["docker", "start", "--attach", "--interactive", name]
        if self.refuses:
            return Output("", f"Error response from daemon: {self.refuses}\nError: failed to start containers: {name}")
        self.bodies[name]["Cmd"].index("inspect_image")
        return Output(self.prints)

    def _refuse(self, call: str) -> None:
        if self.refuses and self.at == call:
            raise CommandFailed(self.host, self.refuses, exit_code=500, stderr=self.refuses)

    def remove(self, name: str, grace: int) -> None:
        assert grace == 0
        self.removed.append(name)


def looked(
    facts: dict[str, HostFacts], *, leave: tuple[str, ...] = (), backend: str = "ray", **docker: Any
) -> tuple[list[Finding], Docker]:
    """The findings where the second host's engine is so, and that engine."""
    words = world.inventory(backend=backend)
    fleet = Fleet(words)
    engines = {"gpu1": Docker("gpu1", prints=json.dumps({**WELL, "gpus": 2})), "gpu2": Docker("gpu2", **docker)}
    for name, engine in engines.items():
        fleet.connections[name] = HostConnection(name, cast(Transport, engine))
        fleet.connections[name].may_change = True
        fleet.connections[name]._docker_api = cast(DockerApi, engine)
    return look_inside(fleet, words, facts, lambda _: None, leave=leave), engines["gpu2"]


@pytest.mark.promise("P40")
@pytest.mark.parametrize("at", ["create", "start"])
def test_no_container_at_all_is_an_error_in_the_engines_words(at: str) -> None:
    (found,), docker = looked(world.hosts(), refuses=CGROUP, at=at)
    assert (found.code, found.host, found.error) == ("container-failed", "gpu2", True)
    assert CGROUP in found.message
    # Also where the answer to the create is an error: it may have been made.
    assert {*docker.bodies} <= {*docker.removed}


@pytest.mark.promise("P40")
def test_a_container_without_gpus_is_an_error() -> None:
    said = json.dumps({**WELL, "gpus": None, "problem": "libcuda.so.1: cannot open shared object file"})
    (found,), _ = looked(world.hosts(), prints=said)
    assert (found.code, found.host) == ("container-gpus-missing", "gpu2")
    (found,), _ = looked(world.hosts(), prints="exec format error")
    assert (found.code, "does not run Python" in found.message) == ("image-unfit", True)


# fault: kernel/images/inspect.py: if inventory.backend == "mp" and len → if len
@pytest.mark.parametrize("backend", ["ray", "mp"])
def test_without_ray_an_image_whose_vllm_cannot_span_hosts_is_an_error(backend: str) -> None:
    unknown = json.dumps({**WELL, "gpus": 2, "unknown": ["nnodes"] if backend == "mp" else []})
    found, docker = looked(world.hosts(), prints=unknown, backend=backend)
    (body,) = docker.bodies.values()
    assert ("nnodes" in body["Cmd"]) is (backend == "mp")
    assert ["does not know --nnodes" in one.message for one in found] == ([True] if backend == "mp" else [])


def test_it_is_a_nodes_container_and_makes_no_folder() -> None:
    facts = world.hosts(gpu2={"missing_paths": frozenset({"/models"})})
    found, docker = looked(facts, prints=json.dumps({**WELL, "gpus": 2}))
    (body,) = docker.bodies.values()
    config = body["HostConfig"]
    assert found == []
    assert config["DeviceRequests"] == [{"Driver": "nvidia", "DeviceIDs": ["0", "1"], "Capabilities": [["gpu"]]}]
    assert (config["Binds"], config["Mounts"], config["RestartPolicy"]) == ([], [], {"Name": "no"})
    assert config["AutoRemove"]


def test_hosts_without_the_image_are_left_alone() -> None:
    facts = world.hosts()
    facts["gpu2"] = replace(facts["gpu2"], images=())
    found, docker = looked(facts, refuses=CGROUP)
    assert (found, docker.bodies) == ([], {})
    # As are those of which something is known that would only be reported again.
    found, docker = looked(world.hosts(), leave=("gpu2",), refuses=CGROUP)
    assert (found, docker.bodies) == ([], {})
