"""The ways to join hosts into one engine, and vLLM's own command line."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, cast, get_args

from vllm_cluster.kernel.backends import ray
from vllm_cluster.kernel.backends.seam import Backend
from vllm_cluster.wire.backends import BackendName

if TYPE_CHECKING:
    from vllm_cluster.kernel.inventory.model import Inventory

BACKENDS: Mapping[BackendName, Backend] = {
    name: cast("Backend", import_module(f"{__name__}.{name}")) for name in get_args(BackendName)
}
# The cluster's token, which the roll needs too, and the file of what a node must not take from another.
TOKEN, TOKEN_PATH, NOT_PASSED_ON = ray.TOKEN, ray.TOKEN_PATH, ray.NOT_PASSED_ON


def joining(inventory: Inventory) -> Backend:
    """Return what joins the nodes of a cluster."""
    return BACKENDS[inventory.backend]
