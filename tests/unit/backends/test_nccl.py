"""NCCL's own words for the way that bytes take, as its log has them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from vllm_cluster.kernel.backends.nccl import transport

RECORDED = Path(__file__).parents[2] / "fixtures" / "gpu"

RDMA = """\
NCCL version 2.28.9+cuda13.0
NCCL INFO Bootstrap: Using eth0:10.0.0.11<0>
NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.11<0>
NCCL INFO Using network IB
NCCL INFO Channel : 0[0] -> 1[1] via P2P/CUMEM/read
NCCL INFO Channel : 1[1] -> 2[0] [send] via NET/IB/0/GDRDMA
"""
TCP = """\
NCCL INFO NET/IB : No device found.
NCCL INFO NET/Socket : Using [0]eth0:10.0.0.11<0>
NCCL INFO Using network Socket
NCCL INFO Channel : 1[1] -> 2[0] [send] via NET/Socket/0
NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct
"""


def test_rdma_with_gpu_direct() -> None:
    found = transport(RDMA.splitlines())
    assert found.kinds == ("P2P/CUMEM", "NET/IB/GDRDMA")
    assert found.hcas == ("mlx5_0:1", "mlx5_1:1")
    assert found.version == "2.28.9+cuda13.0"
    assert not found.socket


def test_tcp() -> None:
    found = transport(TCP.splitlines())
    assert found.kinds == ("NET/Socket", "SHM")
    assert found.interfaces == ("eth0",)
    assert found.socket


def test_an_adapter_without_gpu_direct_and_a_warning() -> None:
    lines = [
        "NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'",
        "NCCL INFO Channel : 1[1] -> 2[0] [send] via NET/IB/0",
        "NCCL WARN Call to connect returned Connection timed out",
    ]
    found = transport(lines)
    assert (found.indirect, found.kinds) == (("mlx5_0",), ("NET/IB",))
    assert found.warnings == ("Call to connect returned Connection timed out",)


# fault: kernel/backends/nccl.py: and "NET/Socket" not in line: → and line:
@pytest.mark.parametrize(
    ("recorded", "kinds", "interfaces"),
    [("nvlink", ("P2P/CUMEM",), ("eth0",)), ("shm", ("SHM",), ("eth0",)), ("socket", ("NET/Socket",), ("eth0",))],
)
def test_what_two_h200_logged(recorded: str, kinds: tuple[str, ...], interfaces: tuple[str, ...]) -> None:
    """NCCL 2.28.9 on two GPUs of one host: by NVLink, with NCCL_P2P_DISABLE=1, and with NCCL_SHM_DISABLE=1 too."""
    found = transport((RECORDED / f"h200-x2-nccl-{recorded}.log").read_text().splitlines())
    assert (found.kinds, found.interfaces, found.hcas) == (kinds, interfaces, ())
    assert found.indirect == (), "an Ethernet interface is no adapter"
    assert found.version


# fault: kernel/backends/nccl.py: \S{1,80}:\d{1,4} → \S+:\d+
# fault: kernel/backends/nccl.py: Using.{0,80}? → Using.*?
@pytest.mark.parametrize("text", ["[1]a:1", "NET/Socket : Using[3]", " via NET/a", "NCCL version ", "HCA 1 '"])
def test_a_line_of_a_rank_is_read_in_the_time_of_its_bytes(text: str) -> None:
    """Of `check --deep`: each 64 kB took 4 s in one call, in which no other thread ran, and 1 MB a minute."""
    began = time.process_time()
    transport(["NET/IB : Using " + text * (64_000 // len(text))])
    assert time.process_time() - began < 1
