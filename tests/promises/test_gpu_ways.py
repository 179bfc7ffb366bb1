"""P40, P27: a real engine with made-up GPUs: what the facts have of it is what it does, also when it starts again."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.support import world
from tests.support.attack import attack
from tests.support.hosts import Sandbox
from tests.support.second_engine import IMAGE, SOCKET, SecondEngine, make_image, second_engine
from tests.support.waiting import until
from vllm_cluster.kernel.checks.registry import preflight
from vllm_cluster.kernel.docker.container_body import node_body
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.plan.desired import desired
from vllm_cluster.kernel.plan.gpus import survives_restart, ways
from vllm_cluster.kernel.plan.spec import GpuRequest

pytestmark = [pytest.mark.e2e, pytest.mark.promise, pytest.mark.deep]

CDI = {"features": {"cdi": True}}
RUNTIME = {"runtimes": {"nvidia": {"path": "runc"}}}


def start(engine: SecondEngine, facts: HostFacts, request: GpuRequest | None = None) -> tuple[str, int, str]:
    """A container as a node's on this host would be: its name, and how Docker took it."""
    (head,) = desired(world.inventory(1, image=IMAGE, shm_size=1 << 20), {"gpu1": facts}, world.INPUTS)
    name = f"by-{(request or head.gpus or GpuRequest(())).way}"
    spec = replace(head, gpus=request or head.gpus, mounts=(), command=("/bin/sleep", "1000"), cluster=name)
    body = json.dumps(node_body(spec, spec.image, ""))
    message = (
        f"POST /v1.41/containers/create?name={spec.name} HTTP/1.1\r\nHost: d\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}"
    )
    made = engine.sh('docker --host "$1" system dial-stdio', SOCKET, stdin=message).stdout
    if not made.startswith("HTTP/1.1 201"):
        return spec.name, 1, made
    done = engine.docker("start", spec.name, ok=False)
    return spec.name, done.returncode, done.stderr


def seen(engine: SecondEngine) -> HostFacts:
    """The host's facts, with the address that the made-up inventory gives it."""
    plain = world.host(1)
    return replace(
        engine.facts(), nics=plain.nics, routes=plain.routes, missing_paths=frozenset(), free_bytes=plain.free_bytes
    )


@pytest.mark.cluster("empty")
@pytest.mark.parametrize(
    ("spec", "toolkit", "config", "way"),
    [
        (True, False, CDI, "cdi"),
        (True, True, CDI, "request"),
        (True, False, {**CDI, **RUNTIME}, "runtime"),
        (True, False, {}, ""),
        (False, True, RUNTIME, "request"),
    ],
)
def test_a_container_gets_its_gpus_as_docker_supports(
    sandbox: Sandbox, spec: bool, toolkit: bool, config: dict[str, Any], way: str
) -> None:
    """What `up` would ask for is taken; what it refuses, Docker refuses; and a restart of the engine is survived."""
    title = f"CDI file {spec}, hook {toolkit}, {', '.join(config) or 'nothing'} in daemon.json"
    with (
        second_engine(sandbox.container("gpu1"), spec=spec, toolkit=toolkit) as engine,
        attack("P40", title) as measured,
    ):
        engine.restart(config)
        make_image(engine)
        facts = seen(engine)
        assert ways(facts.docker)[:1] == ((way,) if way else ())
        codes = {finding.code: finding.error for finding in preflight(world.inventory(1), {"gpu1": facts})}
        if not way:
            assert codes["gpu-runtime-missing"]
            _, code, said = start(engine, facts, GpuRequest(("nvidia.com/gpu=all",), "cdi"))
            assert (code, 'could not select device driver "cdi"' in said) == (1, True), said
            measured.figure = "refused by up, and by Docker"
            return
        assert "gpu-runtime-missing" not in codes
        name, code, said = start(engine, facts)
        assert code == 0, said
        engine.restart(config)
        lasts = way != "cdi" or survives_restart(facts.docker)
        until(lambda: engine.states()[name] == ("running" if lasts else "exited"), 20)
        assert ("cdi-restart" in codes) is not lasts
        measured.figure = f"by {way}; after a restart of Docker {facts.docker.version} {engine.states()[name]}"
