"""Ray as the way to join nodes: its command line, its environment, its ports, its secret and its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vllm_cluster.kernel.backends import vllm
from vllm_cluster.kernel.backends.seam import Chosen, Degrees, Role
from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.listeners import LOOPBACK
from vllm_cluster.kernel.text import host_port
from vllm_cluster.wire.order import Part

if TYPE_CHECKING:
    from vllm_cluster.kernel.inventory.model import Inventory, Ports

FLAGS: tuple[str, ...] = ("--distributed-executor-backend=ray",)
# The secret that its nodes and drivers show, generated once for a cluster.
TOKEN = "ray-token"  # noqa: S105 (a name)
TOKEN_PATH = "RAY_AUTH_TOKEN_PATH"  # noqa: S105 (a name)
# Its executor fills gaps in a worker's environment from the head's, but for what is in this file of vLLM's folder.
NOT_PASSED_ON = "ray_non_carry_over_env_vars.json"
# vLLM moves its tensors itself; Ray's default would take 30 % of the memory.
OBJECT_STORE_BYTES = 200_000_000
SHM_BYTES = OBJECT_STORE_BYTES
LED_BY_HEAD = True
NODE_PORTS: tuple[str, ...] = (
    "node_manager",
    "object_manager",
    "dashboard_agent",
    "dashboard_agent_grpc",
    "runtime_env_agent",
)
HEAD_PORTS: tuple[str, ...] = ("gcs", "client_server")
LOOPBACK_PORTS: tuple[str, ...] = ("dashboard",)
WORKER_PORTS: tuple[str, ...] = ("worker_min", "worker_max")


def requirements(inventory: Inventory) -> tuple[str, ...]:
    """What images that come without get (name==version)."""
    return (f"ray=={inventory.ray}",)


def start_argv(role: Role, *, address: str, head_address: str, gpus: int, ports: Ports) -> list[str]:
    """The command that runs Ray on a node until it ends, every port that has a flag pinned."""
    flags = [
        f"--node-ip-address={address}",
        f"--num-gpus={gpus}",
        f"--node-manager-port={ports.node_manager}",
        f"--object-manager-port={ports.object_manager}",
        f"--dashboard-agent-listen-port={ports.dashboard_agent}",
        f"--dashboard-agent-grpc-port={ports.dashboard_agent_grpc}",
        f"--runtime-env-agent-port={ports.runtime_env_agent}",
        f"--min-worker-port={ports.worker_min}",
        f"--max-worker-port={ports.worker_max}",
        f"--object-store-memory={OBJECT_STORE_BYTES}",
        # Named, though it is the default: the node program clears old sessions from the folder that is named here.
        "--temp-dir=/tmp/ray",
        "--disable-usage-stats",
        "--log-style=record",
        "--log-color=false",
        "--block",
    ]
    if role == "worker":
        return ["ray", "start", f"--address={host_port(head_address, ports.gcs)}", *flags]
    head = [
        "--head",
        f"--port={ports.gcs}",
        f"--ray-client-server-port={ports.client_server}",
        # `ray list nodes` asks the dashboard; its API wants the token, and only this host can reach it.
        "--include-dashboard=true",
        f"--dashboard-host={LOOPBACK}",
        f"--dashboard-port={ports.dashboard}",
    ]
    return ["ray", "start", *head, *flags]


def environment(*, head_address: str, ports: Ports, token_file: str) -> dict[str, str]:
    """The environment of Ray and of all that talks to it, the same on every node."""
    return {
        # Both, on every node: `ray start --address` never turns authentication on by itself.
        "RAY_AUTH_MODE": "token",
        TOKEN_PATH: token_file,
        # Without it a driver looks for a cluster in /tmp/ray, and finds the one that died.
        "RAY_ADDRESS": host_port(head_address, ports.gcs),
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray's memory monitor kills ranks that the kernel would have let live.
        "RAY_memory_monitor_refresh_ms": "0",
        # A killed raylet counts as dead after 3 refusals a second apart instead of 12 s; a frozen or cut-off one after
        # 3 x 11 s instead of 64. Not shorter: a false alarm costs loading the whole model again.
        "RAY_health_check_initial_delay_ms": "5000",
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_timeout_ms": "10000",
        "RAY_health_check_failure_threshold": "3",
        # How long a raylet waits for a lost head; it never joins a new one, and gives up after 60 s by default.
        "RAY_gcs_rpc_server_reconnect_timeout_s": "30",
        # The agents' metrics server listens on every address and asks for no token.
        "RAY_enable_metrics_collection": "0",
        # Two metrics servers of the head that listen on every address and ask for no token; they have no switch, but
        # Ray continues without them when their port cannot be had.
        "AUTOSCALER_METRIC_PORT": "-1",
        "DASHBOARD_METRIC_PORT": "-1",
    }


def take(nodes: Mapping[str, int], degrees: Degrees) -> dict[str, int]:
    """Choose whole tensor parallel groups, the first hosts first; over hosts that are too small.

    Raises:
        UsageError: several engines are wanted.
    """
    if degrees.dp > 1:
        raise UsageError("vcluster runs data parallel without Ray", hint="leave out --backend ray")
    return vllm.place_ranks(nodes, degrees.tp, degrees.pp)


def parts(argv: Sequence[str], env: Mapping[str, str], chosen: Chosen, degrees: Degrees) -> tuple[Part, ...]:
    """Return what each host runs: the head alone a command.

    vLLM's executor has Ray start the ranks, on the head too if that has any.
    """
    del degrees
    head, gpus, at = chosen.head, chosen.gpus, chosen.addresses
    leads = Part(head, at[head], gpus.get(head, 0), tuple(argv), env)
    return (leads, *(Part(name, at[name], count) for name, count in gpus.items() if name != head))
