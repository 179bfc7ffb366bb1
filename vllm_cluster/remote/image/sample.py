"""Prints, again and again, what a node has under load: its processors, memory, links, ranks, GPUs, vLLM's counters.

Arguments: the seconds between two samples, and the folder of the node's state. It stays resident, since a start of
nvidia-smi costs 50 ms of a processor and more; NVML is asked instead. Of vLLM's metrics only `NAMES` are passed on:
all of them are 57 kB.
"""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import ipaddress
import json
import os
import re
import socket
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# The second sample comes soon, so that rates are known.
SOON = 0.5
ANSWER_SECONDS = 5.0
MAX_METRICS = 8 << 20
MAX_TAIL = 64 << 10
MAX_STATUS = 256 << 10
RANK = "ray::RayWorker"
NAMES = (
    "num_requests_running|num_requests_waiting|kv_cache_usage_perc|prefix_cache_(?:queries|hits)_total"
    "|(?:prompt|generation)_tokens_total|num_preemptions_total|request_success_total"
    "|(?:time_to_first_token|inter_token_latency)_seconds_bucket"
)
LINES = re.compile(rf"^vllm:(?:{NAMES})(?:\{{[^\n]*)? \S+$", re.MULTILINE)
ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (asked at loopback when it listens everywhere)
# nvmlTemperatureSensors_t: the die of the GPU.
DIE = 0
# sock_diag(7): a request for the TCP connections that are established, each with its tcp_info, and what answers it.
NETLINK, SOCK_DIAG, BY_FAMILY, REQUEST_DUMP, ESTABLISHED, INFO = 16, 4, 20, 0x301, 1 << 1, 2
DIAG_REQUEST, DIAG_MESSAGE, ATTRIBUTE = struct.Struct("=IHHIIBBBxI48x"), struct.Struct("=IH"), struct.Struct("=HH")
END_OF_DUMP = (2, 3)  # an error, and the end
# Where the other end's address is in inet_diag_msg, and where the attributes begin.
PEER, ATTRIBUTES, MIN_RTT = 16 + 24, 16 + 72, struct.Struct("=148xI")
NEVER = 0xFFFFFFFF
NAME_BYTES = 96


class _Use(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Gpus:
    """The GPUs of this container, by the driver's own library; `error` is why they cannot be asked."""

    def __init__(self) -> None:
        self.error = ""
        self._handles: list[ctypes.c_void_p] = []
        try:
            self._nvml = ctypes.CDLL("libnvidia-ml.so.1")
            self._ask("nvmlInit_v2")
            number = ctypes.c_uint()
            self._ask("nvmlDeviceGetCount_v2", ctypes.byref(number))
            for index in range(number.value):
                handle = ctypes.c_void_p()
                self._ask("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
                self._handles.append(handle)
        except (OSError, AttributeError) as error:
            self.error = str(error)

    def _ask(self, call: str, *arguments: Any) -> None:
        if code := getattr(self._nvml, call)(*arguments):
            self._nvml.nvmlErrorString.restype = ctypes.c_char_p
            raise OSError(f"{call}: {self._nvml.nvmlErrorString(code).decode()}")

    def _number(self, call: str, handle: ctypes.c_void_p, *arguments: Any) -> int | None:
        value = ctypes.c_uint()
        with contextlib.suppress(OSError, AttributeError):  # a virtual GPU lacks some of it
            self._ask(call, handle, *arguments, ctypes.byref(value))
            return value.value
        return None

    def read(self) -> list[dict[str, Any]]:
        """Each GPU now; what the driver does not report is None."""
        return [self._read(index, handle) for index, handle in enumerate(self._handles)]

    def _read(self, index: int, handle: ctypes.c_void_p) -> dict[str, Any]:
        name, use, memory = ctypes.create_string_buffer(NAME_BYTES), _Use(), _Memory()
        found: dict[str, Any] = {"index": index, "name": "", "error": ""}
        try:
            self._ask("nvmlDeviceGetName", handle, name, ctypes.c_uint(NAME_BYTES))
            found["name"] = name.value.decode("utf-8", "replace")
            self._ask("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
        except OSError as error:  # it has fallen off the bus
            found["error"] = str(error)
        with contextlib.suppress(OSError, AttributeError):  # a slice of a GPU has no use of its own
            self._ask("nvmlDeviceGetUtilizationRates", handle, ctypes.byref(use))
            found["use_percent"] = use.gpu
        power = self._number("nvmlDeviceGetPowerUsage", handle)
        limit = self._number("nvmlDeviceGetEnforcedPowerLimit", handle)
        return {
            "use_percent": None,
            **found,
            "memory_used_bytes": memory.used if memory.total else None,
            "memory_total_bytes": memory.total or None,
            "power_watts": None if power is None else power / 1000,
            "power_limit_watts": None if limit is None else limit / 1000,
            "temperature_celsius": self._number("nvmlDeviceGetTemperature", handle, ctypes.c_uint(DIE)),
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
            self._connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {_key()}"})
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


def _key() -> str:
    """The API key, which may be rotated meanwhile; then others are behind it."""
    words = Path(os.environ["VCLUSTER_API_KEY_FILE"]).read_text().split()
    return words[1] if words[0] == "#vcluster-keys" else words[0]


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


def round_trips(peers: set[str]) -> dict[str, float]:
    """The shortest round trip to each of these addresses in ms, as the kernel knows it from Ray's connections."""
    found: dict[str, float] = {}
    with contextlib.suppress(OSError, struct.error), socket.socket(NETLINK, socket.SOCK_RAW, SOCK_DIAG) as kernel:
        kernel.settimeout(ANSWER_SECONDS)
        for family in (socket.AF_INET, socket.AF_INET6) if peers else ():
            words = (BY_FAMILY, REQUEST_DUMP, 0, 0, family, socket.IPPROTO_TCP, 1 << (INFO - 1), ESTABLISHED)
            kernel.send(DIAG_REQUEST.pack(DIAG_REQUEST.size, *words))
            for message in _dump(kernel):
                raw = message[PEER : PEER + (4 if family == socket.AF_INET else 16)]
                address = ipaddress.ip_address(raw)
                peer = str(getattr(address, "ipv4_mapped", None) or address)
                if peer in peers and (shortest := _min_rtt(message)) is not None:
                    found[peer] = min(found.get(peer, shortest), shortest)
    return found


def _dump(kernel: socket.socket) -> Iterator[bytes]:
    """The messages of an answer."""
    while True:
        data = kernel.recv(1 << 16)
        while data:
            size, kind = DIAG_MESSAGE.unpack_from(data)
            if kind in END_OF_DUMP or size < DIAG_MESSAGE.size:
                return
            yield data[:size]
            data = data[(size + 3) & ~3 :]


def _min_rtt(message: bytes) -> float | None:
    """The shortest round trip of a connection in the last minutes, in ms; None where it has none."""
    at = ATTRIBUTES
    while at + ATTRIBUTE.size <= len(message):
        size, name = ATTRIBUTE.unpack_from(message, at)
        if name == INFO and size >= ATTRIBUTE.size + MIN_RTT.size:
            (microseconds,) = MIN_RTT.unpack_from(message, at + ATTRIBUTE.size)
            return None if microseconds in (0, NEVER) else microseconds / 1000
        at += max(ATTRIBUTE.size, (size + 3) & ~3)
    return None


def peers(status: str) -> set[str]:
    """The addresses of Ray's other nodes, by what this node has written; the head alone knows them."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        nodes = {str(node["address"]) for node in json.loads(status)["group"]["nodes"] if node["alive"]}
        return nodes - {os.environ.get("VLLM_HOST_IP", "")}
    return set()


def ranks() -> int:
    """How many ranks of a model run in this container."""
    names = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            names.append(path.read_text())
    return sum(name.startswith(RANK) for name in names)


def seconds_before(state: Path, model: str) -> float | None:
    """How long the last start of this model took until it was ready."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        with (state / "results.jsonl").open("rb") as file:
            begin = max(0, file.seek(0, os.SEEK_END) - MAX_TAIL)
            file.seek(begin)
            # The first line may be the end of one.
            lines = file.read().splitlines()[bool(begin) :]
        rows = [json.loads(line) for line in lines]
        return next((row["seconds"] for row in rows[::-1] if (row["result"], row["name"]) == ("ready", model)), None)
    return None


def sample(state: Path, gpus: Gpus, metrics: Metrics) -> dict[str, Any]:
    """Everything now."""
    found: dict[str, Any] = {"status": "", "metrics": "", "metrics_error": "", "seconds_before": None}
    with contextlib.suppress(OSError):
        found["status"] = (state / "status.json").read_bytes()[:MAX_STATUS].decode("utf-8", "replace")
    with contextlib.suppress(ValueError, KeyError, TypeError):
        serve = json.loads(found["status"])["serve"]
        if serve["phase"] in ("ready", "hung"):
            try:
                found["metrics"] = metrics.read(serve["host"], int(serve["port"]))
            except (OSError, http.client.HTTPException, KeyError, IndexError) as error:
                found["metrics_error"] = str(error) or type(error).__name__
        else:
            found["seconds_before"] = seconds_before(state, serve["name"])
    return {
        "v": 1,
        "time": time.time(),
        "boot": time.clock_gettime(time.CLOCK_BOOTTIME),
        "processors": processors(),
        "cores": os.cpu_count() or 1,
        "memory": memory(),
        "network": network(),
        "round_trips": round_trips(peers(found["status"])),
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
    main(float(sys.argv[1]), Path(sys.argv[2]))
