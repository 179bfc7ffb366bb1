"""The report of `check`, as lines for people and as a document for programs."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from vllm_cluster.features.check.action import CheckReport
from vllm_cluster.features.check.allreduce import binary
from vllm_cluster.features.check.measure import AllReduceReport
from vllm_cluster.kernel.checks.codes import CODES
from vllm_cluster.kernel.checks.finding import merged
from vllm_cluster.kernel.explain.catalogue import CHECKED
from vllm_cluster.kernel.shell_line import Paste
from vllm_cluster.kernel.terminal.output import DIM, RED, YELLOW, out, styles, to_paste, with_ends
from vllm_cluster.kernel.terminal.printable import plain
from vllm_cluster.kernel.text import by_hosts, count


def report_document(report: CheckReport, paste: Paste) -> dict[str, Any]:
    """The report as JSON would have it."""
    return {
        "v": 1,
        "ok": not report.failed,
        "findings": [
            {
                **asdict(one),
                "fix": paste(one.fix),
                "why": CODES.get(one.code, ""),
                "failures": CHECKED.get(one.code, []),
            }
            for one in report.findings
        ],
        "not_checked": [asdict(one) for one in report.not_checked],
        "hosts": list(report.hosts),
        "seconds": round(report.seconds, 3),
        "allreduce": _allreduce_document(report.allreduce),
    }


def _allreduce_document(tried: AllReduceReport | None) -> dict[str, Any] | None:
    if tried is None or not tried.world_size:
        return None
    document = asdict(tried)
    for key in ("findings", "words"):  # they are among the others
        del document[key]
    return document


def show_report(report: CheckReport, paste: Paste, *, color: str) -> None:
    """Write the report on standard output: each finding, then what was skipped, and the counts."""
    red, yellow, dim, end = styles(color, RED, YELLOW, DIM)
    same = merged(report.findings)
    for finding in same:
        level, tone = ("error", red) if finding.error else ("warning", yellow)
        text = f" {plain(finding.code)}  {plain(finding.host)}: {plain(finding.message)}"
        out(tone, level, end, text)
        why = CODES.get(finding.code, "")
        out(
            *with_ends([f"  why: {why}"] if why else []),
            *with_ends(to_paste("  fix: ", line, plain) for line in paste(finding.fix).each),
            end="",
        )
    if report.findings:
        out()
    for one, hosts in by_hosts((replace(one, host=""), one.host) for one in report.not_checked).items():
        out(dim, f"skipped on {plain(hosts)}: {plain(one.what)} ({plain(one.reason)})", end)
    if report.allreduce and report.allreduce.rows:
        _show_allreduce(report.allreduce)
    errors = sum(finding.error for finding in same)
    found = (
        f"{count(errors, 'error')}, {count(len(same) - errors, 'warning')}" if report.findings else "no problems found"
    )
    out(f"{count(len(report.hosts), 'host')} checked in {report.seconds:.1f} s: {found}")


def _show_allreduce(tried: AllReduceReport) -> None:
    """The figures: one line a size."""
    way = ", ".join((*tried.nccl_transport.kinds, *tried.nccl_transport.interfaces, *tried.nccl_transport.hcas))
    out(f"all-reduce over {tried.world_size} ranks by {plain(way)}, torch {plain(tried.torch)}:")
    for row in tried.rows:
        out(f"  {binary(row.bytes):>8}  {row.seconds * 1e3:9.3f} ms  {row.bus_gb_per_s:8.3f} GB/s")
    if tried.expected_gb_per_s:
        out(f"  the slowest host's link should give {tried.expected_gb_per_s:.1f} GB/s")
