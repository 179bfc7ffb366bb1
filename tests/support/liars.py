"""One verb against 64 hosts that all answer as much as they can, in a process of its own: `python -m` this module.

The words are what is large, then the line as it is typed; it prints the exit code, the most memory that the process
took in MB, its seconds of a processor, and what it wrote.
"""

from __future__ import annotations

import functools
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.support import in_process
from tests.support.canned_docker import CannedStream, answer, archive_of
from tests.support.paths import ROOT
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.hosts.runtime import SYSTEM
from vllm_cluster.kernel.transport import fabric
from vllm_cluster.kernel.transport.base import MAX_OUTPUT, Result, Stream, Target
from vllm_cluster.wire.reading import MAX_BYTES

HOSTS, PIECE = 64, 32 << 10
MAX_SPACE = 5 << 30
IMAGE, IMAGE_ID = "vllm/vllm-openai:v0.33.0", "sha256:" + "a" * 64
DETAILS = "\n@@smi" + (ROOT / "tests/fixtures/facts/sandbox-host.txt").read_text().partition("\n@@smi")[2]
# More than the values that a document may have would be refused before any is kept.
VALUES = 199_000
WIDE = "\N{GRINNING FACE}"


def rows(row: str, most: int, number: int = 65_536) -> str:
    """The same row again and again, in so many bytes."""
    return row * min(number, most // len(row.encode()))


def listed(row: dict[str, object] | str, most: int = MAX_BYTES) -> bytes:
    """A JSON list of one row again and again, as long as Docker's may be."""
    text = json.dumps(row, separators=(",", ":"))
    values = 1 + sum(map(text.count, "[{,"))
    return ("[" + ",".join([text] * min((most - 2) // (len(text) + 1), VALUES // values)) + "]").encode()


def numbered(row: Callable[[int], str], most: int) -> str:
    """Rows that differ from each other."""
    found, size = [], 0
    while size < most - 100 and len(found) < 65_536:
        found.append(row(len(found)))
        size += len(found[-1].encode())
    return "".join(found)


# Each section of the facts at its worst: rows of nothing take the most for each byte that is sent.
ROOM = MAX_OUTPUT - 20_000
FACTS: dict[str, Callable[[], dict[str, str]]] = {
    "ports": lambda: {"listening": "\n".join(f"{port:04X}" for port in range(65_536))},
    "gids": lambda: {"gids": rows("||||\n", ROOM)},
    "hcas": lambda: {"hcas": rows("|||||\n", ROOM)},
    "adapters": lambda: {"hcas": numbered(lambda n: f"m{n}|1|4: ACTIVE|Ethernet|{n}|a,b,c,d|e,f|{n}|0|{n}\n", ROOM)},
    "devices": lambda: {"rdma": numbered(lambda n: f"{n:x}\n", ROOM)},
    "paths": lambda: {"missing": numbered(lambda n: f"{n:x}\n", ROOM)},
    "disks": lambda: {"disks": numbered(lambda n: f"{n:x}|{n}\n", ROOM)},
    "routes": lambda: {"routes": numbered(lambda n: f"{n:x} {n}\n", ROOM)},
    "nics": lambda: {"nics": listed({"ifname": ""}, ROOM).decode()},
    "addresses": lambda: {"nics": listed({"ifname": "a", "addr_info": [{"local": "10.9.9.9", "prefixlen": 8}] * 9}, ROOM).decode()},
    "nested": lambda: {"nics": "[" + rows("[],", ROOM, 10**6) + "0]"},
    "cdi": lambda: {"dockercdi": "[]\n" + listed({"ID": "x"}, ROOM).decode()},
    "processes": lambda: {"gpuprocesses": numbered(lambda n: f"GPU-{n}|{n}|||,\n", ROOM)},
    "wide": lambda: {"missing": rows(WIDE * 1000 + "\n", ROOM)},
    "smi": lambda: {"smi": "<a>" + rows("<b/>", ROOM, 10**6) + "</a>"},
}  # fmt: skip
MODELS = rows("hub|||||\n", ROOM, 10**6)
LABELS = {"io.vcluster.cluster": "lab"}
CONTAINER = {"Id": "", "State": "", "ImageID": ""}
LISTS: dict[str, Callable[[], dict[str, bytes]]] = {
    "containers": lambda: {"/containers/json": listed(CONTAINER)},
    "own containers": lambda: {"/containers/json": listed({**CONTAINER, "Labels": LABELS})},
    "images": lambda: {"/images/json": listed({"Id": ""})},
    "names": lambda: {"/images/json": listed({"Id": "", "RepoTags": [""] * 500})},
    "wide names": lambda: {"/images/json": json.dumps([{"Id": WIDE * (MAX_BYTES // 4 - 20)}], ensure_ascii=False).encode()},
    "image labels": lambda: {"/images/json": json.dumps([{"Id": f"{n}", "Labels": {f"{n}.{m}": "" for m in range(90)}} for n in range(2000)]).encode()},
    "volumes": lambda: {"/volumes?": json.dumps({"Volumes": [{"Name": f"{n}", "Labels": {}} for n in range(48_000)]}).encode()},
    "image": lambda: {"/images/": json.dumps({"Id": IMAGE_ID, "RootFS": {"Layers": [""] * 198_000}}).encode()},
    "variables": lambda: {"/images/": json.dumps({"Id": IMAGE_ID, "Config": {"Env": [""] * 198_000}}).encode()},
    "record": lambda: {"/archive": archive_of(json.dumps({"hosts": WIDE * 700_000}, ensure_ascii=False).encode())},
    "inspect": lambda: {"/containers/vcluster-lab/json": json.dumps({"State": {"Status": "running", "StartedAt": "2026-11-21T02:00:00Z"}, "Id": "n", "Name": [[]] * 190_000}).encode()},
}  # fmt: skip
KINDS = ("none", *FACTS, *LISTS, "models")


def facts(number: int, given: dict[str, str], peers: str) -> bytes:
    """What the fact script prints on a host, with these sections."""
    at = f"10.0.{number // 200}.{number % 200 + 1}"
    nic = {"ifname": "eth0", "mtu": 9000, "operstate": "UP", "addr_info": [{"local": at, "prefixlen": 16}]}
    nics = given.get("nics", "[]").removeprefix("[")
    server = {"Version": "29.0.0", "ApiVersion": "1.47", "Arch": "amd64"}
    info = {"Root": "/var/lib/docker", "ID": f"d{number}", "Runtimes": {"nvidia": {}, "runc": {}}}
    parts = {
        "machine": f"{number:032x}",
        "hostname": f"gpu{number}",
        "clock": f"{time.time():.0f}",
        "memory": str(1 << 40),
        "gpus": "\n".join(f"{n}, GPU-{number}-{n}, NVIDIA H200, 143771, 0, 580.1" for n in range(8)),
        "routes": "\n".join(f"{peer} eth0" for peer in peers.split(",")),
        "docker": json.dumps(server),
        "dockerinfo": json.dumps(info),
        "disks": f"/var/lib/docker|{1 << 40}\n/models|{1 << 40}\n",
        **given,
        "nics": f"[{json.dumps(nic)}{',' if nics != ']' else ''}{nics}",
        "end": "",
    }
    text = "".join(f"\n@@{name}\n{body}\n" for name, body in parts.items())
    return (DETAILS + text).encode()[:MAX_OUTPUT]


@functools.cache
def large(kind: str) -> Any:
    """What is large, once for all hosts: what they hold is not to be measured."""
    return {**FACTS, **LISTS}.get(kind, dict)()


@functools.cache
def whole_answer(body: bytes) -> bytes:
    """A whole HTTP answer, once for all hosts."""
    return answer(body)


class Liar:
    """A host: its facts, and its Docker's answers."""

    def __init__(self, target: Target, kind: str) -> None:
        self._kind = kind
        self.host, self.round_trips = target.name, 0
        number = int(target.name.removeprefix("gpu"))
        self._number = number
        labels = {**LABELS, "io.vcluster.id": "0123456789abcdef", "io.vcluster.role": "head"}
        node = {**CONTAINER, "Id": "n", "Names": ["/vcluster-lab"], "State": "running", "Labels": labels}
        self._usual = {
            "/images/json": listed({"Id": IMAGE_ID, "RepoTags": [IMAGE]}, 200),
            "/volumes?": b'{"Volumes": []}',
            "/containers/json": json.dumps([node] if kind in ("record", "inspect") else []).encode(),
        }

    def run(self, argv: Sequence[str], _deadline: Deadline, *, stdin: bytes = b"", most: int = MAX_OUTPUT) -> Result:
        if b"models--" in stdin and b"section nics" not in stdin:
            return Result(0, ((MODELS if self._kind == "models" else "") + "whole\n").encode()[:most], b"")
        if b"section nics" not in stdin:
            return Result(0, b"", b"")
        return Result(0, facts(self._number, large(self._kind) if self._kind in FACTS else {}, argv[3])[:most], b"")

    def open_stream(self, _argv: Sequence[str], _deadline: Deadline) -> Stream:
        return CannedStream(self._answers)

    def _answers(self, line: str) -> Iterator[bytes]:
        given = {**self._usual, **(large(self._kind) if self._kind in LISTS else {})}
        found = next((body for part, body in given.items() if part in line), None)
        whole = memoryview(answer(b'{"message":"none"}', 404) if found is None else whole_answer(found))
        yield from (whole[at : at + PIECE].tobytes() for at in range(0, len(whole), PIECE))

    def connect(self, _deadline: Deadline) -> None: ...
    def require_alive(self) -> None: ...
    def close(self) -> None: ...


def _process(argv: Sequence[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.CompletedProcess(argv, 0, f"user me\nhostname {argv[-1]}\nport 22\n".encode(), b"")


def peak() -> float:
    """The most memory that this process has taken, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def main(kind: str, *line: str) -> None:
    """Run the line, and print what it took."""
    assert fabric  # as real hosts are reached
    hosts = {f"gpu{n}": {"address": f"10.0.{n // 200}.{n % 200 + 1}"} for n in range(HOSTS)}
    words = {"version": 1, "cluster": "lab", "image": IMAGE, "model_cache": "/models", "hosts": hosts}
    runtime = {"processes": _process, "connect": lambda target, *_: Liar(target, kind)}
    # Rather than to take what the machine has.
    resource.setrlimit(resource.RLIMIT_AS, (MAX_SPACE, MAX_SPACE))
    with tempfile.TemporaryDirectory() as name, patch.dict(vars(SYSTEM), runtime):
        folder = Path(name)
        (folder / "inventory.yaml").write_text(json.dumps(words))
        done = in_process.run(*line, cwd=folder, XDG_CACHE_HOME=str(folder / "cache"), HOME=name)
    took = {"code": done.returncode, "mb": round(peak()), "seconds": round(time.process_time(), 1)}
    print(json.dumps({**took, "out": done.stdout[-2000:], "err": done.stderr[-4000:]}))


if __name__ == "__main__":
    main(*sys.argv[1:])
