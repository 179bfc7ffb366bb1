"""What the head was asked to serve: a file that its node program reads, and whose writers count."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from vllm_cluster.core import request
from vllm_cluster.errors import Replaced
from vllm_cluster.laptop import whoami
from vllm_cluster.run.audit import last_other
from vllm_cluster.run.node_handle import NodeHandle

# Who has just written the request writes the history right after.
AUDIT_LOOKS, AUDIT_POLL = 5, 0.3


def read(node: NodeHandle) -> dict[str, Any] | None:
    """The request; None where there never was one, empty where it cannot be read."""
    raw = node.read(request.FILE)
    try:
        asked = None if raw is None else json.loads(raw)
    except ValueError:
        return {}
    return asked if asked is None or isinstance(asked, dict) else {}


def asked(node: NodeHandle) -> Mapping[str, Any] | None:
    """The model of the request and how it is served; None where it asks for none, or cannot be read."""
    serve = (read(node) or {}).get("serve")
    return serve if isinstance(serve, Mapping) else None


def write(node: NodeHandle, wanted: Mapping[str, Any] | None) -> int:
    """Ask the head to serve this, or nothing; only under the lease. Returns the number of the request."""
    content = request.written(wanted, node.read(request.FILE), whoami())
    node.write(request.FILE, content)
    return request.number(content)


def current_number(node: NodeHandle, number: int, generation: str) -> int:
    """The number that a request has now: it gets another where only what is served in its place has changed.

    Raises:
        Replaced: another one was written since; with who asked for what, and when.
    """
    raw = node.read(request.FILE)
    if raw is None or request.number(raw) <= number:
        return number
    if (request.asked(raw) or {}).get("generation") == generation:
        return request.number(raw)
    other = last_other(node)
    for _ in range(AUDIT_LOOKS):
        if other:
            break
        node.connection.runtime.clock.sleep(AUDIT_POLL)
        other = last_other(node)
    raise Replaced(
        f"{node.host}: serve: superseded by another request: {other or 'the history does not name it'}",
        hint="vcluster status",
    )
