"""Where clients of this machine, or of others, find the API; and a tunnel that stays open in the background."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from vllm_cluster.kernel import debug_log
from vllm_cluster.kernel.errors import PreflightFailed, VclusterError
from vllm_cluster.kernel.events import Emit
from vllm_cluster.kernel.hosts.runtime import SYSTEM, Runtime
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.node.handle import NodeHandle
from vllm_cluster.kernel.node.history import command_of
from vllm_cluster.kernel.text import first_of, host_port
from vllm_cluster.serving.api.client import Broken, get, model_names
from vllm_cluster.serving.endpoint.detached import Detached, State
from vllm_cluster.serving.endpoint.tunnel import LOCATE_SECONDS, SOURCE_SECONDS, is_free, tunnel
from vllm_cluster.serving.head import at_head, first_ready, key_id, read_key, replicas_served
from vllm_cluster.wire.status import ServeStatus

FOLDER = "tunnels"
_LOOPBACK = ("127.0.0.1", "::1")
NOTE_SECONDS = 5.0
AGAIN = "vcluster endpoint --close\nvcluster endpoint --detach"
# As long as the process in the background may need to notice that the head has moved, and to reach the other one.
ANSWER_SECONDS, TRY_SECONDS = LOCATE_SECONDS + 15.0, 1.0


@dataclass(frozen=True)
class ClientEndpoint:
    """What a client needs: the base URL, the key, the model's name; and the tunnel in between where there is one.

    `models` are the names of all that are served there, the one that is ready first.
    """

    url: str
    key: str
    model: str
    tunnel: Detached | None
    models: tuple[str, ...] = ()


def state(inventory: Inventory, cache: Path) -> State:
    """Where the tunnel of this machine to this cluster is noted: by its name and its inventory file.

    Not by its hosts: once one left or joined, no verb would find a tunnel that is open.
    """
    return State(cache / FOLDER, debug_log.inventory_key(inventory.cluster, inventory.path))


def hosts_key(inventory: Inventory) -> str:
    """The name that an earlier version had for a cluster in what it kept on this machine: its hosts' own names."""
    hosts = sorted((name, one.destination) for name, one in inventory.hosts.items())
    return hashlib.sha256(json.dumps([inventory.cluster, hosts]).encode()).hexdigest()[:12]


def key(inventory: Inventory, cache: Path, *, runtime: Runtime = SYSTEM) -> str:
    """The API key, from the head.

    Raises:
        PreflightFailed: the cluster has none, since it is not up.
        VclusterError: clients that have the tunnel's port would give it to an end with another key.
    """
    with at_head(inventory, runtime) as head:
        found = read_key(inventory, head)
    port_for(inventory, cache, found, runtime=runtime)
    return found


def find_endpoint(
    inventory: Inventory, cache: Path, *, direct: bool, detach: Sequence[str] | None, runtime: Runtime = SYSTEM
) -> ClientEndpoint:
    """The endpoint of the model that is ready; with `detach`, the inventory's option, a tunnel is opened.

    Raises:
        PreflightFailed: no model is ready, or there is no way to it from here.
    """
    with at_head(inventory, runtime) as head:
        key = read_key(inventory, head)
        rows = replicas_served(inventory, head)
        serve = first_ready(rows)
        models = tuple(dict.fromkeys((serve.name, *(one.name for one in rows))))
        if direct and serve.host in _LOOPBACK:
            again = command_of(inventory, NodeHandle(head, inventory.cluster), serve, expose=True)
            text = f"{head.name}: the API of {serve.name} listens on its loopback only"
            raise PreflightFailed(text, hint="\n".join(("vcluster endpoint --detach", again)))
    if direct:
        return ClientEndpoint(_url(serve), key, serve.name, None, models)
    found = state(inventory, cache)
    with found.locked():
        open_one = found.running()
        if open_one is None and detach is not None:
            last = found.read()
            # The port that clients have from before, where it is free.
            port = last.port if last and is_free(last.port) else 0
            open_one = found.start(["-m", "vllm_cluster", "endpoint", "--background", str(port), *detach])
    if open_one is None:
        raise _none_is_open(inventory, serve, found.why_ended())

    wanted = key_id(inventory, key, runtime)

    def refuse_other() -> None:
        """Refuse the port once its tunnel has ended, as any user may listen there then, and while it leads elsewhere.

        Raises:
            Broken: to an end with another key, until it follows.
        """
        now = _to_key(found, wanted)
        if now is None or (now.pid, now.port) != (open_one.pid, open_one.port):
            raise _none_is_open(inventory, serve, found.why_ended())

    _ensure_answers(open_one.port, key, serve.name, refuse_other, runtime)
    refuse_other()
    return ClientEndpoint(f"http://127.0.0.1:{open_one.port}/v1", key, serve.name, open_one, models)


def port_for(inventory: Inventory, cache: Path, key: str, *, runtime: Runtime = SYSTEM) -> int | None:
    """The port of the tunnel in the background, for who gives this key to it; None where none is open.

    Raises:
        VclusterError: its end has another key, and it did not follow.
    """
    found, wanted, deadline = state(inventory, cache), key_id(inventory, key, runtime), runtime.after(ANSWER_SECONDS)
    while True:
        try:
            now = _to_key(found, wanted)
            return now.port if now else None
        except Broken as error:
            if deadline.left() < TRY_SECONDS:
                raise _leads_elsewhere("in the background", inventory.cluster, error.message) from None
        runtime.clock.sleep(TRY_SECONDS)


def _to_key(found: State, wanted: str) -> Detached | None:
    """The tunnel that runs, to whose port the key with this id may go; None where none runs.

    Names do not show where it leads: one in DNS, or behind a ProxyCommand, may lead to another machine than before.

    Raises:
        Broken: its own end has another key, which a tunnel notes that follows.
        VclusterError: it was opened by an earlier version, which never notes where it leads.
    """
    now = found.running()
    if now and not now.key_id:
        raise VclusterError("the tunnel in the background was opened by an earlier version", hint=AGAIN)
    if now and now.key_id != wanted:
        raise Broken("its end has another API key", hint="vcluster endpoint --close")
    return now


def _leads_elsewhere(where: str, to: str, why: str) -> VclusterError:
    text = f"the tunnel {where} does not lead to {to}: {why}"
    return VclusterError(text, hint=AGAIN)


def _none_is_open(inventory: Inventory, serve: ServeStatus, why: str) -> PreflightFailed:
    """The refusal where no tunnel is open.

    At the head's private address another machine may answer here, which would get the key: only a person knows.
    """
    ended = f"; the last one has ended: {why}" if why else ""
    text = f"no tunnel from this machine to {inventory.cluster} is open in the background{ended}"
    if serve.host in _LOOPBACK:
        return PreflightFailed(text, again=("--detach",))
    text += f"; machines that reach {inventory.head_name} find {serve.name} at {_url(serve)}"
    return PreflightFailed(text, hint="vcluster endpoint --detach", again=("--direct",))


def _url(serve: ServeStatus) -> str:
    return f"http://{host_port(serve.host, serve.port)}/v1"


def _ensure_answers(port: int, key: str, model: str, ensure_leads: Callable[[], None], runtime: Runtime) -> None:
    """Ask through the tunnel: that its process runs does not show that it leads anywhere.

    It listens before its process is noted, until after the note is gone: one that still runs took the connection. The
    key is sent only where `ensure_leads` raises nothing.

    Raises:
        VclusterError: the model does not answer there, or the tunnel has ended.
    """
    deadline, why = runtime.after(ANSWER_SECONDS), ""
    # What is left after the last try is too short for an answer.
    while (left := deadline.left()) >= TRY_SECONDS:
        good = False
        try:
            ensure_leads()  # what is taken before it turns leads to the head of then
            status, page = get(port, "/v1/models", key, left, ensure_leads)
            names = model_names(page)
            good = status == HTTPStatus.OK and model in names
            none = "with no list of models that can be read" if status == HTTPStatus.OK else ""
            why = f"HTTP {status}, models {first_of(names)}" if names else f"HTTP {status} {none}".rstrip()
        except Broken as error:
            why = error.message
        if good:
            return
        runtime.clock.sleep(min(TRY_SECONDS, deadline.left()))
    raise _leads_elsewhere(f"at 127.0.0.1:{port}", model, why)


def close(inventory: Inventory, cache: Path) -> bool:
    """End the tunnel in the background, and remove all that was noted of it; whether one was open."""
    found = state(inventory, cache)
    # No verb would find one of an earlier version that is open.
    before = State(cache / FOLDER, hosts_key(inventory))
    with found.locked():
        return sum(one.end() for one in (found, before)) > 0


def be_tunnel(
    latest: Callable[[float], Inventory], cache: Path, emit: Emit, *, port: int, runtime: Runtime = SYSTEM
) -> None:
    """Be the tunnel in the background, and note where it is.

    Raises:
        HostError: it could not be opened, or not again.
    """
    noted, ways, alone = state(latest(SOURCE_SECONDS), cache), list[tuple[int, str]](), threading.Lock()

    def opened(port: int, key_id: str) -> None:
        with alone:
            ways[:] = [(port, key_id)]
            noted.note_this(port, key_id)

    def keep_note() -> bool:
        """A tunnel whose note is lost could neither be found nor ended."""
        with alone:
            if ways and noted.read() is None:
                noted.note_this(*ways[0])
        return True

    noting = runtime.repeat(keep_note, NOTE_SECONDS, "note")

    def ended() -> None:
        noting.stop()
        with alone:
            ways.clear()
            noted.forget()

    try:
        tunnel(latest, emit, port=port, opened=opened, closing=ended, runtime=runtime)
    finally:
        ended()
