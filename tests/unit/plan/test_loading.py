"""How the weights are read, by where they lie."""

from __future__ import annotations

import pytest

from vllm_cluster.kernel.plan.loading import Loading, WeightsPlace, choose_loading

GB = 10**9


def choose(size: int | None, **kinds: tuple[str, int | None]) -> Loading | None:
    return choose_loading({host: WeightsPlace(*place) for host, place in kinds.items()}, size)


def test_a_local_disk_gets_vllms_default() -> None:
    chosen = choose(800 * GB, gpu1=("ext4", GB), gpu2=("xfs", None))
    assert chosen == Loading((), "weights on local disks (ext4, xfs): vLLM maps them into memory")


@pytest.mark.parametrize(
    ("memory", "flag", "why"),
    [(100 * GB, "prefetch", "they fit into memory"), (99 * GB, "eager", "90 GB do not fit into 99 GB of memory")],
)
def test_the_network_is_read_ahead_where_the_weights_fit(memory: int, flag: str, why: str) -> None:
    chosen = choose(90 * GB, gpu1=("ceph", memory), gpu2=("ceph", 2 * memory), gpu3=("ext4", GB))
    assert chosen is not None
    assert chosen.flags == (f"--safetensors-load-strategy={flag}",)
    assert why in chosen.reason
    assert "gpu1, gpu2: ceph" in chosen.reason


def test_nothing_is_chosen_where_too_little_is_known() -> None:
    assert choose(GB) is None
    assert choose(GB, gpu1=("", GB)) is None
    assert choose(None, gpu1=("nfs", GB)) is None
    assert choose(GB, gpu1=("nfs", None)) is None
