"""What the head was asked to serve: a file that its node program reads, and whose writers count."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from vllm_cluster.core.desired import STATE_FOLDER
from vllm_cluster.core.errors import Replaced
from vllm_cluster.run.audit import last_other
from vllm_cluster.run.fleet import Link

FILE = "wanted.json"
# Who has just written the request writes the history right after.
AUDIT_LOOKS, AUDIT_POLL = 5, 0.3


def read(head: Link, cluster: str) -> dict[str, Any] | None:
    """The request; None where there never was one, empty where it cannot be read."""
    raw = head.engine.read_file(f"vcluster-{cluster}", f"{STATE_FOLDER}/{FILE}")
    try:
        request = None if raw is None else json.loads(raw)
    except ValueError:
        return {}
    return request if request is None or isinstance(request, dict) else {}


def write(head: Link, cluster: str, wanted: Mapping[str, Any] | None) -> None:
    """Ask the head to serve this, or nothing; only under the lease.

    Each writer counts one up: the node program refuses what a laptop writes that has lost the lease meanwhile.
    """
    before = (read(head, cluster) or {}).get("epoch")
    epoch = (before if isinstance(before, int) else 0) + 1
    content = json.dumps({"v": 1, "epoch": epoch, "serve": wanted}).encode()
    head.engine.put_files(f"vcluster-{cluster}", STATE_FOLDER, {FILE: (content, 0o600)})


def refuse_replaced(head: Link, cluster: str, generation: str) -> None:
    """Do nothing while the request is still the one of this generation.

    Raises:
        Replaced: it is another one; with who asked for what, and when.
    """
    request = read(head, cluster)
    serve = request.get("serve") if request else None
    if request is None or (isinstance(serve, Mapping) and serve.get("generation") == generation):
        return
    other = last_other(head, cluster)
    for _ in range(AUDIT_LOOKS):
        if other:
            break
        head.runtime.clock.sleep(AUDIT_POLL)
        other = last_other(head, cluster)
    raise Replaced(
        f"{head.name}: serve: another request took its place: {other or 'the history does not say whose'}",
        hint="vcluster status",
    )
