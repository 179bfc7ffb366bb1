"""Which adapters NCCL gets: by rate, kind and nearness to the GPUs that are used; and the RoCE address."""

from __future__ import annotations

from dataclasses import replace

from tests.support import world
from vllm_cluster.kernel.checks.registry import check_all
from vllm_cluster.kernel.facts.host_facts import Gid, Gpu, Hca, HostFacts
from vllm_cluster.kernel.plan.desired import desired, hcas

RAIL = "400 Gb/sec (4X NDR)"


def port(n: int, at: str, *, rate: str = RAIL, kind: str = "InfiniBand", numa: int = 0) -> Hca:
    """An ACTIVE port below a bridge."""
    path = f"{at}/0000:{n:02x}:00.1"
    return Hca(f"mlx5_{n}", 1, "4: ACTIVE", kind, rate, (f"/dev/infiniband/uverbs{n}",), numa=numa, pci_path=path)


def gpu(n: int, at: str, numa: int = 0) -> Gpu:
    """A GPU below a bridge."""
    return Gpu(n, f"GPU-0000000{n}", "NVIDIA H200", 143_771, numa=numa, pci_path=f"{at}/0000:{n:02x}:00.0")


# Four GPUs, each beside its own 400G rail; beside them 400G and 200G for storage, and 25G Ethernet for people.
BRIDGES = [f"pci0000:{n}0/0000:{n}0:01.0" for n in range(4)]
RAILS = tuple(port(n, BRIDGES[n], numa=n // 2) for n in range(4))
STORAGE = (port(4, "pci0000:a0/0000:a0:01.0", numa=1), port(5, "pci0000:a0/0000:a0:02.0", rate="200 Gb/sec (4X HDR)"))
PEOPLE = port(6, "pci0000:b0/0000:b0:01.0", rate="25 Gb/sec (1X EDR)", kind="Ethernet")
FULL = replace(
    world.host(1),
    gpus=tuple(gpu(n, BRIDGES[n], n // 2) for n in range(4)),
    hcas=(PEOPLE, *STORAGE, *RAILS),
    rdma_devices=("/dev/infiniband/rdma_cm", *(f"/dev/infiniband/uverbs{n}" for n in range(7))),
)


def names(facts: HostFacts, **host: object) -> list[str]:
    """The devices of a host's node."""
    return [found.device for found in hcas(world.inventory(1, entries={"gpu1": host}).hosts["gpu1"], facts)]


# fault: kernel/plan/adapters.py: _near(tuple(port for port in active if _rank(port) == _rank(best)), gpus) → active
def test_each_gpu_brings_its_own_rail_and_storage_keeps_its_adapters() -> None:
    assert names(FULL) == ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"]
    assert names(FULL, gpus=[1, 3]) == ["mlx5_1", "mlx5_3"]
    assert names(FULL, hcas=["mlx5_6", "mlx5_4"]) == ["mlx5_6", "mlx5_4"]
    assert names(FULL, hcas=[]) == []


def test_without_a_known_distance_the_rate_decides() -> None:
    unknown = replace(FULL, gpus=tuple(replace(one, pci_path="", numa=None) for one in FULL.gpus))
    assert names(unknown) == ["mlx5_4", "mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"]
    assert names(replace(FULL, hcas=(PEOPLE,))) == ["mlx5_6"]


def test_the_kind_breaks_a_tie_of_rates() -> None:
    roce = port(8, BRIDGES[0], kind="Ethernet")
    assert names(replace(FULL, hcas=(roce, RAILS[0]))) == ["mlx5_0"]


def test_what_is_left_out_is_listed_with_the_reason() -> None:
    found = {one.code: one for one in check_all(world.inventory(1), {"gpu1": FULL})}
    assert found["hca-excluded"].message.endswith(
        "mlx5_6 (25 Gb/s, slower); mlx5_4 (farther from the GPUs); mlx5_5 (200 Gb/s, slower)"
    )
    assert not found["hca-excluded"].error
    named = world.inventory(1, entries={"gpu1": {"hcas": ["mlx5_0"]}})
    assert "hca-excluded" not in {one.code for one in check_all(named, {"gpu1": FULL})}


def _gid(n: int, index: int, *, kind: str = "RoCE v2", address: str = "0000:0000:0000:0000:0000:ffff:0a00:0001") -> Gid:
    return Gid(f"mlx5_{n}", 1, index, address, kind)


def test_roce_gets_the_number_of_its_ipv4_address_where_one_fits_all() -> None:
    ports = tuple(replace(one, link_layer="Ethernet") for one in RAILS[:2])
    v1 = [_gid(n, 2, kind="IB/RoCE v1") for n in (0, 1)]
    six = [_gid(n, 1, address="fd00:0000:0000:0000:0000:0000:0000:0001") for n in (0, 1)]

    def index(*gids: Gid, ports: tuple[Hca, ...] = ports, **words: object) -> str | None:
        facts = replace(FULL, gpus=FULL.gpus[:2], hcas=ports, gids=tuple(gids))
        (head,) = desired(world.inventory(1, **words), {"gpu1": facts}, world.INPUTS)
        return dict(head.environment).get("NCCL_IB_GID_INDEX")

    assert index(*v1, *six, _gid(0, 3), _gid(1, 3)) == "3"
    assert index(*v1, *six, _gid(0, 3), _gid(1, 5)) is None  # NCCL finds out by itself, each port for itself
    assert index(*v1, *six) is None
    assert index(_gid(0, 3), _gid(1, 3), ports=RAILS[:2]) is None
    assert index(_gid(0, 3), _gid(1, 3), environment={"NCCL_IB_GID_INDEX": "7"}) == "7"
