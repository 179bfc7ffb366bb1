"""The report of `check`, for people and programs."""

from __future__ import annotations

import pytest

from vllm_cluster.features.check import measure as allreduce
from vllm_cluster.features.check.action import CheckReport
from vllm_cluster.features.check.allreduce import AllReduceTime
from vllm_cluster.features.check.render import report_document, show_report
from vllm_cluster.kernel.backends.nccl import NcclTransport
from vllm_cluster.kernel.checks.finding import Finding
from vllm_cluster.kernel.checks.registry import NotChecked
from vllm_cluster.kernel.shell_line import Pasted

REPORT = CheckReport(
    (
        Finding("port-in-use", "gpu1", "port 6379 is taken", "end it"),
        Finding("clock-skew", "gpu1", "it is late", "set it", severity="warning"),
        Finding("clock-skew", "gpu2", "it is late", "set it", severity="warning"),
    ),
    (NotChecked("gpu1", "Xid errors", "forbidden"), NotChecked("gpu2", "Xid errors", "forbidden")),
    ("gpu1", "gpu2"),
    1.23,
)


def test_a_finding_of_several_hosts_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    show_report(REPORT, Pasted, color="never")
    assert capsys.readouterr().out.splitlines() == [
        "error port-in-use  gpu1: port 6379 is taken",
        "  why: Ray, or the endpoint, could not listen.",
        "  fix: end it",
        "warning clock-skew  gpu1, gpu2: it is late",
        "  why: Tokens and TLS fail, and log lines of several hosts cannot be ordered.",
        "  fix: set it",
        "",
        "skipped on gpu1, gpu2: Xid errors (forbidden)",
        "2 hosts checked in 1.2 s: 1 error, 1 warning",
    ]


def test_programs_get_every_host_and_the_reasons() -> None:
    document = report_document(REPORT, Pasted)
    assert document.keys() == {"v", "ok", "findings", "not_checked", "hosts", "seconds", "allreduce"}
    assert document["allreduce"] is None
    assert document["ok"] is False
    assert [(row["code"], row["host"], row["failures"]) for row in document["findings"]] == [
        ("port-in-use", "gpu1", ["peer-unanswered", "dashboard-open", "port-taken"]),
        ("clock-skew", "gpu1", ["clock-wrong", "certificate-expired"]),
        ("clock-skew", "gpu2", ["clock-wrong", "certificate-expired"]),
    ]


def test_no_finding_prints_a_result_too(capsys: pytest.CaptureFixture[str]) -> None:
    show_report(CheckReport((), (), ("gpu1",), 0.5), Pasted, color="never")
    assert capsys.readouterr().out == "1 host checked in 0.5 s: no problems found\n"


def test_what_all_ranks_did_together(capsys: pytest.CaptureFixture[str]) -> None:
    way = NcclTransport(("NET/IB/GDRDMA",), ("mlx5_0:1",))
    tried = allreduce.AllReduceReport(
        (), (AllReduceTime(1 << 10, 4e-5, 0.03), AllReduceTime(256 << 20, 1e-3, 402.5)), way, 16, torch="2.14.0"
    )
    report = CheckReport((), (), ("gpu1", "gpu2"), 9.0, tried)
    show_report(report, Pasted, color="never")
    assert capsys.readouterr().out.splitlines()[:3] == [
        "all-reduce over 16 ranks by NET/IB/GDRDMA, mlx5_0:1, torch 2.14.0:",
        "     1 KiB      0.040 ms     0.030 GB/s",
        "   256 MiB      1.000 ms   402.500 GB/s",
    ]
    document = report_document(report, Pasted)["allreduce"]
    assert (document["world_size"], document["rows"][1]["bus_gb_per_s"]) == (16, 402.5)
    assert "findings" not in document
