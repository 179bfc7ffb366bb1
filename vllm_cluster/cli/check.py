"""`vcluster check`."""

from __future__ import annotations

from typing import Annotated

import typer

from vllm_cluster.cli.options import InventoryPath, Json
from vllm_cluster.cli.session import SETTINGS, Session

EXIT_ERRORS, EXIT_UNREACHABLE = 3, 4


Deep = Annotated[bool, typer.Option("--deep", help="Also run an NCCL all-reduce over all GPUs (up to 90 s).")]


def check(inventory: InventoryPath = None, deep: Deep = False, as_json: Json = False) -> None:
    """Check hosts and the links between them for known problems."""
    with Session(inventory, as_json=as_json) as session:
        loaded = session.load()
        from vllm_cluster.actions import check as check_action
        from vllm_cluster.cli.render.check import report_document, show_report

        report = check_action.check(loaded, session.progress, deep=deep)
        session.show(
            lambda: report_document(report), lambda: show_report(report, color=SETTINGS.color, paste=session.paste)
        )
        if report.failed:
            raise SystemExit(EXIT_UNREACHABLE if report.unreachable else EXIT_ERRORS)
