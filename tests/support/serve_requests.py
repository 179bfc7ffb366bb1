"""Requests to serve, as `vcluster serve` writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_cluster.backends import vllm
from vllm_cluster.core import request


def asked(nodes: Mapping[str, int], tp: int, pp: int, hosts: list[str] | None = None, **more: Any) -> dict[str, Any]:
    """A request as `serve` writes it."""
    model = more.pop("model", "org/llama")
    at: dict[str, Any] = {"name": more.pop("name", "llama"), "host": more.pop("host", "127.0.0.1"), "port": 8000}
    argv = vllm.serve_argv(model, tp=tp, pp=pp, extra=(), **at)
    there = {address: count for address, count in nodes.items() if hosts is None or address in hosts}
    given: dict[str, Any] = {"ranks": vllm.place(there, tp, pp), **({"hosts": hosts} if hosts else {})}
    return request.request(argv, model=model, nodes=nodes, **at, **given, **{"by_default": True, **more})
