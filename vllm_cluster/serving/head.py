"""The head of a cluster: the way to it, its API key, and the model that is ready there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from vllm_cluster.kernel.checks.own import require_own
from vllm_cluster.kernel.errors import HostError, NodeMissing, PreflightFailed
from vllm_cluster.kernel.hosts.connection import Fleet, HostConnection
from vllm_cluster.kernel.hosts.observe import observe, usable
from vllm_cluster.kernel.hosts.runtime import SYSTEM, Runtime
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.node.handle import NodeHandle
from vllm_cluster.kernel.plan.identity import node_of
from vllm_cluster.kernel.plan.kept import kept_secrets, secret_ids
from vllm_cluster.wire.keys import KeyFile
from vllm_cluster.wire.status import ServeStatus

NAME = "api-key"
MAX_KEY = 4096


@contextmanager
def at_head(inventory: Inventory, runtime: Runtime = SYSTEM) -> Iterator[HostConnection]:
    """The head, connected for as long as it is needed.

    Raises:
        Unreachable: it cannot be reached.
    """
    with Fleet(inventory, runtime, [inventory.head_name]) as fleet:
        yield reach_head(inventory, fleet)


def reach_head(inventory: Inventory, fleet: Fleet) -> HostConnection:
    """The head, connected.

    Raises:
        Unreachable: it cannot be reached.
    """
    _, failures = fleet.connect([inventory.head_name])
    for error in failures.values():
        raise error
    return fleet.connections[inventory.head_name]


def read_key(inventory: Inventory, head: HostConnection) -> str:
    """The API key, and an engine for the head.

    Raises:
        HostError: its Docker cannot be used, or there is no key in the file.
        PreflightFailed: its node is missing, of another cluster, or a worker.
    """
    facts = usable(observe(inventory, head))
    require_own(inventory, facts)
    identity = kept_secrets(inventory, {head.name: facts}).get(NAME)
    if identity is None or node_of(inventory.cluster, facts) is None:
        raise NodeMissing(f"cluster {inventory.cluster} is not running on {head.name}", hint="vcluster up")
    content = NodeHandle(head, inventory.cluster).secret(NAME, identity)
    if content is None:
        raise NodeMissing(f"{head.name}: key: the API key is missing", hint="vcluster up")
    return key_file(content, head.name).key


def key_now(inventory: Inventory, head: HostConnection) -> str | None:
    """The API key, on a connection over which `read_key` has read one, which may be rotated since; None where none is.

    Raises:
        HostError: its Docker does not answer, or what is there cannot be a key.
    """
    node = NodeHandle(head, inventory.cluster)
    there = node.container()
    identity = secret_ids(there.labels).get(NAME) if there else None
    content = node.secret(NAME, identity) if identity else None
    return key_file(content, head.name).key if content else None


def key_id(inventory: Inventory, key: str, runtime: Runtime) -> str:
    """What differs with the key of each cluster, and gives nothing of it away.

    It is made of the key itself: any host can copy a label that names another's.
    """
    return runtime.secret_id(inventory.cluster, NAME, key)


def key_file(content: bytes, host: str) -> KeyFile:
    """Read the file of the API key that a host has: a key becomes a header and a line of a shell.

    Raises:
        HostError: what it holds cannot be a key.
    """
    try:
        found = KeyFile.read(content.decode())
    except UnicodeDecodeError:
        found = KeyFile("")
    if not 0 < len(found.key) <= MAX_KEY or not found.key.isprintable() or found.key != found.key.strip():
        raise HostError(host, "key: the file of the API key holds none", hint="vcluster up")
    return found


def ready(inventory: Inventory, head: HostConnection, name: str = "") -> ServeStatus:
    """What is served on this head, under a name where one is given: a replica that is ready.

    Raises:
        PreflightFailed: none is ready, or the head's node does not run.
    """
    rows = replicas_served(inventory, head)
    return first_ready([one for one in rows if one.name == name] or rows)  # an adapter has no row of its own


def replicas_served(inventory: Inventory, head: HostConnection) -> tuple[ServeStatus, ...]:
    """Every replica of every model that this head serves, one at least.

    Raises:
        PreflightFailed: there is none, or the head's node does not run.
    """
    rows = NodeHandle(head, inventory.cluster).running().replicas
    if not rows:
        raise PreflightFailed(f"no model is served on {inventory.cluster}", hint="vcluster serve MODEL")
    return rows


def first_ready(own: Sequence[ServeStatus]) -> ServeStatus:
    """One of these that is ready.

    Raises:
        PreflightFailed: none is; with why.
    """
    serve = next((one for one in own if one.phase == "ready"), own[0])
    if serve.phase != "ready":
        raise refuse_unready(serve)
    return serve


def refuse_unready(serve: ServeStatus) -> PreflightFailed:
    """The refusal of what a model that is not ready is asked for."""
    first = "vcluster explain" if serve.phase == "failed" else "vcluster status --wait"
    # A host whose node has ended does not come back by waiting.
    first = "vcluster up" if serve.phase == "waiting" and serve.gpus[0] < serve.gpus[1] else first
    return PreflightFailed(f"{serve.name} is not ready: {serve.words}", hint=f"{first}\nvcluster status")
