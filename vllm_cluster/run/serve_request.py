"""What the head was asked to serve: a file that its node program reads, and whose writers count."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from vllm_cluster.core import request
from vllm_cluster.laptop import whoami
from vllm_cluster.run.node_handle import NodeHandle


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
