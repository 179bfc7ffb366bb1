"""A new API key for a cluster that serves: the file of the key is rewritten, and nothing restarts."""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path

from vllm_cluster.kernel.checks.own import require_own
from vllm_cluster.kernel.docker.container_body import volume_writer_body
from vllm_cluster.kernel.errors import HostError, PreflightFailed, UsageError, VclusterError
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.hosts.connection import HostConnection
from vllm_cluster.kernel.hosts.observe import observe
from vllm_cluster.kernel.hosts.reach import connect_all
from vllm_cluster.kernel.hosts.runtime import SYSTEM, Runtime
from vllm_cluster.kernel.hosts.secrets import KEY_BYTES
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.lease.lease import Lease
from vllm_cluster.kernel.node.handle import NodeHandle
from vllm_cluster.kernel.node.history import record
from vllm_cluster.kernel.plan.desired import CODE_FOLDER, SECRETS_FOLDER
from vllm_cluster.kernel.plan.identity import Owner, decide_cluster_id, node_of
from vllm_cluster.kernel.plan.kept import Holder, find_holders
from vllm_cluster.kernel.plan.spec import Mount
from vllm_cluster.kernel.text import duration, when
from vllm_cluster.serving.api.client import Broken, get
from vllm_cluster.serving.endpoint.endpoint import port_for
from vllm_cluster.serving.endpoint.tunnel import address_of
from vllm_cluster.serving.head import key_file
from vllm_cluster.serving.hooks import KEY_CHANGED
from vllm_cluster.wire.keys import KeyFile

NAME = "api-key"
# vLLM's server looks at the file at each request, but a busy head is slow to answer.
TRY_SECONDS, ANSWER_SECONDS, POLL_SECONDS = 20.0, 10.0, 0.5


def new_key(inventory: Inventory, cache: Path, emit: Emit, *, grace: float, runtime: Runtime = SYSTEM) -> str:
    """Rotate the API key; the new one, which what this machine keeps has too.

    Raises:
        VclusterError: it is rotated, and clients that have the tunnel's port would give it to an end without it.
    """
    found, old = rotate(inventory, emit, grace=grace, runtime=runtime)
    try:
        port_for(inventory, cache, found, runtime=runtime)
    except VclusterError as error:
        _renew(inventory, cache, emit, old=old, new=None)
        text = f"the API key is new, and is not shown here: {error.message}"
        raise VclusterError(text, hint=f"{error.hint}\nvcluster endpoint --key") from None
    _renew(inventory, cache, emit, old=old, new=found)
    return found


def _renew(inventory: Inventory, cache: Path, emit: Emit, *, old: str, new: str | None) -> None:
    for renew in KEY_CHANGED.given():
        renew(inventory, cache, emit, old=old, new=new)


def rotate(inventory: Inventory, emit: Emit, *, grace: float = 0.0, runtime: Runtime = SYSTEM) -> tuple[str, str]:
    """Give the cluster a new API key; returns it and the one before, which is refused after `grace` seconds.

    Raises:
        UsageError: the inventory gives the key.
        PreflightFailed: the cluster is not up, or its node is of a version that reads the key once.
    """
    if inventory.api_key:
        text = "the API key is given by api_key of the inventory"
        raise UsageError(text, hint="change the key there, then run:\nvcluster up")
    with connect_all(inventory, emit, [inventory.head_name], runtime=runtime) as fleet:
        head = fleet.connections[inventory.head_name]
        node = NodeHandle(head, inventory.cluster)
        observe(inventory, head)
        with Lease([head], inventory.cluster, "endpoint") as lease:
            lease.acquire()
            facts = observe(inventory, head)
            holder = _holder(inventory, head, facts)
            before = _current(node, holder.ids[NAME])
            made = runtime.token(KEY_BYTES)
            now = head.docker.now or runtime.clock.time()
            # Without grace none is left: the key may be in the wrong hands.
            older = {**before.older, before.key: now + grace} if grace else {}
            older = {key: until for key, until in older.items() if until > now}
            content = KeyFile(made, runtime.secret_id(inventory.cluster, NAME, made), older).text()
            _write(inventory, head, facts, holder, content)
            record(node, "endpoint", [f"rotate the API key{f', {duration(grace)} grace' if grace else ''}"], emit)
        # The lease is given back: it only looks, and others need not wait for it.
        seen = _tried(node, made, before.key, refused=not grace, runtime=runtime)
    emit(Event("result", f"The API key is new. {_of_old_keys(now, grace, seen=seen)}"))
    return made, before.key


def _tried(node: NodeHandle, new: str, old: str, *, refused: bool, runtime: Runtime) -> bool:
    """Whether the API was seen to answer both keys as it should; not where no model is ready.

    Raises:
        HostError: it does not answer as it should.
    """
    state = node.state_if_running()
    # While one of several starts again, the others answer.
    serve = next((one for one in state.replicas if one.phase == "ready"), None) if state else None
    if serve is None:
        return False
    forward = node.connection.transport.forward(serve.port, 0, remote_host=address_of(serve))
    try:
        deadline, wanted = (
            runtime.after(TRY_SECONDS),
            (HTTPStatus.OK, HTTPStatus.UNAUTHORIZED if refused else HTTPStatus.OK),
        )
        while (found := (_status(forward.local_port, new), _status(forward.local_port, old))) != wanted:
            if not deadline.left():
                text = f"the new key is written, and the API answers {found[0]} to it and {found[1]} to the old one"
                raise HostError(node.host, text, hint="vcluster status\nvcluster endpoint --key")
            runtime.clock.sleep(POLL_SECONDS)
    finally:
        forward.close()
    return True


def _status(port: int, key: str) -> int | str:
    try:
        return get(port, "/v1/models", key, ANSWER_SECONDS)[0]
    except Broken as error:
        return error.message


def _of_old_keys(now: float, grace: float, *, seen: bool) -> str:
    """Return what becomes of clients that have an old key, and until when; `now` is by the head's clock."""
    if grace:
        old = f"Clients with the old one are answered until {when(now + grace)}, for {duration(grace)}, then get 401"
    else:
        old = "Clients with the old one get 401 from now on; answers that have begun are not cut off"
    tried = "the API was tried with both keys" if seen else "no model is ready, so no key was tried"
    return f"{old} ({tried}). Give every client the new one: vcluster endpoint --key"


def _holder(inventory: Inventory, head: HostConnection, facts: HostFacts) -> Holder:
    """The node on the head, which holds the key."""
    require_own(inventory, facts)
    for holder in find_holders(inventory, {head.name: facts}):
        if holder.has_node and NAME in holder.ids:
            break
    else:
        raise PreflightFailed(f"cluster {inventory.cluster} is not running on {head.name}", hint="vcluster up")
    node = NodeHandle(head, inventory.cluster)
    reader = head.docker.read_file(node.name, f"{CODE_FOLDER}/vllm_cluster/wire/keys.py")
    if reader is None:
        text = f"{head.name}: the node was made by an earlier vcluster, which reads the API key once"
        raise PreflightFailed(text, hint="vcluster up\nvcluster endpoint --rotate")
    return holder


def _current(node: NodeHandle, identity: str) -> KeyFile:
    content = node.secret(NAME, identity)
    if content is None:
        raise PreflightFailed(f"{node.host}: endpoint: the API key is missing", hint="vcluster up")
    return key_file(content, node.host)


def _write(inventory: Inventory, head: HostConnection, facts: HostFacts, holder: Holder, content: str) -> None:
    """Through a container of its own, as Docker writes through no read-only mount: the node sees the volume so."""
    there = node_of(inventory.cluster, facts)
    if there is None:
        raise PreflightFailed(f"cluster {inventory.cluster} is not running on {head.name}", hint="vcluster up")
    owner = Owner(inventory.cluster, decide_cluster_id(inventory, {head.name: facts}))
    body = volume_writer_body(owner, there.image_id, Mount(holder.volume, SECRETS_FOLDER))
    with head.temporary.door(inventory.cluster, body) as door:
        files = {f"{NAME}-{holder.ids[NAME]}": (content.encode(), 0o600)}
        head.docker.put_files(door, SECRETS_FOLDER, files)
