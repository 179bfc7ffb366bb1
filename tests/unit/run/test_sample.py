"""The program that samples a node: what it passes on of a real /metrics, GPUs by a driver that is made up, its pace."""

from __future__ import annotations

import ctypes
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import FIXTURES
from vllm_cluster.core.counters import parse_counters
from vllm_cluster.core.load import NodeSample, parse_sample
from vllm_cluster.remote.image import sample as program

REAL = (FIXTURES / "metrics" / "vllm-0.32.0.txt").read_bytes()
KEY = "sk-a-key-of-a-test"


class Server:
    """vLLM's /metrics, for those who have the key; `asked` are the connections that came."""

    def __init__(self) -> None:
        self.keys, self.connections = [KEY], set[Any]()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.connections.add(self.client_address)
                good = self.headers["Authorization"] in [f"Bearer {key}" for key in outer.keys]
                body = REAL if good and self.path == "/metrics" else b"no"
                self.send_response(200 if good else 401)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Prints nothing."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.http.server_port


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    made.http.daemon_threads = True
    thread = threading.Thread(target=made.http.serve_forever, args=(0.05,))
    thread.start()
    yield made
    made.http.shutdown()
    thread.join()
    made.http.server_close()


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the key."""
    path = tmp_path / "key"
    path.write_text(KEY)
    monkeypatch.setenv("VCLUSTER_API_KEY_FILE", str(path))
    return path


def write(state: Path, phase: str, port: int) -> None:
    """A status as far as the program reads it."""
    serve = {"phase": phase, "host": "0.0.0.0", "port": port, "name": "m"}
    (state / "status.json").write_text(json.dumps({"v": 1, "serve": serve}))


def taken(state: Path, api: program.Metrics | None = None) -> NodeSample:
    """A sample, over JSON as it travels."""
    row = json.loads(json.dumps(program.sample(state, program.Gpus(), api or program.Metrics())))
    return parse_sample(row)


def test_a_ready_model_has_its_counters_over_one_connection(server: Server, key: Path, tmp_path: Path) -> None:
    write(tmp_path, "ready", server.port)
    api = program.Metrics()
    found = taken(tmp_path, api)
    assert found.metrics_error == ""
    counters = parse_counters(found.metrics, found.boot)
    assert counters.values["generation_tokens_total"] > 0
    key.write_text(f"#vcluster-keys\nsk-another-key 1234\n{KEY} 99999999999\n")
    server.keys = ["sk-another-key"]
    assert taken(tmp_path, api).metrics_error == "", "the key was rotated"
    assert len(server.connections) == 1
    api.close()


def test_a_server_that_does_not_answer_is_reported_and_asked_again(server: Server, key: Path, tmp_path: Path) -> None:
    write(tmp_path, "ready", server.port)
    api = program.Metrics()
    server.keys = []
    assert taken(tmp_path, api).metrics_error == "/metrics ended with HTTP 401"
    server.keys = [KEY]
    assert taken(tmp_path, api).metrics
    api.close()
    write(tmp_path, "ready", 1)
    assert "refused" in taken(tmp_path).metrics_error
    key.unlink()
    assert taken(tmp_path).metrics_error


def test_a_start_has_the_seconds_of_the_last_one(tmp_path: Path) -> None:
    write(tmp_path, "loading", 1)
    assert taken(tmp_path).seconds_before is None
    lines = [("m", "ready", 30.0), ("m", "ready", 70.5), ("m", "failed", None), ("other", "ready", 9.0)]
    rows = [json.dumps({"name": name, "result": result, "seconds": took}) for name, result, took in lines]
    (tmp_path / "results.jsonl").write_text("\n".join(["x" * program.MAX_TAIL, *rows]) + "\n")
    found = taken(tmp_path)
    assert (found.seconds_before, found.metrics, found.metrics_error) == (70.5, "", "")


def test_a_node_without_a_status_or_with_a_broken_one(tmp_path: Path) -> None:
    assert taken(tmp_path).status == ""
    for text in ("{", "[]", '{"serve": 7}', '{"serve": null}', '{"serve": {"phase": "ready"}}'):
        (tmp_path / "status.json").write_text(text)
        assert taken(tmp_path).status == text


def test_the_host(tmp_path: Path) -> None:
    found = taken(tmp_path)
    assert found.processors
    assert found.memory
    assert 0 < found.processors[0] <= found.processors[1]
    assert 0 < found.memory[0] < found.memory[1]
    assert found.cores >= 1
    assert abs(found.time - time.time()) < 60


class Nvml:
    """NVML as its header declares it, with two GPUs; the second has fallen off the bus, the first is a virtual one."""

    def __init__(self, _name: str) -> None:
        self.nvmlErrorString = _String(lambda code: f"error {code}".encode())

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetCount_v2(self, number: Any) -> int:
        number._obj.value = 2
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: ctypes.c_uint, handle: Any) -> int:
        handle._obj.value = 0xA0 + index.value
        return 0

    def nvmlDeviceGetName(self, handle: ctypes.c_void_p, name: Any, size: ctypes.c_uint) -> int:
        assert size.value == len(name)
        if handle.value == 0xA1:
            return 15
        name.value = b"NVIDIA H100 80GB HBM3"
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: ctypes.c_void_p, memory: Any) -> int:
        memory._obj.total, memory._obj.free, memory._obj.used = 80 << 30, 10 << 30, 70 << 30
        return 0

    def nvmlDeviceGetUtilizationRates(self, handle: ctypes.c_void_p, use: Any) -> int:
        use._obj.gpu, use._obj.memory = 97, 50
        return 15 * (handle.value == 0xA1)

    def nvmlDeviceGetPowerUsage(self, handle: ctypes.c_void_p, power: Any) -> int:
        power._obj.value = 512_250
        return 15 * (handle.value == 0xA1)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: ctypes.c_void_p, power: Any) -> int:
        return 3  # not supported

    def nvmlDeviceGetTemperature(self, handle: ctypes.c_void_p, sensor: ctypes.c_uint, degrees: Any) -> int:
        assert sensor.value == 0
        degrees._obj.value = 61
        return 15 * (handle.value == 0xA1)


class _String:
    restype: object = None

    def __init__(self, words: Callable[[int], bytes]) -> None:
        self._words = words

    def __call__(self, code: int) -> bytes:
        return self._words(code)


def test_gpus_by_the_drivers_own_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ctypes, "CDLL", Nvml)
    found = taken(tmp_path)
    assert found.gpu_error == ""
    first, lost = found.gpus
    assert (first.name, first.use_percent, first.memory_used_bytes) == ("NVIDIA H100 80GB HBM3", 97, 70 << 30)
    assert (first.power_watts, first.power_limit_watts, first.temperature_celsius) == (512.25, None, 61)
    assert (lost.index, lost.error, lost.use_percent) == (1, "nvmlDeviceGetName: error 15", None)


def test_a_node_without_the_driver_names_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    found = taken(tmp_path)
    assert (found.gpus, found.gpu_error) == ((), "libnvidia-ml.so.1: cannot open shared object file")


# fault: remote/image/sample.py: if node["alive"] →
def test_a_round_trip_is_read_from_the_kernel_without_a_packet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of connections that are there, over IPv4 and in IPv6's clothes, and to Ray's nodes alone."""
    assert program.round_trips(set()) == {}
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_INET6) as mapped:
        mapped.connect(("::ffff:127.0.0.1", server.getsockname()[1]))
        far, _ = server.accept()
        with far:
            for _ in range(3):
                mapped.sendall(b"x")
                far.recv(1)
            found = program.round_trips({"127.0.0.1", "192.0.2.1"})
    assert found.keys() == {"127.0.0.1"}
    assert 0 < found["127.0.0.1"] < 1000
    monkeypatch.setenv("VLLM_HOST_IP", "10.0.0.1")
    nodes = [{"address": f"10.0.0.{n}", "alive": n < 3} for n in (1, 2, 3)]
    assert program.peers(json.dumps({"group": {"nodes": nodes}})) == {"10.0.0.2"}
    assert program.peers("") == program.peers("{}") == set()


def test_a_kernel_that_does_not_answer_costs_the_figure_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(socket, "socket", refused)
    assert program.round_trips({"10.0.0.2"}) == {}


def test_the_bytes_of_the_clusters_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    before = program.network()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()[:2]) as near:
        near.sendall(bytes(10_000))
        after = program.network()
    assert before is not None
    assert after is not None
    assert all(later >= earlier + 10_000 for earlier, later in zip(before, after, strict=True))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "none0")
    assert program.network() is None
