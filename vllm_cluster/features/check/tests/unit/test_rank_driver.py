"""Trials among made-up ranks: what is started, what is reported, and that every one of them ends."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.support import world
from vllm_cluster.features.check import measure as module
from vllm_cluster.features.check.measure import AllReduceReport, run_allreduce
from vllm_cluster.features.check.rank_driver import MAX_WAITING, RankDriver, TrialLimits
from vllm_cluster.features.check.tests.unit.ranks import Ranks, Stream
from vllm_cluster.kernel.events import Event
from vllm_cluster.kernel.facts.host_facts import Hca

HCA = Hca("mlx5_0", 1, "4: ACTIVE", "InfiniBand", "400 Gb/sec (4X NDR)", ("/dev/infiniband/uverbs0",))


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """What hangs is given up after a moment."""
    monkeypatch.setattr(module, "WHOLE", {"nvidia": TrialLimits(20.0, 0.5, 1.0)})
    monkeypatch.setattr(module, "PART", {"nvidia": TrialLimits(5.0, 0.5, 1.0)})


def run(ranks: Ranks, hosts: int, **facts: Any) -> tuple[AllReduceReport, list[Event]]:
    """The collective on hosts of two GPUs each; no rank continues, and everything that was made is removed."""
    inventory, events = world.inventory(hosts), list[Event]()
    found = {name: replace(host, **facts) for name, host in world.hosts(hosts).items()}
    with ranks.fleet(inventory) as fleet:
        report = run_allreduce(fleet, inventory, found, events.append)
    assert not any(ranks.running.values())
    assert sorted(ranks.removed) == sorted(ranks.bodies)
    return report, events


def works(_hosts: frozenset[str], _environment: Mapping[str, str]) -> str:
    return "works"


def test_sound_ranks_have_figures_and_no_findings() -> None:
    report, events = run(Ranks(works, bus=lambda _: 11.0), 2)
    assert report.findings == ()
    assert (report.world_size, len(report.rows), report.torch, report.expected_gb_per_s) == (4, 5, "2.11.0", 12.5)
    assert report.rows[-1].bus_gb_per_s == pytest.approx(11.0)
    assert [event.data["bytes"] for event in events if "bytes" in event.data] == [row.bytes for row in report.rows]


def test_the_container_is_the_nodes_own_with_nothing_that_stays() -> None:
    ranks = Ranks(works)
    run(ranks, 2, hcas=(HCA,))
    for name, body in ranks.bodies.items():
        host = body["HostConfig"]
        assert name.startswith("vcluster-lab-ranks-")
        assert body["Labels"] == {"io.vcluster.cluster": "lab"}
        assert body["Image"] == world.ENGINE.id
        assert {"NCCL_SOCKET_IFNAME==eth1", "NCCL_IB_HCA==mlx5_0:1"} <= set(body["Env"])
        assert host["DeviceRequests"] and "/dev/infiniband/uverbs0" in {d["PathOnHost"] for d in host["Devices"]}
        assert (host["AutoRemove"], host["RestartPolicy"], host["Binds"], host["Mounts"]) == (
            True,
            {"Name": "no"},
            [],
            [],
        )
        assert (body["OpenStdin"], body["StdinOnce"]) == (True, True)


@pytest.mark.parametrize("how", [pytest.param("hangs", marks=pytest.mark.slow), "fails"])
@pytest.mark.parametrize("bad", ["gpu1", "gpu3"])
def test_a_host_that_works_with_no_other_is_reported(how: str, bad: str) -> None:
    report, _ = run(Ranks(lambda hosts, _: how if bad in hosts and len(hosts) > 1 else "works"), 4)
    assert [(found.code, found.host) for found in report.findings] == [("allreduce-host", bad)]


@pytest.mark.slow
def test_a_host_whose_own_ranks_hang_is_reported_with_what_helps() -> None:
    def fate(hosts: frozenset[str], environment: Mapping[str, str]) -> str:
        return "hangs" if "gpu2" in hosts and "NCCL_P2P_DISABLE" not in environment else "works"

    ranks = Ranks(fate)
    report, _ = run(ranks, 3)
    (found,) = report.findings
    assert (found.code, found.host) == ("allreduce-host", "gpu2")
    pairs = [hosts for trial in ranks.here.values() if len(hosts := set(trial.values())) == 2]
    assert pairs == [{"gpu1", "gpu3"}]
    assert found.fix.startswith(
        'with NCCL_P2P_DISABLE=1 it works: in the inventory, environment: {NCCL_P2P_DISABLE: "1"}'
    )


@pytest.mark.slow
def test_a_link_is_reported_by_both_its_ends() -> None:
    bad = {"gpu1", "gpu2"}
    report, _ = run(Ranks(lambda hosts, _: "hangs" if hosts == bad or len(hosts) > 2 else "works"), 4)
    (found,) = report.findings
    assert (found.code, found.error) == ("allreduce-link", True)
    assert found.message.startswith(
        ("gpu1 ↔ gpu2: no rank got through 1 KiB", "gpu2 ↔ gpu1: no rank got through 1 KiB")
    )


def test_a_lone_host_is_tried_too() -> None:
    assert run(Ranks(works), 1)[0].findings == ()
    report, _ = run(Ranks(lambda *_: "hangs"), 1)
    assert [(found.code, found.host) for found in report.findings] == [("allreduce-host", "gpu1")]


def test_two_hosts_of_which_each_works_alone_have_their_link_blamed() -> None:
    report, _ = run(Ranks(lambda hosts, _: "hangs" if len(hosts) > 1 else "works"), 2)
    (found,) = report.findings
    assert found.code == "allreduce-link"
    assert "each alone works" in found.message


def test_what_fails_only_once_blames_no_link() -> None:
    fates = iter(["fails"])
    report, _ = run(Ranks(lambda *_: next(fates, "works")), 2)
    (found,) = report.findings
    assert found.code == "allreduce-together"
    assert found.message.endswith("2 tried alone and 1 tried in pairs work")
    assert "failed: unhandled system error" in found.message


@pytest.mark.slow
def test_all_together_fail_and_no_pair_does() -> None:
    report, _ = run(Ranks(lambda hosts, _: "hangs" if len(hosts) > 2 else "works"), 3)
    (found,) = report.findings
    assert found.code == "allreduce-together"
    assert "3 tried in pairs work" in found.message


@pytest.mark.slow
def test_thirty_two_hosts_are_bisected_in_a_few_rounds() -> None:
    began = time.monotonic()
    ranks = Ranks(lambda hosts, _: "hangs" if "gpu17" in hosts and len(hosts) > 1 else "works")
    report, _ = run(ranks, 32)
    assert [(found.code, found.host) for found in report.findings] == [("allreduce-host", "gpu17")]
    assert time.monotonic() - began < 30
    assert len(ranks.here) < 1 + 32 + 3 * 16


@pytest.mark.parametrize(("hcas", "expected"), [((), 12.5), ((HCA,), 50.0)])
def test_what_a_link_should_give_is_its_adapters_rate_else_its_interfaces(hcas: Any, expected: float) -> None:
    report, _ = run(Ranks(works, bus=lambda _: expected / 2 + 1), 2, hcas=hcas)
    assert (report.expected_gb_per_s, report.findings) == (expected, ())
    slow, _ = run(Ranks(works, bus=lambda _: expected / 2 - 1), 2, hcas=hcas)
    assert [found.code for found in slow.findings] == ["allreduce-slow"]


def test_the_slow_link_among_fast_ones_is_reported() -> None:
    def bus(hosts: frozenset[str]) -> float:
        return 1.0 if {"gpu2", "gpu3"} <= hosts else 12.0

    report, _ = run(Ranks(works, bus=bus), 4)
    (found,) = report.findings
    assert found.code == "allreduce-slow"
    assert "gpu2 ↔ gpu3" in found.message or "gpu3 ↔ gpu2" in found.message


def test_the_way_that_nccl_chose_is_read_from_its_log() -> None:
    log = ["NCCL INFO Channel : 1[1] -> 2[0] [send] via NET/Socket/0"]
    report, _ = run(Ranks(works, bus=lambda _: 40.0, log=log), 2, hcas=(HCA,))
    assert report.nccl_transport.kinds == ("NET/Socket",)
    assert [found.code for found in report.findings] == ["allreduce-socket"]


def test_a_host_without_the_image_is_reported_before_any_rank_runs() -> None:
    ranks = Ranks(works)
    report, _ = run(ranks, 2, images=())
    assert [(found.code, found.host) for found in report.findings] == [
        ("allreduce-skipped", "gpu1"),
        ("allreduce-skipped", "gpu2"),
    ]
    assert ranks.here == {}


def test_a_host_that_goes_away_in_the_middle_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(lambda hosts, _: "hangs" if len(hosts) > 1 else "works")
    taken = Stream.sendall

    def sendall(stream: Stream, data: bytes) -> None:
        if stream is ranks.streams["gpu2"]:
            stream.close()
        else:
            taken(stream, data)

    monkeypatch.setattr(Stream, "sendall", sendall)
    report, _ = run(ranks, 2)
    assert report.findings[0].host == "gpu2"
    assert "the container went away" in report.findings[0].message


# fault: features/check/rank_driver.py: lambda: queue.Queue(MAX_WAITING) → queue.Queue
def test_of_what_hosts_print_without_end_little_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    drivers = list[RankDriver]()
    made = RankDriver.__post_init__

    def begin(driver: RankDriver) -> None:
        drivers.append(driver)
        made(driver)

    monkeypatch.setattr(RankDriver, "__post_init__", begin)
    monkeypatch.setattr(RankDriver, "_take", lambda *_: time.sleep(0.05))
    monkeypatch.setattr(Stream, "recv", lambda stream, _: stream.sent.get_nowait() + b"\n" + b"{}\n" * 2 * MAX_WAITING)
    run(Ranks(works), 2)
    assert drivers[0]._messages.qsize() <= MAX_WAITING
