"""A host made of files and small tools, on which the fact script runs as it is.

The trees below /sys and /proc and what `ip`, `nvlink -s`, `lspci` and `dmesg` print are written by hand after the
kernel's and the tools' documentation; what `nvidia-smi -q -x` prints was recorded on a host with two H200.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from tests.support.paths import FIXTURES
from vllm_cluster.kernel.facts import parse
from vllm_cluster.kernel.facts.host_facts import HostFacts

FACTS = FIXTURES / "facts"
SCRIPTS = files("vllm_cluster.kernel.facts")
SMI = (FACTS / "h200-x2.nvidia-smi-q.xml").read_text()
UUIDS = [f"GPU-00000000-0000-0000-0000-00000000000{number}" for number in (1, 2)]
CONTAINER = "c0ffee" + "0" * 58
# Everything that a bare host has: busybox' tools.
BARE = ["sh", "cat", "uname", "date", "awk", "head", "tail", "sed", "sort", "grep", "tr", "ls", "df", "dirname", "id"]


@dataclass(frozen=True)
class Machine:
    """The folder in the place of / and the tools that are found."""

    root: Path

    def file(self, path: str, content: str) -> None:
        """Write a file of the host."""
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)

    def tool(self, name: str, script: str) -> None:
        """Put a tool on the host's PATH."""
        self.file(f"/bin/{name}", f"#!/bin/sh\n{script}\n")
        (self.root / "bin" / name).chmod(0o755)

    def connection(self, *names: str) -> None:
        """Give the host tools of this machine."""
        (self.root / "bin").mkdir(exist_ok=True, parents=True)
        for name in names:
            (self.root / "bin" / name).symlink_to(shutil.which(name) or name)

    def script(self, *, deep: bool) -> str:
        """The script, with this folder for every folder of the system."""
        text = "".join(SCRIPTS.joinpath(name).read_text() for name in ("facts.sh", "details.sh")[: 1 + deep])
        text = text.replace("PATH=$PATH:/usr/sbin:/sbin:/usr/local/bin\n", "")
        # Its patience with the driver would be the test's time.
        text = text.replace("limit 20 nvidia-smi", "limit 2 nvidia-smi")
        return re.sub(r"(?<![\w$}])/(sys|proc|etc|var|dev/infiniband)/", rf"{self.root}/\1/", text)

    def run(self, shell: str = "sh", *, deep: bool = True) -> bytes:
        """What the script prints."""
        argv = [*shell.split(), "-s", "--", "10.0.0.1,10.0.0.2", f"{self.root}/models"]
        done = subprocess.run(
            [shutil.which(argv[0]) or argv[0], *argv[1:]],
            input=self.script(deep=deep).encode(),
            env={"PATH": f"{self.root}/bin"},
            capture_output=True,
            timeout=60,
            check=True,
        )
        return done.stdout

    def facts(self, shell: str = "sh", *, deep: bool = True) -> HostFacts:
        """What comes of it."""
        return parse.facts("gpu1", self.run(shell, deep=deep).decode(), deep=deep)


def bare(root: Path) -> Machine:
    """A host without ip, nvidia-smi, Docker, /sys and /proc."""
    machine = Machine(root)
    machine.connection(*BARE)
    return machine


def full(root: Path) -> Machine:
    """Two H200 with NVSwitch, an InfiniBand port that is ACTIVE, a RoCE one that is not, and all tools."""
    machine = bare(root)
    machine.connection("timeout", "find", "uniq")
    for path, content in _PROC.items():
        machine.file(path, content)
    _adapter(machine, "mlx5_0", "ib0", state="4: ACTIVE", link_layer="InfiniBand", rate="400 Gb/sec (4X NDR)")
    _adapter(machine, "mlx5_1", "eth1", state="1: DOWN", link_layer="Ethernet", rate="100 Gb/sec (4X EDR)")
    nics = [_nic("lo", "127.0.0.1", 8, 65536), _nic("eth0", "10.0.0.1", 24, 9000), _nic("wg0", "100.64.0.1", 10, 1420)]
    nics[2]["linkinfo"] = {"info_kind": "wireguard"}
    machine.file("/nics.json", json.dumps(nics))
    machine.file("/smi.xml", SMI)
    machine.file("/sys/class/net/eth0/speed", "100000\n")
    for name, script in _TOOLS.items():
        machine.tool(name, script.replace("ROOT", str(root)))
    machine.file("/sys/bus/pci/devices/0000:01:00.0/numa_node", "1\n")
    machine.file("/models/hub/models--meta--llama/refs/main", "0123abc")
    machine.file("/models/hub/models--meta--llama/blobs/77.incomplete", "")
    snapshot = root / "models/hub/models--meta--llama/snapshots/0123abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").symlink_to("../../blobs/gone")
    return machine


def _nic(name: str, address: str, prefix: int, mtu: int) -> dict[str, object]:
    entry = {"family": "inet", "local": address, "prefixlen": prefix, "dynamic": name == "eth0"}
    return {"ifname": name, "mtu": mtu, "operstate": "UP", "addr_info": [entry]}


def _adapter(machine: Machine, name: str, netdev: str, **said: str) -> None:
    device = machine.root / f"sys/devices/pci0000:00/0000:0{name[-1]}:00.0"
    below = f"/sys/class/infiniband/{name}"
    for path in (f"net/{netdev}", f"infiniband_verbs/uverbs{name[-1]}"):
        (device / path).mkdir(parents=True)
    (device / "numa_node").write_text("1\n")
    for path, content in said.items():
        machine.file(f"{below}/ports/1/{path}", f"{content}\n")
    for index, (gid, kind) in enumerate([("fe80:0000:0000:0000:0000:0000:0000:0000", "IB/RoCE v1"), *_GIDS]):
        machine.file(f"{below}/ports/1/gids/{index}", f"{gid}\n")
        machine.file(f"{below}/ports/1/gid_attrs/types/{index}", f"{kind}\n")
        machine.file(f"{below}/ports/1/gid_attrs/ndevs/{index}", f"{netdev}\n")
    (machine.root / below.lstrip("/") / "device").symlink_to(device)
    machine.file(f"/dev/infiniband/uverbs{name[-1]}", "")
    machine.file("/dev/infiniband/rdma_cm", "")


_GIDS = [
    ("0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2"),
    ("0000:0000:0000:0000:0000:0000:0000:0000", ""),
]
_PROC = {
    "/etc/machine-id": "3d12\n",
    "/proc/sys/kernel/random/boot_id": "b007\n",
    "/proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 600 kB\n",
    "/proc/net/tcp": "  sl local rem st\n   0: 00000000:18EB 00000000:0000 0A 0\n   1: 0:0016 0:0 01 0\n",
    "/proc/mounts": "/dev/root / ext4 rw 0 0\n",
    "/proc/modules": "nvidia_peermem 16384 0 - Live 0x0\nnvidia 1 2 - Live 0x0\n",
    "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04\n",
    "/proc/4242/cgroup": f"0::/system.slice/docker-{CONTAINER}.scope\n",
    "/proc/77/limits": "Max open files  1 1 files\nMax locked memory         8388608    8388608    bytes\n",
    "/sys/kernel/iommu_groups/0/type": "DMA-FQ\n",
    "/etc/cdi/nvidia.yaml": """cdiVersion: 0.5.0
kind: nvidia.com/gpu
containerEdits:
  hooks:
  - path: /nowhere/nvidia-ctk
  mounts:
  - containerPath: /usr/lib/libcuda.so.580.1
    hostPath: /nowhere/libcuda.so.580.1
  - hostPath: /
""",
}
_TOOLS = {
    "ip": """case "$*" in
*addr) cat ROOT/nics.json ;;
*10.0.0.1) echo 'local 10.0.0.1 dev lo src 10.0.0.1' ;;
*) echo '10.0.0.2 via 10.0.0.254 dev eth0 src 10.0.0.1' ;;
esac""",
    "nvidia-smi": rf"""case "$*" in
*compute-apps*) printf '{UUIDS[0]}, 4242, 120000, VLLM::Worker_TP0\n' ;;
*query*) printf '0, {UUIDS[0]}, NVIDIA H200, 143771, 120003, 580.159.04, Disabled, 0, 00000000:01:00.0\n'
  printf '1, {UUIDS[1]}, NVIDIA H200, 143771, 0, 580.159.04, Enabled, 3, 00000000:02:00.0\n' ;;
*nvlink*) printf 'GPU 0: NVIDIA H200 (UUID: x)\n\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n'
  printf 'GPU 1: NVIDIA H200 (UUID: y)\n\t Link 0: 26.562 GB/s\n' ;;
*) cat ROOT/smi.xml ;;
esac""",
    "stat": "echo anna 1000",
    "nvidia-ctk": "echo 'NVIDIA Container Toolkit CLI version 1.17.4'",
    "nvidia-container-runtime-hook": "exit 1",
    "dmesg": "echo 'other'; echo '[ 1.0] NVRM: Xid (PCI:0000:06:00): 79, pid=1, GPU has fallen off the bus.'",
    "systemctl": "printf 'LoadState=loaded\\nActiveState=failed\\n'",
    "lspci": "printf '\\t\\tACSCtl:\\tSrcValid- TransBlk-\\n\\t\\tACSCtl:\\tSrcValid+ TransBlk-\\n'",
    "getent": "printf '127.0.1.1  STREAM node1\\n127.0.1.1  DGRAM\\n'",
    "pgrep": "echo 77",
    "docker": """case "$*" in
version*) echo '{"Version":"28.0.4","ApiVersion":"1.48","Arch":"amd64"}' ;;
*CDISpecDirs*) echo '["/etc/cdi","/var/run/cdi"]'
  echo '[{"Source":"cdi","ID":"nvidia.com/gpu=all"},{"Source":"cdi","ID":"nvidia.com/gpu=0"}]' ;;
*) printf '{"Root":"/var/lib/docker","Runtimes":{"nvidia":{},"runc":{}},'
  echo '"CgroupDriver":"systemd","CgroupVersion":"2","SecurityOptions":["name=rootless"]}' ;;
esac""",
}
