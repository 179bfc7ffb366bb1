"""The state of a cluster, as a table for people and as a document for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from vllm_cluster.actions.status import ClusterStatus
from vllm_cluster.cli.render.text import plain, wants_color


def status_document(status: ClusterStatus) -> dict[str, Any]:
    """The status as JSON would have it."""
    serving = status.head.serve if status.head else None
    return {
        "v": 1,
        "cluster": status.cluster,
        "id": status.id,
        "up": status.up,
        "hosts": [asdict(host) for host in status.hosts],
        "serving": asdict(serving) if serving else None,
        "unreachable": list(status.unreachable),
    }


def show_status(status: ClusterStatus, *, color: str) -> None:
    """Write the status on standard output."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(no_color=not wants_color(color, stdout=True), highlight=False, soft_wrap=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("host", "address", "role", "state", "container", "GPUs in Ray", "problem"):
        table.add_column(title, overflow="fold")
    for host in status.hosts:
        good = host.state == "running" and host.counted == host.gpus
        cells = [host.host, host.address, host.role, host.state, host.container, f"{host.counted}/{host.gpus}"]
        table.add_row(*(Text(plain(cell)) for cell in cells), Text(plain(host.problem)), style="" if good else "yellow")
    console.print(table)
    known = f" (id {status.id})" if status.id else ""
    counted, total = sum(h.counted for h in status.hosts), sum(h.gpus for h in status.hosts)
    console.print(Text(f"{status.cluster} is {'up' if status.up else 'not up'}: {counted}/{total} GPUs{known}"))
    serving = status.head.serve if status.head else None
    if serving is None:
        console.print("nothing is served")
        return
    where = f"at http://{serving.host}:{serving.port}/v1" if serving.phase == "ready" else serving.detail
    console.print(Text(plain(f"{serving.name}: {serving.phase} {where}".strip())))
    if serving.first_failure:
        console.print(Text(plain(f"first failure: {serving.first_failure.what}"), style="yellow"))
