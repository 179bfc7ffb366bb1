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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.support import in_process
from tests.support.canned_docker import CannedStream, answer, archive_of
from tests.support.paths import ROOT
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.docker.client import DIAL
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


Large = dict[str, str | bytes]


def rows(row: str, most: int, number: int = 65_536) -> str:
    """The same row again and again, in so many bytes."""
    return row * min(number, most // len(row.encode()))


def listed(row: Mapping[str, object], most: int = MAX_BYTES) -> bytes:
    """A JSON list of one row again and again, as long as Docker's may be."""
    text = json.dumps(row, separators=(",", ":"))
    values = 1 + sum(map(text.count, "[{,"))
    return ("[" + ",".join([text] * min((most - 2) // (len(text) + 1), VALUES // values)) + "]").encode()


def numbered(row: Callable[[int], str], most: int) -> str:
    """Rows that differ from each other."""
    found, size = list[str](), 0
    while size < most - 100 and len(found) < 65_536:
        found.append(row(len(found)))
        size += len(found[-1].encode())
    return "".join(found)


ROOM = MAX_OUTPUT - 20_000
LABELS = {"io.vcluster.cluster": "lab"}
CONTAINER = {"Id": "", "State": "", "ImageID": ""}
NODE = "/containers/vcluster-lab/json"
STATE = {"Status": "running", "StartedAt": "2026-11-21T02:00:00Z"}


def usual() -> Large:
    """A host of many: 8 GPUs, 20 adapters, an interface for each of 250 pods, 300 images, 200 containers."""
    veth = {"ifindex": 9, "link_index": 2, "ifname": "veth0123abcd", "flags": ["BROADCAST", "UP"], "mtu": 1500,
            "qdisc": "noqueue", "operstate": "UP", "group": "default", "link_type": "ether", "address": "f" * 17,
            "linkinfo": {"info_kind": "veth"}, "addr_info": [{"local": "fe80::1", "prefixlen": 64}],
            **{f"attribute_{n}": 65536 for n in range(20)}}  # fmt: skip
    image = {"Id": IMAGE_ID, "RepoTags": ["registry.lab:5000/team/service:2026-11-28"], "Size": 10**9, "Created": 1,
             "RepoDigests": [f"registry.lab:5000/team/service@{IMAGE_ID}"], "Labels": {"a": "x" * 300}}  # fmt: skip
    container = {**CONTAINER, "Id": "c" * 64, "Names": ["/k8s_service_of_a_pod"], "ImageID": IMAGE_ID, "Image": "",
                 "State": "running", "Status": "Up 3 days", "Labels": {f"{n}": "x" * 99 for n in range(9)}}  # fmt: skip
    return {
        "nics": json.dumps([veth] * 250, separators=(",", ":")),
        "hcas": "".join(f"mlx5_{n}|1|4: ACTIVE|InfiniBand|400 Gb/sec|/dev/uverbs{n},|ib{n},||0|\n" for n in range(20)),
        "gids": "".join(f"mlx5_{n}|1|{m}|{'fe80:' * 8}|RoCE v2|eth{n}\n" for n in range(20) for m in range(4)),
        "rdma": "".join(f"/dev/infiniband/uverbs{n}\n" for n in range(40)),
        "listening": "".join(f"{port:04X}\n" for port in range(30_000, 30_300)),
        "/images/json": json.dumps([{"Id": IMAGE_ID, "RepoTags": [IMAGE]}, *[image] * 300]).encode(),
        "/containers/json": json.dumps([container] * 200).encode(),
    }  # fmt: skip


def full() -> Large:
    """As much as is taken: what is left of it is just within its limits."""
    veth = {"ifname": "veth", "linkinfo": {"info_kind": "veth"}, "x": "y" * 400}
    return {
        "nics": listed(veth, 230_000).decode(),
        "smi": "<a>" + rows("<b/>", 110_000, 27_000) + "</a>",
        "/images/json": _json([{"Id": IMAGE_ID, "RepoTags": [IMAGE]}, *[{"Id": WIDE * 4_000}] * 22]),
        "/containers/json": listed(CONTAINER, 18_000),
        "/images/": _json({"Id": IMAGE_ID, "RootFS": {"Layers": ["ab"] * 3_000}}),
    }


# What is large: a section of the facts, or the answer to a path of Docker's. Rows of nothing take the most memory for
# each byte that is sent.
KINDS: dict[str, Callable[[], Large]] = {
    "none": dict,
    "usual": usual,
    "full": full,
    "ports": lambda: {"listening": "\n".join(f"{port:04X}" for port in range(65_536))},
    "fewer ports": lambda: {"listening": "\n".join(f"{port:04X}" for port in range(3_000))},
    "gids": lambda: {"gids": rows("||||\n", ROOM)},
    "hcas": lambda: {"hcas": rows("|||||\n", ROOM)},
    "adapters": lambda: {"hcas": numbered(lambda n: f"m{n}|1|4: ACTIVE|Ethernet|{n}|a,b,c,d|e,f|{n}|0|{n}\n", ROOM)},
    "devices": lambda: {"rdma": numbered(lambda n: f"{n:x}\n", ROOM)},
    "paths": lambda: {"missing": numbered(lambda n: f"{n:x}\n", ROOM)},
    "disks": lambda: {"disks": numbered(lambda n: f"{n:x}|{n}\n", ROOM)},
    "routes": lambda: {"routes": numbered(lambda n: f"{n:x} {n}\n", ROOM)},
    "nics": lambda: {"nics": listed({"ifname": ""}, ROOM).decode()},
    "fewer nics": lambda: {"nics": listed({"ifname": ""}, 400_000).decode()},
    "addresses": lambda: {"nics": listed({"ifname": "a", "addr_info": [{"local": "10.9.9.9"}] * 9}, ROOM).decode()},
    "nested": lambda: {"nics": "[" + rows("[],", ROOM, 10**6) + "0]"},
    "cdi": lambda: {"dockercdi": "[]\n" + listed({"ID": "x"}, ROOM).decode()},
    "processes": lambda: {"gpuprocesses": numbered(lambda n: f"GPU-{n}|{n}|||,\n", ROOM)},
    "wide": lambda: {"missing": rows(WIDE * 1000 + "\n", ROOM)},
    "smi": lambda: {"smi": "<a>" + rows("<b/>", ROOM, 10**6) + "</a>"},
    "fewer smi": lambda: {"smi": "<a>" + rows("<b/>", 150_000, 10**6) + "</a>"},
    "containers": lambda: {"/containers/json": listed(CONTAINER)},
    "own containers": lambda: {"/containers/json": listed({**CONTAINER, "Labels": LABELS})},
    "fewer containers": lambda: {"/containers/json": listed({**CONTAINER, "Labels": LABELS}, 15_000)},
    "images": lambda: {"/images/json": listed({"Id": ""})},
    "fewer images": lambda: {"/images/json": listed({"Id": ""}, 5_000)},
    "names": lambda: {"/images/json": listed({"Id": "", "RepoTags": [""] * 500})},
    "wide names": lambda: {"/images/json": _json([{"Id": WIDE * (MAX_BYTES // 4 - 20)}])},
    "fewer wide names": lambda: {"/images/json": _json([{"Id": WIDE * 4_000}] * 17)},
    "image labels": lambda: {"/images/json": listed({"Id": "", "Labels": {f"{n}": "" for n in range(90)}})},
    "volumes": lambda: {"/volumes?": _json({"Volumes": [{"Name": f"{n}", "Labels": {}} for n in range(48_000)]})},
    "fewer volumes": lambda: {"/volumes?": _json({"Volumes": [{"Name": f"{n}"} for n in range(600)]})},
    "image": lambda: {"/images/": _json({"Id": IMAGE_ID, "RootFS": {"Layers": [""] * 198_000}})},
    "fewer layers": lambda: {"/images/": _json({"Id": IMAGE_ID, "RootFS": {"Layers": ["ab"] * 3_000}})},
    "variables": lambda: {"/images/": _json({"Id": IMAGE_ID, "Config": {"Env": [""] * 198_000}})},
    "record": lambda: {"/archive": archive_of(_json({"hosts": WIDE * 700_000})), "node": ""},
    "shorter record": lambda: {"/archive": archive_of(_json({"hosts": "x" * 150_000})), "node": ""},
    "inspect": lambda: {NODE: _json({"State": STATE, "Id": "n", "Name": [[]] * 190_000}), "node": ""},
    "fewer inspect": lambda: {NODE: _json({"State": STATE, "Id": "n", "Name": [[]] * 3_000}), "node": ""},
    "models": lambda: {"models": rows("hub|||||\n", ROOM, 10**6)},
    "fewer models": lambda: {"models": rows("hub|||||\n", 5_000, 10**6)},
}  # fmt: skip


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def facts(number: int, kind: str, peers: str) -> bytes:
    """What the fact script prints on a host, the large sections last."""
    at = f"10.0.{number // 200}.{number % 200 + 1}"
    nic = {"ifname": "eth0", "mtu": 9000, "operstate": "UP", "addr_info": [{"local": at, "prefixlen": 16}]}
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
    }
    text = DETAILS + _sections(parts) + f"\n@@nics\n[{json.dumps(nic)}"
    return b"".join((text.encode(), shared_sections(kind)))


def _sections(parts: Mapping[str, str]) -> str:
    return "".join(f"\n@@{name}\n{body}\n" for name, body in parts.items())


@functools.cache
def shared_sections(kind: str) -> bytes:
    """The large sections, once for all hosts."""
    given = {name: text for name, text in large(kind).items() if isinstance(text, str)}
    nics = str(given.pop("nics", "[]")).removeprefix("[")
    return f"{',' if nics != ']' else ''}{nics}\n{_sections({**given, 'end': ''})}".encode()


@functools.cache
def large(kind: str) -> Large:
    """What is large, once for all hosts: what they hold is not to be measured."""
    return KINDS[kind]()


@functools.cache
def whole_answer(body: bytes) -> bytes:
    """A whole HTTP answer, once for all hosts."""
    return answer(body)


class Liar:
    """A host: its facts, and its Docker's answers."""

    def __init__(self, target: Target, kind: str) -> None:
        self.host, self.round_trips, self._large = target.name, 0, large(kind)
        self._kind = kind
        self._number = int(target.name.removeprefix("gpu"))
        labels = {**LABELS, "io.vcluster.id": "0123456789abcdef", "io.vcluster.role": "head"}
        node = {**CONTAINER, "Id": "n", "Names": ["/vcluster-lab"], "State": "running", "Labels": labels}
        self._docker = {
            "/images/json": _json([{"Id": IMAGE_ID, "RepoTags": [IMAGE]}]),
            "/volumes?": b'{"Volumes": []}',
            "/containers/json": _json([node] if "node" in self._large else []),
            **{path: body for path, body in self._large.items() if isinstance(body, bytes)},
        }

    def run(self, argv: Sequence[str], _deadline: Deadline, *, stdin: bytes = b"", most: int = MAX_OUTPUT) -> Result:
        if b"section nics" in stdin:
            return Result(0, facts(self._number, self._kind, argv[3])[:most], b"")
        listed = f"{self._large.get('models', '')!s}whole\n" if b"models--" in stdin else ""
        return Result(0, listed.encode()[:most], b"")

    def open_stream(self, argv: Sequence[str], _deadline: Deadline) -> Stream:
        if tuple(argv[-3:]) == DIAL:
            return CannedStream(self._answers)
        held = CannedStream(lambda _: iter(()))
        # The lease is given, so that what follows it is reached; no program runs.
        held._pieces = iter([b"vcluster-lease held\n"])
        return held

    def _answers(self, line: str) -> Iterator[bytes]:
        found = next((body for path, body in self._docker.items() if path in line), None)
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
