"""The fact script itself, on hosts made of files, and what is read out of it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support import tree, world
from vllm_cluster.kernel.checks.docker import engine_problem
from vllm_cluster.kernel.checks.registry import check_all, unseen
from vllm_cluster.kernel.facts import parse
from vllm_cluster.kernel.facts.details import NvLinks
from vllm_cluster.kernel.facts.host_facts import Gid, GpuProcess

SHELLS = ["sh", "bash --posix"]


# fault: kernel/facts/parse.py: cdi_enabled=any(folders) if folders is not None else None, → cdi_enabled=None,
@pytest.mark.parametrize("shell", SHELLS)
def test_a_host_with_everything(tmp_path: Path, shell: str) -> None:
    host = tree.full(tmp_path).facts(shell)
    assert (host.machine_id, host.boot_id, host.memory_bytes, host.available_bytes) == (
        "3d12",
        "b007",
        1_024_000,
        614_400,
    )
    assert host.listening == {6379}
    assert host.routes == {"10.0.0.1": "lo", "10.0.0.2": "eth0"}
    eth, tunnel = host.nics[1:]
    assert (eth.speed_mbit, eth.mtu, eth.dynamic, tunnel.kind) == (100_000, 9000, True, "wireguard")
    active, idle = host.hcas
    assert (active.device, active.active, active.uverbs, active.netdevs, active.pci, active.numa) == (
        "mlx5_0", True, (f"{tmp_path}/dev/infiniband/uverbs0",), ("ib0",), "0000:00:00.0", 1,
    )  # fmt: skip
    assert (idle.active, idle.link_layer) == (False, "Ethernet")
    assert active.pci_path == "pci0000:00/0000:00:00.0"
    assert host.gids[0] == Gid("mlx5_0", 1, 1, "0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2", "ib0")
    assert [gid.device for gid in host.gids] == ["mlx5_0", "mlx5_1"]
    assert [Path(path).name for path in host.rdma_devices] == ["rdma_cm", "uverbs0", "uverbs1"]
    assert [(gpu.used_mib, gpu.mig, gpu.ecc_errors) for gpu in host.gpus] == [(120003, False, 0), (0, True, 3)]
    assert [(Path(gpu.pci_path).name, gpu.numa) for gpu in host.gpus] == [("0000:01:00.0", 1), ("", None)]
    process = GpuProcess(4242, "VLLM::Worker_TP0", 120_000, "anna", tree.CONTAINER)
    assert [gpu.processes for gpu in host.gpus] == [(process,), ()]
    engine = host.docker
    assert (engine.cgroup_driver, engine.cgroup_version, engine.rootless, engine.toolkit_version, engine.gpu_hook) == (
        "systemd", "2", True, "1.17.4", True,
    )  # fmt: skip
    assert engine.cdi_specs == ("nvidia.com/gpu",)
    assert (engine.cdi_enabled, engine.cdi_devices) == (True, ("nvidia.com/gpu=0", "nvidia.com/gpu=all"))
    assert engine.missing_cdi_paths == ("/nowhere/libcuda.so.580.1", "/nowhere/nvidia-ctk")
    assert "/var/lib/docker" in host.free_bytes


def test_its_details(tmp_path: Path) -> None:
    machine = tree.full(tmp_path)
    details = machine.facts().details
    assert details is not None
    first, second = details.gpu_health
    assert (details.cuda, first.uuid, second.uuid) == ("13.0", *tree.UUIDS)
    assert (first.fabric_state, first.fabric_status) == ("Completed", "Success")
    assert details.nvlinks == (NvLinks(0, 1, 2), NvLinks(1, 1, 1))
    assert details.xids is not None
    assert [line.partition("NVRM: ")[2][:4] for line in details.xids] == ["Xid "]
    assert (details.fabric_manager, details.peermem, details.open_driver) == ("failed", True, True)
    assert (details.acs_enabled, details.iommu, details.docker_memlock) == (True, "DMA-FQ", "8388608")
    assert details.hostname_addresses == ("127.0.1.1",)
    assert details.revisions == {"meta--llama": "0123abc"}
    assert [Path(path).name for path in (*details.incomplete_files, *details.broken_symlinks)] == [
        "77.incomplete",
        "config.json",
    ]
    assert {entry.path for entry in details.filesystems} == {"/var/lib/docker", f"{tmp_path}/models", "/tmp"}


@pytest.mark.parametrize("shell", SHELLS)
def test_a_bare_host(tmp_path: Path, shell: str) -> None:
    host = tree.bare(tmp_path).facts(shell)
    assert (host.nics, host.hcas, host.gpus, host.memory_bytes, host.listening) == ((), (), (), 0, frozenset())
    facts = world.hosts(1) | {"gpu1": host}
    found = {finding.code: finding for finding in check_all(world.inventory(1), facts)}
    assert set(found) == {"docker-missing", "ip-missing", "no-gpus"}
    assert host.missing_paths == {f"{tmp_path}/models"}
    said = {one.what for one in unseen(world.inventory(1), facts)}
    assert said == {"its memory", "its hostname's addresses", "containers, ports, images and their disk space"}


def test_up_asks_for_nothing_of_the_longer_look(tmp_path: Path) -> None:
    machine = tree.full(tmp_path)
    machine.tool("dmesg", f": >{tmp_path}/asked")
    text = machine.run(deep=False).decode()
    assert parse.facts("gpu1", text).details is None
    assert not (tmp_path / "asked").exists()
    with pytest.raises(ValueError, match="breaks off"):
        parse.facts("gpu1", text, deep=True)


LOST = "Unable to determine the device handle for GPU1: 0000:07:00.0: GPU is lost."


# fault: kernel/facts/facts.sh: timeout -k 2 "$@" → timeout "$@"
@pytest.mark.parametrize(
    ("script", "count", "said"),
    [
        ("sleep 30", 0, "nvidia-smi does not answer"),
        # Threads of a driver that hangs take no signal but the last one.
        ("trap '' TERM; n=0; while [ $n -lt 25 ]; do sleep 1; n=$((n+1)); done", 0, "nvidia-smi does not answer"),
        (f"echo '{LOST}'; exit 15", 0, LOST),
        (f"echo '0, GPU-a, NVIDIA H200, 143771'; echo '{LOST}' >&2; exit 15", 1, LOST),
        ("echo '0, GPU-a, NVIDIA H200, 143771'", 1, ""),
    ],
)
def test_a_driver_that_gives_the_reason(tmp_path: Path, script: str, count: int, said: str) -> None:
    machine = tree.full(tmp_path)
    machine.connection("sleep")
    machine.tool("nvidia-smi", f'case "$*" in *query*) {script} ;; *) : >{tmp_path}/asked ;; esac')
    began = time.monotonic()
    host = machine.facts()
    assert time.monotonic() - began < 20
    assert (len(host.gpus), host.gpu_problem) == (count, said)
    # A driver that hangs would do so again.
    assert (tmp_path / "asked").exists() is (said != "nvidia-smi does not answer")
    inventory = world.inventory(1, entries={"gpu1": {"gpus": 2}})
    (found,) = [one for one in check_all(inventory, {"gpu1": host}) if one.code == "gpus-missing"]
    assert found.message.endswith(f"(by nvidia-smi){': ' if said else ''}{said}")


@pytest.mark.promise("P39")
@pytest.mark.parametrize("sudo", ['[ "$1 $2 $3" = "-n docker version" ]', "exit 1", None])
def test_docker_that_answers_to_sudo_alone_is_reported_as_that(tmp_path: Path, sudo: str | None) -> None:
    machine = tree.full(tmp_path)
    machine.tool("docker", "echo 'permission denied while trying to connect to the Docker daemon socket' >&2; exit 1")
    if sudo:
        machine.tool("sudo", sudo)
    found = engine_problem(machine.facts(deep=False))
    assert found is not None
    assert found.code == "docker-forbidden"
    assert found.fix == 'on gpu1: sudo usermod -aG docker "$USER", then log in again'
    only = "this user may use Docker only with sudo"
    assert found.message == (only if sudo and "version" in sudo else "this user may not use Docker")


def test_a_file_made_at_start_outranks_one_that_is_stale(tmp_path: Path) -> None:
    machine = tree.full(tmp_path)
    assert machine.facts(deep=False).docker.missing_cdi_paths
    machine.file("/var/run/cdi/nvidia.yaml", "kind: nvidia.com/gpu\nmounts:\n- hostPath: /\n")
    assert machine.facts(deep=False).docker.missing_cdi_paths == ()


def test_a_flood_in_the_kernel_log_is_cut(tmp_path: Path) -> None:
    machine = tree.full(tmp_path)
    machine.connection("yes")
    machine.tool("dmesg", "yes 'NVRM: Xid (PCI:0000:06:00): 79, pid=1' | head -c 100000000")
    printed = machine.run()
    assert len(printed) < 200_000
    details = parse.facts("gpu1", printed.decode(), deep=True).details
    assert details is not None and details.xids is not None
    assert len(details.xids) == 20


# fault: kernel/facts/details.sh: if limit 5 dmesg >/dev/null 2>&1; then → if true; then
def test_a_log_that_is_forbidden_is_unknown_not_clean(tmp_path: Path) -> None:
    machine = tree.full(tmp_path)
    machine.tool("dmesg", "echo 'dmesg: read kernel buffer failed: Operation not permitted' >&2; exit 1")
    host = machine.facts()
    assert host.details is not None
    assert host.details.xids is None
    assert "Xid errors" in {one.what for one in unseen(world.inventory(1), {"gpu1": host})}


@pytest.mark.parametrize(
    "answer",
    [
        "head -c 9000 ROOT/smi.xml",
        "sleep 30",
        "head -c 20000000 /dev/zero | tr '\\0' '<'",
        """printf '<!DOCTYPE x [<!ENTITY a "b">]><nvidia_smi_log><gpu id="&a;"/></nvidia_smi_log>'""",
    ],
)
def test_an_incomplete_answer_shows_nothing_of_health(tmp_path: Path, answer: str) -> None:
    machine = tree.full(tmp_path)
    machine.connection("sleep")
    machine.tool("nvidia-smi", f'case "$*" in *-x*) {answer.replace("ROOT", str(tmp_path))} ;; esac')
    began = time.monotonic()
    details = machine.facts().details
    assert time.monotonic() - began < 15
    assert details is not None
    assert (details.gpu_health, details.cuda) == ((), "")


@pytest.mark.parametrize(
    ("script", "resolves"), [("exit 2", ()), ("exit 124", None), ("echo '10.0.0.1  STREAM x'", ("10.0.0.1",))]
)
def test_a_name_that_is_unknown_and_a_server_that_is_silent(
    tmp_path: Path, script: str, resolves: tuple[str, ...] | None
) -> None:
    machine = tree.full(tmp_path)
    machine.tool("getent", script)
    details = machine.facts().details
    assert details is not None
    assert details.hostname_addresses == resolves
