"""`vcluster check`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.terminal.completion import complete_hosts
from vllm_cluster.kernel.terminal.options import InventoryPath, Json
from vllm_cluster.kernel.terminal.session import Session
from vllm_cluster.kernel.terminal.settings import SETTINGS

EXIT_ERRORS, EXIT_UNREACHABLE = 3, 4

Hosts = Annotated[
    list[str] | None,
    typer.Argument(metavar="HOST", help="With --facts: the hosts. Default: all.", autocompletion=complete_hosts),
]
Facts = Annotated[bool, typer.Option("--facts", help="Show what was found on the hosts, and judge nothing.")]
Deep = Annotated[bool, typer.Option("--deep", help="Also run an NCCL all-reduce over all GPUs (up to 90 s).")]


def check(
    hosts: Hosts = None,
    inventory: InventoryPath = None,
    deep: Deep = False,
    facts: Facts = False,
    as_json: Json = False,
) -> None:
    """Check hosts and the links between them for known problems."""
    if facts and deep:
        raise UsageError("--facts and --deep exclude each other", hint="vcluster check --facts\nvcluster check --deep")
    if hosts and not facts:
        raise UsageError("a check is of all hosts: HOST is for --facts", again=("--facts",))
    if facts:
        _show_facts(hosts or (), inventory, as_json=as_json)
        return

    # What it makes on hosts it removes: to its end nothing is changed.
    with Session(inventory, as_json=as_json, changes=True, after_plan=True) as session:
        loaded = session.load()
        from vllm_cluster.features.check import action as check_action
        from vllm_cluster.features.check.render import report_document, show_report

        report = check_action.check_hosts(loaded, session.progress, deep=deep)
        session.show(
            lambda: report_document(report, session.paste),
            lambda: show_report(report, session.paste, color=SETTINGS.color),
        )
        if report.failed:
            raise SystemExit(EXIT_UNREACHABLE if report.unreachable else EXIT_ERRORS)


def _show_facts(hosts: Sequence[str], inventory: Path | None, *, as_json: bool) -> None:
    with Session(inventory, as_json=as_json) as session:
        loaded = session.load()
        from vllm_cluster.features.check import facts as facts_action
        from vllm_cluster.features.check.render_facts import facts_document, show_facts

        found = facts_action.facts(loaded, hosts, session.progress)
        session.show(lambda: facts_document(found), lambda: show_facts(found, color=SETTINGS.color))
