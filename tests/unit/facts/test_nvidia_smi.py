"""What nvidia-smi prints, as it was recorded on a host with two H200, and with one word changed at a time."""

from __future__ import annotations

import resource
import time

import pytest

from tests.support.tree import FACTS, SMI
from vllm_cluster.kernel.facts.details import NvLinks
from vllm_cluster.kernel.facts.host_facts import GpuProcess
from vllm_cluster.kernel.facts.nvidia_smi import NvidiaSmiReport, parse_nvlinks, parse_processes, parse_smi
from vllm_cluster.kernel.facts.parse import facts


def changed(path: str, before: str, after: str) -> str:
    """The recorded answer with another value in an element of the first GPU."""
    old, new = (f"<{path}>{value}</{path}>" for value in (before, after))
    assert old in SMI
    return SMI.replace(old, new, 1)


def test_the_recorded_host_is_well() -> None:
    found = parse_smi(SMI)
    assert [(gpu.mig, gpu.ecc, gpu.ecc_uncorrected) for gpu in found.gpus] == [("Disabled", "Enabled", 0)] * 2
    assert [(gpu.repair_pending, gpu.recovery) for gpu in found.gpus] == [((), "")] * 2


# fault: kernel/facts/nvidia_smi.py: if _text(gpu, path) == "Yes")), → if _text(gpu, path) == "yes")),
@pytest.mark.parametrize(
    ("path", "before", "after", "pending"),
    [
        ("remapped_row_pending", "No", "Yes", ("row remapping",)),
        ("remapped_row_failure", "No", "Yes", ("row remapping failed",)),
        ("channel_repair_pending", "No", "Yes", ("channel repair",)),
        ("pending_retirement", "N/A", "Yes", ("page retirement",)),
    ],
)
def test_a_gpu_that_waits_for_a_repair(path: str, before: str, after: str, pending: tuple[str, ...]) -> None:
    assert [gpu.repair_pending for gpu in parse_smi(changed(path, before, after)).gpus] == [pending, ()]


def test_errors_add_up() -> None:
    text = changed("dram_uncorrectable", "0", "2").replace(
        "<sram_uncorrectable_parity>0</sram_uncorrectable_parity>",
        "<sram_uncorrectable_parity>1</sram_uncorrectable_parity>",
        1,
    )
    assert [gpu.ecc_uncorrected for gpu in parse_smi(text).gpus] == [3, 0]


@pytest.mark.parametrize(
    "cgroup", ["0::/system.slice/docker-{}.scope", "0::/../{}", "12:devices:/docker/{} 11:cpuset:/docker/{}"]
)
def test_a_process_is_led_back_to_its_container(cgroup: str) -> None:
    container = "ab" * 32
    found = parse_processes(f"GPU-a| 4242|anna 1000|{cgroup.format(container, container)}| 61958, python3")
    assert found == {"GPU-a": (GpuProcess(4242, "python3", 61_958, "anna", container),)}


@pytest.mark.parametrize(
    ("line", "process"),
    [
        # As the driver of an H100 prints it, of a process outside of any container.
        ("GPU-a| 553|root 0|0::/user.slice | 61958, python3", GpuProcess(553, "python3", 61_958, "root", "")),
        # The image's user has no name on the host; the process may have any.
        ("GPU-a| 7|UNKNOWN 5000|0::/| 5, a, b|c", GpuProcess(7, "a, b|c", 5, "uid 5000", "")),
        # /proc is mounted with hidepid; the driver does not know the memory.
        ("GPU-a| 7||| [N/A], [Not Found]", GpuProcess(7, "[Not Found]", 0, "", None)),
    ],
)
def test_a_process_with_its_user(line: str, process: GpuProcess) -> None:
    assert parse_processes(line) == {"GPU-a": (process,)}


# fault: kernel/facts/nvidia_smi.py: found.setdefault(uuid, []).append(GpuProcess(known, name.strip(), number(used) or 0, _user(user), within)) → found[uuid] = [*found.get(uuid, ()), GpuProcess(known, name.strip(), number(used) or 0, _user(user), within)]
def test_as_many_processes_as_a_host_can_claim_take_no_time() -> None:
    """Those of 1 MiB took longer than a look at all hosts may."""
    began = time.process_time()
    assert len(parse_processes("|1|||\n" * 170_000)[""]) == 170_000
    assert time.process_time() - began < 8


@pytest.mark.parametrize("text", ["", SMI[:9000], "<a>" * 100_000, SMI.replace("13.0", "&x;"), "<?xml version='9'?>"])
def test_an_incomplete_report_gives_nothing(text: str) -> None:
    assert parse_smi(text) == NvidiaSmiReport()


# fault: kernel/facts/nvidia_smi.py: or _MAKES_MUCH.search(text) or → or
def test_entities_are_refused_and_the_recorded_doctype_is_not() -> None:
    assert "<!DOCTYPE" in SMI
    bomb = SMI.replace('SYSTEM "nvsmi_device_v13.dtd"', '[<!ENTITY a "13.0">]').replace("13.0<", "&a;<")
    assert parse_smi(bomb) == NvidiaSmiReport()


MUCH = {
    "attributes": f'<!DOCTYPE r [<!ATTLIST a x CDATA "{"y" * 500_000}">]><r>{"<a/>" * 300}</r>',
    "namespaces": f'<r xmlns:a="{"u" * 500_000}">{"".join(f"<a:b{n}/>" for n in range(300))}</r>',
}


# fault: kernel/facts/nvidia_smi.py: |xmlns") → ")
# fault: kernel/facts/nvidia_smi.py: <!(?!DOCTYPE → <!(?!ATTLIST|DOCTYPE
@pytest.mark.parametrize("kind", MUCH)
@pytest.mark.promise("P46")
def test_a_report_takes_about_as_much_as_its_text(kind: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert parse_smi(MUCH[kind]) == NvidiaSmiReport()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


# fault: kernel/facts/nvidia_smi.py: or text.count("<") > MAX_TAGS: → :
def test_a_report_of_more_elements_than_64_gpus_have_is_not_read() -> None:
    """Each takes 100 bytes while it is read."""
    more = "<!-- -->" * 40_001
    assert parse_smi(SMI.replace("<gpu ", more + "<gpu ", 1)) == NvidiaSmiReport()


# fault: kernel/facts/nvidia_smi.py: "inactive → "active" in line.lower() or "inactive
def test_the_recorded_links() -> None:
    said = (FACTS / "h200-x2.nvidia-smi-nvlink.txt").read_text()
    assert parse_nvlinks(said) == (NvLinks(0, 18, 18), NvLinks(1, 18, 18))
    assert parse_nvlinks(said.replace("26.562 GB/s", "<inactive>", 1))[0] == NvLinks(0, 17, 18)


def test_links_without_any() -> None:
    assert parse_nvlinks("GPU 0: NVIDIA L4 (UUID: x)\nUnable to retrieve NVLink information") == ()


def test_the_whole_report_of_a_real_gpu_host() -> None:
    """One round trip: what the driver, the kernel and the file systems report; the rest is shown as unknown."""
    host = facts("gpu1", (FACTS / "h200-x2-host.txt").read_text(), deep=True)
    assert [(gpu.name, gpu.memory_mib, gpu.driver) for gpu in host.gpus] == [("NVIDIA H200", 143771, "580.159.04")] * 2
    assert (host.nics, host.hcas, host.rdma_devices) == ((), (), ("/dev/infiniband/rdma_cm",))
    assert "docker" in host.docker.problem
    told = host.details
    assert told
    assert [(gpu.fabric_state, gpu.ecc, gpu.mig) for gpu in told.gpu_health] == [
        ("Completed", "Enabled", "Disabled")
    ] * 2
    assert [(link.active, link.total) for link in told.nvlinks] == [(18, 18)] * 2
    assert (told.cuda, told.xids, told.peermem, told.acs_enabled) == ("13.0", (), False, None)
    assert (told.hostname_addresses, told.filesystems[0].kind) == (("127.0.0.1",), "ext4")
