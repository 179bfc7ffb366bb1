"""`vcluster dashboard`."""

from __future__ import annotations

from typing import Annotated

import typer

from vllm_cluster.kernel.terminal.options import InventoryPath, Json
from vllm_cluster.kernel.terminal.session import Session

Port = Annotated[
    int, typer.Option("--port", "-p", metavar="PORT", min=0, max=65535, help="The port on this machine; 0: a free one.")
]


def dashboard(inventory: InventoryPath = None, port: Port = 0, as_json: Json = False) -> None:
    """Show the cluster as a page in the browser until Ctrl-C."""
    with Session(inventory, as_json=as_json) as session:
        loaded = session.load()
        from vllm_cluster.features.dashboard.render import DashboardFeed
        from vllm_cluster.kernel.events import Event
        from vllm_cluster.serving.status.watch import dashboard as dashboard_action

        feed = DashboardFeed(session.paste)

        def opened(url: str, number: int) -> None:
            text = f"{url} shows {loaded.cluster} to this machine until Ctrl-C"
            session.emit(Event("result", text, data={"url": url, "port": number}))
            session.finish()

        dashboard_action(loaded, feed.show, {"": feed.page, "data": feed.data}, opened, port=port)
