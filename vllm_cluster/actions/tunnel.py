"""The way from this machine to the endpoint: its key, and a port brought here."""

from __future__ import annotations

from collections.abc import Callable

from vllm_cluster.actions.survey import refuse
from vllm_cluster.core.checks.docker import foreign
from vllm_cluster.core.desired import SECRETS_FOLDER
from vllm_cluster.core.errors import PreflightFailed
from vllm_cluster.core.identity import node_of
from vllm_cluster.core.kept import kept_secrets
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.run.barrier import look
from vllm_cluster.run.events import Emit, Event
from vllm_cluster.run.fleet import Fleet, Link
from vllm_cluster.run.observe import observe
from vllm_cluster.run.runtime import SYSTEM, Runtime


def key(inventory: Inventory, *, runtime: Runtime = SYSTEM) -> str:
    """The API key, from the head.

    Raises:
        PreflightFailed: the cluster has none, since it is not up.
    """
    with Fleet(inventory, runtime) as fleet:
        return _key(inventory, _head(inventory, fleet))


def tunnel(inventory: Inventory, emit: Emit, *, port: int, until: Callable[[], None]) -> None:
    """Bring the endpoint to this machine's loopback until `until` returns."""
    with Fleet(inventory) as fleet:
        head = _head(inventory, fleet)
        _key(inventory, head)
        serving = look(head.engine, f"vcluster-{inventory.cluster}").status
        served = serving.serve if serving else None
        if served is None:
            emit(Event("warning", "nothing is served yet; the tunnel answers once something is", head.name))
        address = served.host if served else "127.0.0.1"
        forward = head.transport.forward(inventory.ports.api, port, remote_host=address)
        try:
            url = f"http://127.0.0.1:{forward.local_port}"
            emit(Event("result", f"{url} is {head.name}'s endpoint until Ctrl-C", data={"url": url}))
            until()
        finally:
            forward.close()


def _head(inventory: Inventory, fleet: Fleet) -> Link:
    _, failures = fleet.connect([inventory.head_name])
    for error in failures.values():
        raise error
    return fleet.links[inventory.head_name]


def _key(inventory: Inventory, head: Link) -> str:
    facts = observe(inventory, head)
    refuse(list(foreign(inventory, {head.name: facts})))
    identity = kept_secrets(inventory, {head.name: facts}).get("api-key")
    if identity is None or node_of(inventory.cluster, facts) is None:
        raise PreflightFailed(f"{head.name}: no node of {inventory.cluster} is there", hint="run vcluster up")
    content = head.engine.read_file(f"vcluster-{inventory.cluster}", f"{SECRETS_FOLDER}/api-key-{identity}")
    if content is None:
        raise PreflightFailed(f"{head.name}: the API key is gone", hint="run vcluster up")
    return content.decode()
