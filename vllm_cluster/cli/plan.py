"""`vcluster plan`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from vllm_cluster.cli.options import InventoryPath, Json
from vllm_cluster.cli.session import SETTINGS, Session

EXIT_CHANGES = 10


def plan(
    inventory: InventoryPath = None,
    as_json: Json = False,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 10 where there is something to do.")
    ] = False,
) -> None:
    """Show what up would change."""
    with Session(inventory, as_json=as_json) as session:
        show(session, exit_code=exit_code)


def show(session: Session, *, exit_code: bool, forget: Sequence[str] = (), former: Sequence[str] = ()) -> None:
    """Make the plan and write it."""
    loaded = session.load()
    import json

    from vllm_cluster.actions import up as action
    from vllm_cluster.cli.render.plan import plan_document, show_plan
    from vllm_cluster.core.members import Named

    made = action.plan(loaded, session.progress, named=Named(forget, former))
    session.finish()
    if session.as_json:
        print(json.dumps({"v": 1, **plan_document(made.whole()), "stops": made.stops.consequence or None}))
    elif made.plan:
        lost = tuple(made.lost.failures) if made.lost else ()
        stops = made.stops.consequence
        show_plan(made.plan, color=SETTINGS.color, verbosity=SETTINGS.verbosity, lost=lost, stops=stops)
    if not made.whole().empty and exit_code:
        raise SystemExit(EXIT_CHANGES)
