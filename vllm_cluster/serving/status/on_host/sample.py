"""Prints, again and again, what a node has under load: its processors, memory, links, ranks, GPUs, vLLM's counters.

Arguments: the seconds between two samples, and the folder of the node's state. It stays resident, since a start of
nvidia-smi costs 50 ms of a processor and more; NVML is asked instead. Of vLLM's metrics only `NAMES` are passed on:
all of them are 57 kB.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import sys
import time
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from vllm_cluster.wire.keys import key_to_use
from vllm_cluster.wire.listeners import connect_to_own_only
from vllm_cluster.wire.metrics import MAX_METRICS

# The second sample comes soon, so that rates are known.
SOON = 0.5
ANSWER_SECONDS = 5.0
# As `wire.status` has it: each of several replicas has its failures, with their lines.
MAX_STATUS = 3 << 19
# Processes that run a rank, as the kernel cuts their names; a lone GPU's rank runs within its engine.
RANKS, ENGINE = ("ray::RayWorker", "VLLM::Worker"), "VLLM::EngineCor"
NAMES = (
    "num_requests_running|num_requests_waiting|kv_cache_usage_perc|prefix_cache_(?:queries|hits)_total"
    "|(?:prompt|generation)_tokens_total|num_preemptions_total|request_success_total"
    "|(?:time_to_first_token|inter_token_latency)_seconds_bucket"
)
LINES = re.compile(rf"^vllm:(?:{NAMES})(?:\{{[^\n]*)? \S+$", re.MULTILINE)
ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (asked at loopback when it listens everywhere)


def load_nvml() -> Any:
    """Load NVIDIA's binding, of which vLLM has a copy: from its file, since the whole package takes seconds.

    Raises:
        ImportError: there is no such file.
    """
    package = find_spec("vllm")
    path = Path(package.origin).parent / "third_party" / "pynvml.py" if package and package.origin else None
    spec = spec_from_file_location("pynvml", path) if path and path.exists() else None
    if spec is None or spec.loader is None:
        raise ImportError("the image's vLLM has no pynvml")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Gpus:
    """The GPUs of this container, by the driver's own library; `error` is why they cannot be asked."""

    def __init__(self) -> None:
        self.error = ""
        self._handles: list[Any] = []
        try:
            self._nvml = load_nvml()
            self._nvml.nvmlInit()
            count = self._nvml.nvmlDeviceGetCount()
            self._handles = [self._nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        except Exception as error:
            self.error = str(error)

    def _ask(self, call: str, *arguments: object) -> Any:
        """Ask the driver; None where it does not report that, as for a virtual GPU or a slice of one."""
        with contextlib.suppress(self._nvml.NVMLError):
            return getattr(self._nvml, call)(*arguments)
        return None

    def read(self) -> list[dict[str, object]]:
        """Each GPU now; what the driver does not report is None."""
        return [self._read(index, handle) for index, handle in enumerate(self._handles)]

    def _read(self, index: int, handle: Any) -> dict[str, object]:
        name = error = ""
        try:
            name = self._nvml.nvmlDeviceGetName(handle)
        except self._nvml.NVMLError as lost:  # it has fallen off the bus
            error = str(lost)
        use, memory = self._ask("nvmlDeviceGetUtilizationRates", handle), self._ask("nvmlDeviceGetMemoryInfo", handle)
        power = self._ask("nvmlDeviceGetPowerUsage", handle)
        limit = self._ask("nvmlDeviceGetEnforcedPowerLimit", handle)
        return {
            "index": index,
            "name": name,
            "error": error,
            "use_percent": use and use.gpu,
            "memory_used_bytes": memory and memory.used,
            "memory_total_bytes": memory and memory.total,
            "power_watts": None if power is None else power / 1000,
            "power_limit_watts": None if limit is None else limit / 1000,
            "temperature_celsius": self._ask("nvmlDeviceGetTemperature", handle, self._nvml.NVML_TEMPERATURE_GPU),
        }


class Metrics:
    """vLLM's metrics on this host, over a connection that is kept."""

    def __init__(self) -> None:
        self._connection: http.client.HTTPConnection | None = None
        self._where: tuple[str, int] | None = None

    def read(self, host: str, port: int) -> str:
        """The lines that are of interest.

        Raises:
            OSError, HTTPException: it does not answer.
        """
        if self._where != (host, port) or self._connection is None:
            self.close()
            self._where = host, port
            self._connection = http.client.HTTPConnection(ANY.get(host, host), port, timeout=ANSWER_SECONDS)
        try:
            # At each question: it may be rotated meanwhile.
            key = key_to_use(Path(os.environ["VCLUSTER_API_KEY_FILE"]))
            self._connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {key}"})
            answer = self._connection.getresponse()
            text = answer.read(MAX_METRICS).decode("utf-8", "replace")
        except BaseException:
            self.close()
            raise
        if answer.status != http.client.OK:
            raise OSError(f"/metrics ended with HTTP {answer.status}")
        return "\n".join(LINES.findall(text))

    def close(self) -> None:
        """End the connection; the next question opens another one."""
        if self._connection:
            self._connection.close()
        self._connection = None


def processors() -> tuple[int, int] | None:
    """How long the host's processors were busy since it started, and the whole time, in ticks."""
    try:
        ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def memory() -> tuple[int, int] | None:
    """The host's memory in use, and all of it."""
    try:
        rows = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        total, free = (int(rows[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    except (OSError, ValueError, KeyError):
        return None
    return total - free, total


def network() -> tuple[int, int] | None:
    """The bytes that the cluster's interface has received and sent; what RDMA carries passes it by."""
    try:
        rows = dict(line.split(":", 1) for line in Path("/proc/net/dev").read_text().splitlines()[2:])
        counters = {name.strip(): row.split() for name, row in rows.items()}[os.environ["GLOO_SOCKET_IFNAME"]]
        return int(counters[0]), int(counters[8])
    except (OSError, ValueError, KeyError, IndexError):
        return None


def ranks() -> int:
    """How many ranks of a model run in this container."""
    names = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            names.append(path.read_text())
    return count_ranks(names)


def count_ranks(names: list[str]) -> int:
    """How many of these processes, by the names that the kernel has, run a rank."""
    own = sum(name.startswith(RANKS) for name in names)
    # Of such an engine the ranks are elsewhere.
    apart = any(name.startswith("ray::") for name in names)
    return own if own or apart else sum(name.startswith(ENGINE) for name in names)


def sample(state: Path, gpus: Gpus, metrics: Metrics) -> dict[str, object]:
    """Everything now."""
    found = {"status": "", "metrics": "", "metrics_error": ""}
    with contextlib.suppress(OSError):
        found["status"] = (state / "status.json").read_bytes()[: MAX_STATUS + 1].decode("utf-8", "replace")
    with contextlib.suppress(ValueError, KeyError, TypeError):
        status = json.loads(found["status"])
        serve = status["serve"]
        if any(one["phase"] in ("ready", "hung") for one in status.get("replicas") or [serve]):
            try:
                found["metrics"] = metrics.read(serve["host"], int(serve["port"]))
            except (OSError, http.client.HTTPException, KeyError) as error:
                found["metrics_error"] = str(error) or type(error).__name__
    return {
        "v": 1,
        "time": time.time(),
        "boot": time.clock_gettime(time.CLOCK_BOOTTIME),
        "processors": processors(),
        "cores": os.cpu_count() or 1,
        "memory": memory(),
        "network": network(),
        "ranks": ranks(),
        "gpus": gpus.read(),
        "gpu_error": gpus.error,
        **found,
    }


def main(seconds: float, state: Path) -> None:
    """Print samples until the input ends."""
    gpus, metrics, pause = Gpus(), Metrics(), min(SOON, seconds)
    while True:
        began = time.monotonic()
        print(json.dumps(sample(state, gpus, metrics)), flush=True)
        time.sleep(max(0.0, began + pause - time.monotonic()))
        pause = seconds


if __name__ == "__main__":
    connect_to_own_only()
    main(float(sys.argv[1]), Path(sys.argv[2]))
