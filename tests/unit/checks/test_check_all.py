"""Each problem that a longer look finds, with its host, and nothing on hosts that are well."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support import world
from vllm_cluster.kernel.checks.registry import check_all, preflight, unseen
from vllm_cluster.kernel.facts.details import Details, FileSystem, GpuHealth, ImageDetails, NvLinks
from vllm_cluster.kernel.facts.docker_objects import Container, Image
from vllm_cluster.kernel.facts.host_facts import DockerFacts, Gid, Gpu, GpuProcess, Hca, HostFacts, Nic
from vllm_cluster.kernel.terminal.paste import pasteable

CACHE = FileSystem("/models", "ext4", "/dev/nvme0n1", "/models", 1 << 40)
WELL = Details(
    cuda="13.0",
    gpu_health=(GpuHealth("GPU-1", fabric_state="Completed", fabric_status="Success"), GpuHealth("GPU-2")),
    xids=(),
    hostname_addresses=("10.0.0.1",),
    filesystems=(CACHE,),
    image=ImageDetails(world.BASE.id, "amd64", "13.0.1"),
    revisions={"meta--llama": "0123abc"},
)
ACTIVE = Hca("mlx5_0", 1, "4: ACTIVE", "InfiniBand", "400 Gb/sec (4X NDR)", ("/dev/infiniband/uverbs0",))
ROCE = replace(ACTIVE, link_layer="Ethernet")
FILES = ("/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0")
GID = Gid("mlx5_0", 1, 3, "0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2", "eth1")
ENGINE = world.host(1).docker
BY_CDI = replace(ENGINE, version="28.2.0", cdi_enabled=True, cdi_specs=("nvidia.com/gpu",))
GPUS = world.host(2).gpus
ETH1 = world.host(2).nics[1]
# Of two hosts that differ in these none is the odd one: both are named.
EITHER = ("mtu-differs", "gpus-differ", "driver-differs", "revision-differs", "hcas-differ", "same-hostname")
TWIN = replace(ETH1, name="eth2", addresses=("10.0.0.99/24",))


def named(code: str) -> list[str]:
    """The hosts that have a finding where the second of two is odd."""
    return ["gpu1", "gpu2"] if code in EITHER else ["gpu2"]


def hosts(both: dict[str, Any] | None = None, **odd: Any) -> dict[str, HostFacts]:
    """Two hosts that are well, but for what a test sets on both, and on the second; words of details go there."""
    facts = world.hosts()
    known = Details.__dataclass_fields__
    for name, words in (("gpu1", both or {}), ("gpu2", {**(both or {}), **odd})):
        details = replace(WELL, **{key: value for key, value in words.items() if key in known})
        plain = {key: value for key, value in words.items() if key not in known}
        facts[name] = replace(facts[name], details=details, **plain)
    return facts


def test_hosts_that_are_well() -> None:
    assert check_all(world.inventory(), hosts()) == ()
    assert unseen(world.inventory(), hosts()) == ()
    rdma = {"hcas": (ROCE,), "rdma_devices": FILES, "gids": (GID,), "peermem": True, "acs_enabled": False}
    assert check_all(world.inventory(), hosts(rdma)) == ()


def gpus(**changes: Any) -> tuple[Gpu, ...]:
    """The second host's GPUs, the first of them changed."""
    return (replace(GPUS[0], **changes), *GPUS[1:])


def nic(**changes: Any) -> tuple[Nic, ...]:
    """The second host's interfaces, the one that holds its address changed."""
    return (world.host(2).nics[0], replace(ETH1, **changes))


# fault: kernel/checks/docker.py: full = free < MIN_FREE_SPACE and not has_node(inventory, facts, "running") → full = False
# fault: kernel/facts/host_facts.py: self.kind in TUNNEL_KINDS or →
@pytest.mark.parametrize(
    ("odd", "code", "error"),
    [
        ({"gpus": gpus(used_mib=60_000)}, "gpu-busy", False),
        ({"gpus": gpus(mig=True)}, "mig-enabled", False),
        ({"gpus": gpus(ecc_errors=2)}, "gpu-ecc-errors", False),
        ({"docker": replace(ENGINE, container_runtimes=("runc",))}, "gpu-runtime-missing", True),
        ({"docker": replace(BY_CDI, missing_cdi_paths=("/x/libcuda.so.5",))}, "cdi-stale", True),
        ({"docker": replace(BY_CDI, missing_cdi_paths=("/dev/nvidia9",))}, "cdi-stale", False),
        ({"free_bytes": {"/var/lib/docker": 63_000_000}}, "disk-full", True),
        ({"free_bytes": {"/var/lib/docker": 1_900_000_000}}, "disk-full", False),
        ({"nics": ()}, "ip-missing", True),
        ({"nics": nic(kind="wireguard")}, "virtual-interface", False),
        ({"nics": nic(name="tailscale0"), "routes": {"10.0.0.1": "tailscale0"}}, "virtual-interface", False),
        ({"nics": nic(state="DOWN")}, "nic-down", False),
        ({"nics": nic(mtu=9000)}, "mtu-differs", False),
        ({"memory_bytes": 8 << 30}, "shm-large", False),
    ],
)  # fmt: skip
def test_up_finds_it_too(odd: dict[str, Any], code: str, error: bool) -> None:
    facts = hosts(**odd)
    for found in (preflight(world.inventory(), facts), check_all(world.inventory(), facts)):
        assert [(one.code, one.host, one.error) for one in found] == [(code, name, error) for name in named(code)]
        assert all(one.fix for one in found)


@pytest.mark.parametrize(
    ("odd", "code", "error"),
    [
        ({"docker": DockerFacts(problem="sh: docker: not found")}, "docker-missing", True),
        ({"other_containers": (Container("1", "node-1234", "exited", "x", {}, "v"),)}, "leftover-container", False),
        ({"other_containers": (Container("1", "ray-head", "running", "x", {}, "r"),)}, "leftover-container", False),
        ({"docker": replace(ENGINE, toolkit_version="1.17.4", cgroup_driver="systemd")}, "toolkit-old", False),
        ({"gpu_health": (GpuHealth("a", fabric_state="In Progress"),)}, "nvswitch-fabric", True),
        ({"gpu_health": (GpuHealth("a", fabric_state="Completed", fabric_status="Failure"),)}, "nvswitch-fabric", True),
        ({"fabric_manager": "failed"}, "nvswitch-fabric", False),
        ({"xids": ("[1.0] NVRM: Xid (PCI:0000:06:00): 79",)}, "xid", False),
        ({"gpu_health": (GpuHealth("a", repair_pending=("row remapping",)),)}, "gpu-reset-needed", False),
        ({"gpu_health": (GpuHealth("a", recovery="Reset"),)}, "gpu-reset-needed", False),
        ({"nvlinks": (NvLinks(0, 17, 18), NvLinks(1, 18, 18))}, "nvlinks-down", False),
        ({"gpus": tuple(replace(gpu, name="NVIDIA L4") for gpu in GPUS)}, "gpus-differ", False),
        ({"image": ImageDetails("x", "amd64", "14.1")}, "driver-old", False),
        ({"image": ImageDetails("x", "arm64")}, "image-architecture", True),
        ({"images": (world.BASE,)}, "ray-layer", False),
        ({"nics": (*world.host(2).nics, TWIN)}, "nics-one-subnet", False),
        ({"routes": {"10.0.0.1": "eth9"}}, "route-differs", False),
        ({"nics": nic(speed_mbit=1000)}, "nic-slow", False),
        ({"hostname_addresses": ("127.0.1.1",)}, "hostname-loopback", False),
        ({"hostname_addresses": ()}, "hostname-unknown", False),
        ({"hostname": "node1"}, "same-hostname", False),
        ({"filesystems": (replace(CACHE, kind="nfs4", source="nas:/m"),)}, "cache-on-network", False),
        ({"free_bytes": {"/models": 10_000_000}}, "cache-full", False),
        ({"incomplete_files": ("/models/hub/x.incomplete",)}, "cache-incomplete", False),
        ({"broken_symlinks": ("/models/hub/x",)}, "broken-symlinks", False),
        ({"without_tokenizer": ("/models/hub/models--a--b/snapshots/9/",)}, "tokenizer-missing", False),
        ({"revisions": {}}, "model-absent", False),
        ({"revisions": {"meta--llama": "9999"}}, "revision-differs", False),
    ],
)  # fmt: skip
def test_only_a_longer_look_finds_it(odd: dict[str, Any], code: str, error: bool) -> None:
    facts = hosts(**odd)
    found = check_all(world.inventory(), facts)
    assert [(one.code, one.host, one.error) for one in found] == [(code, name, error) for name in named(code)]
    assert preflight(world.inventory(), facts) == ()


# fault: kernel/checks/model_cache.py: return name if REPOSITORY.fullmatch(name) else "MODEL" → return name
@pytest.mark.parametrize(
    ("folder", "model"), [("models--a--b", "a/b"), ("models---i--tmp--x", "MODEL"), ("models----yes", "MODEL")]
)
def test_the_folder_of_a_host_becomes_no_option_of_a_remedy(folder: str, model: str) -> None:
    path = f"/models/hub/{folder}/snapshots/9/"
    odd = hosts(incomplete_files=(path,), broken_symlinks=(path,), without_tokenizer=(path,))
    found = check_all(world.inventory(), odd)
    assert {one.fix.splitlines()[0] for one in found} == {f"vcluster pull {model}"}


# fault: kernel/checks/model_cache.py: "MODEL" if lacking[0] in alone else names[0] → names[0]
# fault: kernel/checks/model_cache.py: - {*held.get(inventory.head_name, ())} →
@pytest.mark.parametrize(
    ("worker", "head", "lines"),
    [
        # What a worker alone shows is its word: by that line it would come to every host.
        ({"aaa--its-own": "1"}, {}, {"gpu1": "MODEL"}),
        ({"aaa--its-own": "1"}, {"meta--llama": "2"}, {"gpu1": "MODEL", "gpu2": "meta/llama"}),
    ],
)
def test_what_one_worker_shows_in_its_cache_is_in_no_line_that_brings_it_to_others(
    worker: dict[str, str], head: dict[str, str], lines: dict[str, str]
) -> None:
    found = check_all(world.inventory(), hosts({"revisions": head}, revisions=worker))
    assert {one.host: one.fix for one in found} == {name: f"vcluster pull {model}" for name, model in lines.items()}


# fault: kernel/checks/model_cache.py: key=lambda model: (model in alone, model) → key=lambda model: model
@pytest.mark.parametrize(("third", "model"), [("aaa--its-own", "aaa/its-own"), ("meta--llama", "meta/llama")])
def test_a_model_of_several_hosts_is_the_one_to_pull(third: str, model: str) -> None:
    facts = {**hosts(revisions={"aaa--its-own": "1", "meta--llama": "2"}), "gpu3": world.host(3)}
    facts["gpu1"] = replace(facts["gpu1"], details=replace(WELL, revisions={}))
    facts["gpu3"] = replace(facts["gpu3"], details=replace(WELL, revisions={third: "2"}))
    found = [one for one in check_all(world.inventory(3), facts) if (one.code, one.host) == ("model-absent", "gpu1")]
    assert [one.fix for one in found] == [f"vcluster pull {model}"]


def test_a_gpu_is_well_whose_program_left_an_xid() -> None:
    """A program that was killed leaves one, and the card is well."""
    of_programs = ("[2.0] NVRM: Xid (PCI:0000:06:00): 31, pid=7", "[3.0] NVRM: Xid (PCI:0000:06:00): 13, pid=8")
    assert list(check_all(world.inventory(), hosts(xids=of_programs))) == []
    lost = "[4.0] NVRM: Xid (PCI:0000:06:00): 79, pid=9, GPU has fallen off the bus."
    (found,) = check_all(world.inventory(), hosts(xids=(*of_programs, lost)))
    assert (found.code, "1 Xid error, the last" in found.message) == ("xid", True)


RDMA = {"hcas": (ACTIVE,), "rdma_devices": FILES, "peermem": True, "acs_enabled": False}


@pytest.mark.parametrize(
    ("odd", "codes"),
    [
        ({"rdma_devices": FILES[1:]}, ["rdma-device-missing"]),
        ({"hcas": (replace(ACTIVE, state="1: DOWN"),)}, ["hca-idle", "hcas-differ"]),
        ({"hcas": (replace(ACTIVE, rate="100 Gb/sec (4X EDR)"),)}, ["hcas-differ"]),
        ({"hcas": ()}, ["hcas-differ"]),
        ({"peermem": False}, ["peermem"]),
        ({"peermem": False, "open_driver": True}, []),
        ({"iommu": "DMA-FQ"}, ["iommu-translates"]),
        ({"iommu": "identity"}, []),
        ({"acs_enabled": True}, ["acs"]),
        ({"docker": replace(ENGINE, rootless=True)}, ["memlock-limited"]),
        ({"hcas": (ROCE,)}, ["hcas-differ", "roce-address-missing"]),
        ({"hcas": (ROCE,), "gids": (GID,)}, ["hcas-differ"]),
    ],
)  # fmt: skip
def test_rdma(odd: dict[str, Any], codes: list[str]) -> None:
    found = check_all(world.inventory(), hosts(RDMA, **odd))
    assert sorted((one.code, one.host) for one in found) == sorted(
        (code, name) for code in codes for name in named(code)
    )


def test_a_folder_of_devices_does_not_count_as_an_adapter() -> None:
    """As on a host with an empty /sys/class/infiniband, whose /dev/infiniband holds something."""
    for devices in (FILES[:1], ("/dev/infiniband/umad0",)):
        assert check_all(world.inventory(), hosts({"rdma_devices": devices})) == ()


TRAIN = GpuProcess(4242, "python", 60_000, "anna", "c0" * 32)


def test_who_holds_the_memory_is_reported() -> None:
    container = Container("c0" * 32, "train", "running", "x", {})
    busy = hosts(gpus=gpus(used_mib=60_000, processes=(TRAIN,)), other_containers=(container,))
    (found,) = check_all(world.inventory(), busy)
    assert found.message == (
        "used by others: GPU 0: 58.6 of 140.4 GiB by python (pid 4242, user anna, container train)"
    )
    look = "on gpu2: ps -o pid,user,lstart,args -p 4242, then end it"
    assert found.fix == f"{look}\nor vcluster serve MODEL -- --gpu-memory-utilization 0.57"


@pytest.mark.parametrize(("used", "processes"), [(60_000, ()), (500, (replace(TRAIN, used_mib=500),))])
def test_who_is_unknown_or_holds_little_is_reported(used: int, processes: tuple[GpuProcess, ...]) -> None:
    (found,) = check_all(world.inventory(), hosts(gpus=gpus(used_mib=used, processes=processes)))
    assert (found.code, "nvidia-smi does not list" in found.message) == ("gpu-busy", not processes)
    assert ("--gpu-memory-utilization" in found.fix) is (used == 60_000)


# fault: kernel/plan/gpus.py: if runs and others: → if False:
def test_another_program_beside_the_cluster_s_node_is_reported() -> None:
    """It held 60 of 80 GB, and a node that ran there hid it."""
    _, facts = world.converged(world.inventory())
    (node,) = facts["gpu2"].containers
    mine = GpuProcess(77, "VLLM::Worker_TP0", 70_000, "root", node.id)
    facts["gpu2"] = replace(facts["gpu2"], gpus=gpus(used_mib=130_000, processes=(mine, TRAIN)))
    (found,) = preflight(world.inventory(), facts)
    assert (found.host, found.severity) == ("gpu2", "warning")
    assert "GPU 0: 58.6 of 140.4 GiB by python (pid 4242, user anna, container c0c0c0c0c0c0)" in found.message


@pytest.mark.parametrize("others", [(), (replace(TRAIN, container=None),)])
def test_memory_that_the_cluster_s_node_holds_is_not_a_finding(others: tuple[GpuProcess, ...]) -> None:
    """Neither is that of a process whose cgroup cannot be read, beside a node that runs: it may be the node's."""
    _, facts = world.converged(world.inventory())
    (node,) = facts["gpu2"].containers
    mine = GpuProcess(77, "VLLM::Worker_TP0", 130_000, "root", node.id)
    facts["gpu2"] = replace(facts["gpu2"], gpus=gpus(used_mib=130_000, processes=(mine, *others)))
    assert preflight(world.inventory(), facts) == ()


@pytest.mark.parametrize(("size", "codes"), [(64 << 20, ["shm-small"]), (1 << 30, [])])
def test_shared_memory_for_two_ranks(size: int, codes: list[str]) -> None:
    assert [one.code for one in preflight(world.inventory(1, shm_size=size), world.hosts(1))] == codes


@pytest.mark.parametrize(("boot", "codes"), [("other", ["shared-block-device"]), ("same", [])])
def test_one_disk_on_two_hosts(boot: str, codes: list[str]) -> None:
    """Hosts that are containers of one machine share its file systems without harm."""
    disk = {"filesystems": (replace(CACHE, uuid="1234-5678"),)}
    facts = hosts({**disk, "boot_id": "same"}, boot_id=boot)
    assert [one.code for one in check_all(world.inventory(), facts)] == codes


def test_an_interface_for_nccl_alone_needs_no_route_to_addresses() -> None:
    words = world.inventory(entries={f"gpu{n}": {"interface": "ib0"} for n in (1, 2)})
    both = {
        name: replace(host, nics=(*host.nics, Nic("ib0", ("10.9.0.1/24",), 1500, "UP")))
        for name, host in hosts().items()
    }
    assert check_all(words, both) == ()


def test_unified_memory_does_not_show_who_uses_it() -> None:
    facts = hosts(gpus=gpus(memory_mib=110_000, used_mib=50_000, unified=True))
    assert check_all(world.inventory(), facts) == ()


def test_drivers_that_differ_name_the_odd_one() -> None:
    facts = {
        f"gpu{n}": replace(world.host(n), gpus=tuple(replace(gpu, driver=version) for gpu in world.host(n).gpus))
        for n, version in ((1, "580.1"), (2, "570.9"), (3, "580.1"))
    }
    (found,) = check_all(world.inventory(3), facts)
    assert (found.code, found.host, "570.9" in found.message, "580.1" in found.fix) == (
        "driver-differs",
        "gpu2",
        True,
        True,
    )


# fault: kernel/checks/finding.py: if second == most: → if False:
def test_of_two_hosts_that_differ_no_setting_of_one_is_printed_for_the_other() -> None:
    """The head shows 68, and a line to paste would set that on the other, which then answers none."""
    small = hosts()
    small["gpu1"] = replace(small["gpu1"], nics=(world.host(1).nics[0], replace(world.host(1).nics[1], mtu=68)))
    for facts in (small, hosts(nics=nic(mtu=9000)), hosts(revisions={"meta--llama": "9999"})):
        found = check_all(world.inventory(), facts)
        assert [one.host for one in found] == ["gpu1", "gpu2"]
        assert all("that of gpu" in one.message for one in found)
        assert not any("mtu 68" in one.fix or "mtu 9000" in one.fix or "--revision" in one.fix for one in found)


# fault: kernel/checks/network.py: if common and int(common) >= MIN_MTU: → if common:
def test_no_line_sets_an_mtu_that_cuts_a_host_off() -> None:
    facts = {
        f"gpu{n}": replace(world.host(n), nics=(world.host(n).nics[0], replace(world.host(n).nics[1], mtu=size)))
        for n, size in ((1, 68), (2, 1500), (3, 68))
    }
    (found,) = check_all(world.inventory(3), facts)
    assert (found.host, "is 1500, that of other hosts 68" in found.message) == ("gpu2", True)
    assert "sudo" not in found.fix


# fault: kernel/checks/image.py: inventory.image, on=host.name) → inventory.image)
def test_an_image_that_must_be_pulled() -> None:
    odd: dict[str, Any] = {"images": (Image("sha256:1", ("other:1",), (), {}),), "image": None}
    found = check_all(world.inventory(), hosts(**odd))
    assert [(one.code, one.error) for one in found] == [("image-absent", False)]
    (fix,) = (one.fix for one in found)
    there = {"gpu1": ["gpu1"], "gpu2": ["gpu2"]}
    assert pasteable(fix, there) == f"ssh gpu2 'docker pull {world.inventory().image}'"  # on the host, not here
    what = "what a container sees, the image's processor and CUDA"
    assert [one.what for one in unseen(world.inventory(), hosts(**odd))] == [what]


# fault: kernel/checks/registry.py: if details.xids is None: → if details.xids == ():
@pytest.mark.parametrize(
    ("odd", "what"),
    [
        ({"xids": None}, "Xid errors"),
        ({"gpu_health": ()}, "the GPUs' health"),
        ({"hostname_addresses": None}, "its hostname's addresses"),
        ({"memory_bytes": 0}, "its memory"),
        ({"docker": DockerFacts(problem="no answer")}, "containers, ports, images and their disk space"),
    ],
)
def test_what_was_not_checked_is_listed(odd: dict[str, Any], what: str) -> None:
    assert [(one.host, one.what) for one in unseen(world.inventory(), hosts(**odd))] == [("gpu2", what)]


# fault: kernel/checks/gpus.py: return number(version.partition(".")[0]) or 0 → return int(version.partition(".")[0])
def test_a_version_of_thousands_of_digits_is_none() -> None:
    """Python makes no number of so many, and an image's variables hold any text."""
    odd: dict[str, Any] = {"image": ImageDetails(world.BASE.id, "amd64", "9" * 5000)}
    assert check_all(world.inventory(), hosts(**odd)) == ()


def test_a_cpu_cluster_is_asked_nothing_about_gpus() -> None:
    facts = {
        name: replace(host, gpus=gpus(mig=True, used_mib=100_000), logical_gpus=2) for name, host in hosts().items()
    }
    facts["gpu1"] = replace(facts["gpu1"], gpus=())
    assert check_all(world.inventory(accelerator="cpu"), facts) == ()


# fault: kernel/checks/model_cache.py: if facts.details and facts.details.revisions: → if facts.details:
def test_a_full_cache_is_measured_where_it_has_a_model() -> None:
    """Where there is none, the folder of the hub need not exist either, and nothing can be removed."""
    larger = "model_cache in the inventory, on a larger disk\nvcluster up"
    full = {"free_bytes": {"/models": 10_000_000}}
    none: dict[str, Any] = {"revisions": {}}
    for more, fix in (({}, f"on gpu2: du -d 1 -h /models/hub\n{larger}"), (none, larger)):
        found = check_all(world.inventory(), hosts(**full, **more))
        assert [one.fix for one in found if one.code == "cache-full"] == [fix]
