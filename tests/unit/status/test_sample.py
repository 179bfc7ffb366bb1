"""The program that samples a node: what it passes on of a real /metrics, GPUs by a driver that is made up, its pace."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.paths import FIXTURES
from vllm_cluster.serving.on_host import vllm_load
from vllm_cluster.serving.status.counters import parse_counters
from vllm_cluster.serving.status.load import NodeSample, parse_sample
from vllm_cluster.serving.status.on_host import sample as program

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


# fault: wire/keys.py: return next(iter(valid_keys(read_key_file(path))), b"") → return b" ".join(path.read_bytes().split()[1:2])
@pytest.mark.parametrize("text", ["", "#vcluster-keys\n", "#vcluster-keys\nsk-to"])
def test_while_the_key_is_replaced_no_part_of_one_is_shown(
    text: str, server: Server, key: Path, tmp_path: Path
) -> None:
    """What read the file by itself ended in an IndexError, or sent the beginning of a key."""
    key.write_text(text)
    server.keys = ["sk-to"]
    write(tmp_path, "ready", server.port)
    api = program.Metrics()
    assert taken(tmp_path, api).metrics_error == "/metrics ended with HTTP 401"
    api.close()
    assert vllm_load.requests("127.0.0.1", server.port, 5.0) == {}
    key.write_text("#vcluster-keys\nsk-to id\n")
    assert vllm_load.requests("127.0.0.1", server.port, 5.0)[""] >= 0


# fault: serving/status/on_host/sample.py: for one in status.get("replicas") or [serve]): → for one in [serve]):
@pytest.mark.parametrize(("phases", "asked"), [(("failed", "ready"), True), (("loading", "failed"), False)])
def test_one_replica_that_is_ready_is_enough(
    server: Server, key: Path, tmp_path: Path, phases: tuple[str, str], asked: bool
) -> None:
    rows = [{"phase": phase, "host": "0.0.0.0", "port": server.port, "name": "m"} for phase in phases]
    (tmp_path / "status.json").write_text(json.dumps({"v": 1, "serve": rows[0], "replicas": rows}))
    api = program.Metrics()
    assert bool(taken(tmp_path, api).metrics) is asked
    api.close()


# fault: serving/status/on_host/sample.py: MAX_STATUS = 3 << 19 → MAX_STATUS = 256 << 10
def test_a_status_of_many_replicas_with_failures_is_whole(tmp_path: Path) -> None:
    text = json.dumps({"serve": None, "replicas": [{"lines": ["x" * 1000] * 40}] * 32})
    assert len(text) > 1 << 20
    (tmp_path / "status.json").write_text(text)
    assert taken(tmp_path).status == text


def test_a_node_without_a_status_or_with_a_broken_one(tmp_path: Path) -> None:
    assert taken(tmp_path).status == ""
    for text in ("{", "[]", '{"serve": 7}', '{"serve": null}', '{"serve": {"phase": "ready"}}'):
        (tmp_path / "status.json").write_text(text)
        assert taken(tmp_path).status == text


@pytest.mark.parametrize(
    ("names", "count"),
    [
        (["ray::RayWorkerP", "ray::RayWorkerP", "VLLM::EngineCor"], 2),
        (["ray::IDLE", "VLLM::EngineCor", "vllm"], 0),  # the engine of a model whose ranks are elsewhere
        (["VLLM::EngineCor", "VLLM::Worker_TP", "VLLM::Worker_TP"], 2),
        (["VLLM::EngineCor", "VLLM::EngineCor", "vllm"], 2),  # two replicas with a GPU each
        (["vllm", "python3"], 0),
    ],
)
def test_ranks_are_counted_with_ray_and_without(names: list[str], count: int) -> None:
    assert program.count_ranks(names) == count


def test_the_host(tmp_path: Path) -> None:
    found = taken(tmp_path)
    assert found.processors
    assert found.memory
    assert 0 < found.processors[0] <= found.processors[1]
    assert 0 < found.memory[0] < found.memory[1]
    assert found.cores >= 1
    assert abs(found.time - time.time()) < 60


class NVMLError(Exception):
    """As the binding raises it."""


class Nvml:
    """NVIDIA's binding with two GPUs: the first is a virtual one, the second has fallen off the bus."""

    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU = 0

    def nvmlInit(self) -> None:
        """Nothing to begin."""

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> str:
        return str(self._answer(handle, "NVIDIA H100 80GB HBM3"))

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return self._answer(handle, SimpleNamespace(total=80 << 30, free=10 << 30, used=70 << 30))

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return self._answer(handle, SimpleNamespace(gpu=97, memory=50))

    def nvmlDeviceGetPowerUsage(self, handle: int) -> Any:
        return self._answer(handle, 512_250)

    def nvmlDeviceGetEnforcedPowerLimit(self, _handle: int) -> int:
        raise NVMLError("Not Supported")

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> Any:
        assert sensor == 0
        return self._answer(handle, 61)

    def _answer(self, handle: int, value: object) -> object:
        if handle == 1:
            raise NVMLError("GPU is lost")
        return value


def test_gpus_by_the_drivers_own_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(program, "load_nvml", Nvml)
    found = taken(tmp_path)
    assert found.gpu_error == ""
    first, lost = found.gpus
    assert (first.name, first.use_percent, first.memory_used_bytes) == ("NVIDIA H100 80GB HBM3", 97, 70 << 30)
    assert (first.power_watts, first.power_limit_watts, first.temperature_celsius) == (512.25, None, 61)
    assert (lost.index, lost.error, lost.use_percent) == (1, "GPU is lost", None)


def test_the_binding_is_the_file_of_the_images_vllm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its package is not imported."""
    (tmp_path / "vllm" / "third_party").mkdir(parents=True)
    (tmp_path / "vllm" / "__init__.py").write_text("raise RuntimeError")
    (tmp_path / "vllm" / "third_party" / "pynvml.py").write_text("def nvmlInit():\n    raise OSError('no driver')\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = taken(tmp_path)
    assert (found.gpus, found.gpu_error) == ((), "no driver")


def test_a_node_without_the_binding_names_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(_name: str) -> None:
        return None

    monkeypatch.setattr(program, "find_spec", missing)
    found = taken(tmp_path)
    assert (found.gpus, found.gpu_error) == ((), "the image's vLLM has no pynvml")


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
