"""What facts.sh would print on a host of the world."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence

from tests.support.paths import ROOT
from tests.support.sim.life import NODE_PROGRAM, role
from tests.support.sim.world import Machine, World
from vllm_cluster.kernel.models.listed import END

RECORDED = ROOT / "tests" / "fixtures" / "facts" / "sandbox-host.txt"
REFUSALS = {
    "missing": "sh: 1: docker: not found",
    "stopped": "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
    "forbidden": "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock",
}


def engine_id(machine: Machine) -> str:
    """What its Docker calls itself."""
    return f"engine-of-{machine.engine or machine.machine_id}"


def sections(world: World, machine: Machine, peers: Sequence[str], paths: Sequence[str]) -> str:
    """The sections."""
    nics = [
        {"ifname": "lo", "mtu": 65536, "operstate": "UNKNOWN", "addr_info": [{"local": "127.0.0.1", "prefixlen": 8}]},
        {
            "ifname": machine.nic,
            "mtu": 9000,
            "operstate": "UP",
            "addr_info": [{"local": machine.address, "prefixlen": 24}],
        },
    ]
    server, info = "", REFUSALS.get(machine.docker, "")
    if not info:
        server = json.dumps({"Version": machine.version, "ApiVersion": machine.api, "Arch": "amd64"})
        info = json.dumps({"Root": "/var/lib/docker", "ID": engine_id(machine), "Runtimes": {"nvidia": {}, "runc": {}}})
    sections = {
        "machine": machine.machine_id,
        "hostname": machine.name,
        "clock": f"{world.host_time(machine):.0f}",
        "memory": str(1 << 40),
        "nics": json.dumps(nics),
        "routes": "\n".join(f"{peer} {'lo' if peer == machine.address else machine.nic}" for peer in peers),
        "listening": "\n".join(f"{port:04X}" for port in sorted(machine.listening | _held(machine))),
        "hcas": "",
        "gpus": "\n".join(
            f"{i}, GPU-{machine.name}-{i}, NVIDIA H200, 143771, {machine.gpu_users.get(i, (0, ''))[0]}"
            for i in range(machine.gpus)
        ),
        "gpuprocesses": "\n".join(
            f"GPU-{machine.name}-{i}| {4242 + i}|anna 1000|{cgroup}| {mib}, python3"
            for i, (mib, cgroup) in machine.gpu_users.items()
        ),
        "slots": "",
        "missing": "",
        "cdi": "",
        "docker": server,
        "dockerinfo": info,
        "disks": "".join(f"{path}|{1 << 40}\n" for path in ("/var/lib/docker", *paths[:1], "/tmp")),
        "end": "",
    }
    return "".join(f"\n@@{name}\n{text}\n" for name, text in sections.items())


@functools.cache
def details() -> str:
    """What details.sh printed on a real host."""
    return "\n@@smi" + RECORDED.read_text().partition("\n@@smi")[2]


def models(machine: Machine) -> list[str]:
    """What models.sh would print of the host's cache."""
    rows = [
        f"hub|{folder.removeprefix('hub/models--')}|{'a' * 40}|{size >> 10}|1700000000|"
        for folder, size in machine.models.items()
    ]
    return [*rows, "folder|mine||12|1700000000|no weights", END]


def _held(machine: Machine) -> set[int]:
    """What the node listens on; a paused one continues to listen."""
    ports: set[int] = set()
    for box in machine.boxes.values():
        if box.state in ("running", "paused") and NODE_PROGRAM in box.argv:
            ports |= {6380, 6381, 6382, 6383, 6385}
            ports |= {6379, 6386, 8265, 10001} if role(box) == "head" else set()
    return ports
