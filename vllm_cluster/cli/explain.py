"""`vcluster explain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vllm_cluster.cli.options import InventoryPath, Json
from vllm_cluster.cli.session import SETTINGS, Session

EXIT_UNKNOWN = 1
EXIT_UNREACHABLE = 4


def explain(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE",
            help="Logs, also gzipped, or folders of them; - is standard input. Default: those of the cluster.",
        ),
    ] = None,
    inventory: InventoryPath = None,
    as_json: Json = False,
) -> None:
    """Name the first cause of a failure from logs."""
    with Session(inventory, as_json=as_json) as session:
        from vllm_cluster.actions import explain as explain_action
        from vllm_cluster.cli.render.explain import explain_document, show_explained
        from vllm_cluster.events import Event

        if files:
            # Standard input ends once.
            verdict = explain_action.of_files(list(dict.fromkeys(files)), session.progress)
            found = explain_action.Explanation(verdict, {})
        else:
            found = explain_action.of_cluster(session.load(), session.progress)
        for host, error in found.failures.items():
            session.progress(Event("failed", error.message, host))
        session.show(
            lambda: explain_document(found.verdict, found.failures, found.request, found.restarts),
            lambda: show_explained(found.verdict, color=SETTINGS.color, request=found.request, restarts=found.restarts),
        )
        if found.verdict.result in ("unknown", "symptom"):
            raise SystemExit(EXIT_UNKNOWN)
        if found.verdict.result == "nothing" and found.failures:
            raise SystemExit(EXIT_UNREACHABLE)
