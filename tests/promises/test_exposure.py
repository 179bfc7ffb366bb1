"""P29: what other machines can reach, without a key and with a wrong one."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import urllib.parse
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.attack import attack
from tests.support.endpoint import tunnel
from tests.support.hosts import Sandbox
from tests.support.served import API_KEY, addresses, serve, with_secrets
from vcluster_sandbox import names
from vcluster_sandbox.images import host_tag
from vllm_cluster.kernel.inventory.model import Ports

pytestmark = [pytest.mark.e2e, pytest.mark.promise, pytest.mark.deep]

OPEN = {("GET", "/health"), ("GET", "/ping"), ("HEAD", "/health"), ("HEAD", "/ping")}
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
# Routes that vLLM has or had, also where its own list lacks them, and ways to write a path that is guarded.
KNOWN = (
    "/v1/models", "/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/load_lora_adapter", "/v2/rerank",
    "/inference/v1/x", "/cohere/v2/chat", "/invocations", "/generative_scoring", "/pooling", "/classify", "/score",
    "/rerank", "/pause", "/resume", "/abort_requests", "/scale_elastic_ep", "/is_scaling_elastic_ep",
    "/init_weight_transfer_engine", "/update_weights", "/tokenize", "/detokenize", "/metrics", "/version", "/load",
    "/docs", "/redoc", "/openapi.json", "/server_info", "/sleep", "/wake_up", "/reset_prefix_cache", "/collective_rpc",
    "/start_profile", "//health", "/health/", "/Health", "/health/../v1/models", "/%68ealth", "/ping/x", "/./ping",
    "/health;x", "/v1//models",
)  # fmt: skip
# One connection after the other, without a process for each: 65,535 in seconds.
SCAN = "for p in {1..65535}; do { echo $p; } 3<>/dev/tcp/$0/$p; done 2>/dev/null"
ASKED = ("/", "/metrics", "/api/jobs/", "/api/version", "/v1/models", "/logs", "/worker/traceback")


def elsewhere(sandbox: Sandbox, script: str, *argv: str) -> str:
    """Run a script of bash on a machine of the hosts' network that is none of them."""
    network = names.Sandbox(sandbox.folder).network
    command = ["docker", "run", "--rm", "--network", network, "--entrypoint", "bash", host_tag(), "-c", script, *argv]
    return subprocess.run(command, capture_output=True, text=True, timeout=250, check=False).stdout


def ask(place: tuple[str, int], method: str, path: str, key: str | None) -> int:
    """The status of one request, the path as it is."""
    connection = http.client.HTTPConnection(*place, timeout=30)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    body = "{}" if method in ("POST", "PUT", "PATCH") else None
    try:
        connection.request(method, path, body, {**headers, "Content-Type": "application/json"})
        return connection.getresponse().status
    finally:
        connection.close()


def routes(place: tuple[str, int]) -> list[str]:
    """Every path that the server itself lists, and those that are known."""
    connection = http.client.HTTPConnection(*place, timeout=30)
    connection.request("GET", "/openapi.json", headers={"Authorization": f"Bearer {API_KEY}"})
    listed = json.loads(connection.getresponse().read())["paths"]
    connection.close()
    assert len(listed) > 10
    return sorted({re.sub(r"{\w+}", "x", path) for path in listed} | set(KNOWN))


def opened(place: tuple[str, int], paths: Iterable[str]) -> Iterator[str]:
    """Each request that is answered with anything but 401 though it has no right key."""
    for path in paths:
        for method in METHODS:
            for key in (None, "wrong", API_KEY[:-1], API_KEY + "x"):
                status = ask(place, method, path, key)
                if status != 401 and (method, path) not in OPEN:
                    yield f"{method} {path} with key {key}: {status}"


def test_every_route_wants_the_key(sandbox: Sandbox) -> None:
    cluster = serve(with_secrets(sandbox))
    with attack("P29", "every route and method: no key, a wrong one, one too short, one too long") as measured:
        with tunnel(cluster) as url:
            parts = urllib.parse.urlsplit(url)
            place = (str(parts.hostname), int(parts.port or 0))
            paths = routes(place)
            assert list(opened(place, paths)) == []
            assert [ask(place, "GET", path, None) for path in ("/health", "/ping")] == [200, 200]
            assert ask(place, "GET", "/v1/models", API_KEY) == 200
        tried = len(paths) * len(METHODS) * 4
        measured.figure = f"{tried} requests to {len(paths)} paths: 401 on all but GET and HEAD of /health and /ping"


def test_what_listens(sandbox: Sandbox) -> None:
    """Scanned from a third machine; the head's list of listening sockets must have the same."""
    cluster = serve(with_secrets(sandbox))
    ours = Ports()
    node_to_node = {ours.gcs, ours.node_manager, ours.object_manager, ours.dashboard_agent, ours.dashboard_agent_grpc}
    node_to_node |= {ours.runtime_env_agent, ours.client_server, *range(ours.worker_min, ours.worker_max + 1)}
    # On the head: the roll, which shows nothing before both ends have proved themselves.
    node_to_node |= {ours.nodes}
    with attack("P29", "scan of all 65,535 ports of both hosts from a third machine, while serving") as measured:
        counts: list[str] = []
        answered: list[str] = []
        for host, address in addresses(cluster).items():
            found = {int(port) for port in elsewhere(cluster, SCAN, address).split()}
            sockets = cluster.on(host, "ss", "-Hltnp", root=True).splitlines()
            named = {port_of(line): line for line in sockets}
            assert 22 in found
            strange = found - node_to_node - {22}
            # vLLM's own between its ranks are chosen again at each start: known by who listens.
            strange = {port for port in strange if not re.search(r"VLLM::|Ray|EngineCore", named.get(port, ""))}
            assert strange == set(), [named.get(port, port) for port in strange]
            assert not found & {ours.api, ours.dashboard}
            answered += speaking(address, found - {22})
            counts.append(f"{host} {len(found) - 1}")
        assert answered == []
        measured.figure = f"open beside sshd: {', '.join(counts)}, all Ray's, vLLM's or the roll's; none answers HTTP"


def port_of(line: str) -> int:
    """The local port of a line of `ss`."""
    return int(line.split()[3].rpartition(":")[2])


def speaking(address: str, ports: set[int]) -> list[str]:
    """The ports and paths that give a client without a key or token anything by HTTP."""

    def given(one: tuple[int, str]) -> str:
        connection = http.client.HTTPConnection(address, one[0], timeout=3)
        try:
            connection.request("GET", one[1])
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return ""  # it speaks something else, or nothing to us
        finally:
            connection.close()
        return f"{address}:{one[0]}{one[1]}: {status}" if status < 400 else ""

    with ThreadPoolExecutor(32) as pool:
        return list(filter(None, pool.map(given, ((port, path) for port in ports for path in ASKED))))


def test_exposed_on_the_cluster_address(sandbox: Sandbox) -> None:
    cluster = serve(with_secrets(sandbox), "--expose")
    with attack("P29", "the same with --expose, from another machine") as measured:
        place = (addresses(cluster)["gpu1"], Ports().api)
        paths = routes(place)
        assert list(opened(place, paths)) == []
        assert ask(place, "GET", "/v1/models", API_KEY) == 200
        measured.figure = f"{len(paths) * len(METHODS) * 4} requests: 401 on all but /health and /ping"
