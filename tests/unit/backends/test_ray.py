"""What Ray gets: its command and environment."""

from __future__ import annotations

from typing import Literal

import pytest

from vllm_cluster.kernel.backends import ray
from vllm_cluster.kernel.inventory.model import Ports

PORTS = Ports(gcs=7001, dashboard=7002, client_server=7003)


def argv(role: Literal["head", "worker"], address: str = "10.0.0.2", head: str = "10.0.0.1") -> list[str]:
    return ray.start_argv(role, address=address, head_address=head, gpus=8, ports=PORTS)


# fault: kernel/backends/ray.py: f"--dashboard-host={LOOPBACK}" → "--dashboard-host=0.0.0.0"
def test_the_head_has_its_ports_and_its_dashboard_on_loopback() -> None:
    told = argv("head", "10.0.0.1")
    assert told[:3] == ["ray", "start", "--head"]
    assert {"--port=7001", "--dashboard-port=7002", "--ray-client-server-port=7003"} <= set(told)
    assert {"--dashboard-host=127.0.0.1", "--node-ip-address=10.0.0.1", "--num-gpus=8", "--block"} <= set(told)


def test_a_worker_joins_without_options_of_the_head() -> None:
    told = argv("worker")
    assert told[:3] == ["ray", "start", "--address=10.0.0.1:7001"]
    assert "--node-ip-address=10.0.0.2" in told
    # `ray start --address` refuses these.
    for option in ("--head", "--port", "--dashboard-host", "--dashboard-port", "--include-dashboard"):
        assert not any(word.partition("=")[0] == option for word in told)


# fault: kernel/backends/ray.py: f"--object-manager-port={ports.object_manager}", →
@pytest.mark.parametrize("role", ["head", "worker"])
def test_no_port_is_left_to_chance(role: Literal["head", "worker"]) -> None:
    pinned = {word.partition("=")[0] for word in argv(role)}
    kinds = ("node-manager", "object-manager", "dashboard-agent-listen", "dashboard-agent-grpc", "runtime-env-agent")
    assert {f"--{kind}-port" for kind in (*kinds, "min-worker", "max-worker")} <= pinned


# fault: kernel/text.py: return f"[{address}]:{port}" if ":" in address else f"{address}:{port}" → return f"{address}:{port}"
def test_an_ipv6_address_is_bracketed_where_a_port_follows() -> None:
    assert "--address=[fd00::1]:7001" in argv("worker", "fd00::2", "fd00::1")
    assert "--node-ip-address=fd00::2" in argv("worker", "fd00::2", "fd00::1")


# fault: kernel/backends/ray.py: "RAY_AUTH_MODE": "token", →
def test_every_node_has_the_token_and_the_address() -> None:
    told = ray.environment(head_address="fd00::1", ports=PORTS, token_file="/run/secrets/token")
    assert (told["RAY_AUTH_MODE"], told["RAY_AUTH_TOKEN_PATH"]) == ("token", "/run/secrets/token")
    assert told["RAY_ADDRESS"] == "[fd00::1]:7001"
    assert told["RAY_USAGE_STATS_ENABLED"] == "0"
