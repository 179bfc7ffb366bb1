"""`vcluster bundle`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vllm_cluster.cli.options import InventoryPath, Json
from vllm_cluster.cli.session import Session


def bundle(
    inventory: InventoryPath = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="The file to write. Default: a name with cluster and time."
        ),
    ] = None,
    anonymous: Annotated[
        bool, typer.Option("--anonymous", help="Also replace addresses, host names, users, proxies, images and paths.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Pack logs, facts, plan and versions for a report."""
    with Session(inventory, as_json=as_json) as session:
        loaded = session.load()
        from vllm_cluster.actions.bundle import bundle as bundle_action
        from vllm_cluster.cli.render.text import plain
        from vllm_cluster.errors import combine
        from vllm_cluster.text import count

        path, packed, failures = bundle_action(loaded, session.progress, output=output, anonymous=anonymous)
        missing = {host: error.message for host, error in failures.items()}
        lines = [f"  {size:>9}  {name}" for name, size in packed.items()]
        lines += [f"Nothing of {host} is in it" for host in failures]
        files = count(len(packed), "file")
        lines.append(f"Wrote {path} ({files}); known secrets are redacted, review it before you share it")
        session.show(
            lambda: {"v": 1, "file": str(path), "packed": packed, "unreachable": missing},
            lambda: print(*map(plain, lines), sep="\n"),
        )
        if failures:
            raise combine(failures).with_hosts(loaded.hosts)
