"""What the head was asked to serve: a file that its node program reads, and whose writers count."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from vllm_cluster.core.desired import STATE_FOLDER
from vllm_cluster.core.errors import Replaced
from vllm_cluster.engine import request
from vllm_cluster.laptop import whoami
from vllm_cluster.run.audit import last_other
from vllm_cluster.run.fleet import Link

# Who has just written the request writes the history right after.
AUDIT_LOOKS, AUDIT_POLL = 5, 0.3


def read(head: Link, cluster: str) -> dict[str, Any] | None:
    """The request; None where there never was one, empty where it cannot be read."""
    raw = _file(head, cluster)
    try:
        asked = None if raw is None else json.loads(raw)
    except ValueError:
        return {}
    return asked if asked is None or isinstance(asked, dict) else {}


def write(head: Link, cluster: str, wanted: Mapping[str, Any] | None) -> int:
    """Ask the head to serve this, or nothing; only under the lease. Returns the number of the request."""
    content = request.written(wanted, _file(head, cluster), whoami())
    head.engine.put_files(f"vcluster-{cluster}", STATE_FOLDER, {request.FILE: (content, 0o600)})
    return request.number(content)


def _file(head: Link, cluster: str) -> bytes | None:
    return head.engine.read_file(f"vcluster-{cluster}", f"{STATE_FOLDER}/{request.FILE}")


def refuse_replaced(head: Link, cluster: str, number: int) -> None:
    """Do nothing while the request is still the one of this number.

    Raises:
        Replaced: it is another one; with who asked for what, and when.
    """
    raw = _file(head, cluster)
    if raw is None or request.number(raw) <= number:
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
