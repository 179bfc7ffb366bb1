"""Where clients of this machine, or of others, find the API; and a tunnel that stays open in the background."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vllm_cluster import debug_log
from vllm_cluster.actions.head import at_head, read_key, ready
from vllm_cluster.actions.tunnel import is_free, tunnel
from vllm_cluster.errors import AuthenticationFailed, HostError, HostKeyRejected, NodeMissing, PreflightFailed
from vllm_cluster.events import Emit, Event
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.run.detached import Detached, State
from vllm_cluster.run.history import command_of
from vllm_cluster.run.node_handle import NodeHandle
from vllm_cluster.run.runtime import SYSTEM, Runtime
from vllm_cluster.text import host_port

FOLDER = "tunnels"
# A laptop sleeps for hours, but it connects again within minutes of waking up.
RETRY_SECONDS, POLL = 3600.0, 5.0


@dataclass(frozen=True)
class ClientEndpoint:
    """What a client needs: the base URL, the key, the model's name; and the tunnel in between where there is one."""

    url: str
    key: str
    model: str
    tunnel: Detached | None


def state(inventory: Inventory, cache: Path) -> State:
    """Where the tunnel of this machine to this cluster is noted; the name of the inventory file does not matter."""
    destinations = {name: host.destination for name, host in inventory.hosts.items()}
    return State(cache / FOLDER, debug_log.inventory_key(inventory.cluster, destinations))


def endpoint(
    inventory: Inventory, cache: Path, *, direct: bool, detach: Sequence[str] | None, runtime: Runtime = SYSTEM
) -> ClientEndpoint:
    """The endpoint of the model that is ready; with `detach`, the arguments of `vcluster tunnel`, a tunnel is opened.

    Raises:
        PreflightFailed: no model is ready, or there is no way to it from here.
    """
    with at_head(inventory, runtime) as head:
        key = read_key(inventory, head)
        serve = ready(inventory, head)
        if direct and serve.host in ("127.0.0.1", "::1"):
            again = command_of(inventory, NodeHandle(head, inventory.cluster), serve, expose=True)
            text = f"{head.name}: the API of {serve.name} listens on its loopback only"
            raise PreflightFailed(text, hint=f"vcluster endpoint --detach\n{again}")
    if direct:
        return ClientEndpoint(f"http://{host_port(serve.host, serve.port)}/v1", key, serve.name, None)
    found = state(inventory, cache)
    with found.locked():
        open_one = found.running()
        if open_one is None and detach is not None:
            last = found.read()
            # The port that clients have from before, where it is free.
            port = last.port if last and is_free(last.port) else 0
            open_one = found.start(["-m", "vllm_cluster", "tunnel", "--port", str(port), *detach])
    if open_one is None:
        why = found.why_ended()
        ended = f"; the last one has ended: {why}" if why else ""
        text = f"no tunnel from this machine to {inventory.cluster} is open in the background{ended}"
        raise PreflightFailed(text, again=("--detach",))
    return ClientEndpoint(f"http://127.0.0.1:{open_one.port}/v1", key, serve.name, open_one)


def close(inventory: Inventory, cache: Path) -> bool:
    """End the tunnel in the background, and remove all that was noted of it; whether one was open."""
    found = state(inventory, cache)
    with found.locked():
        return found.end()


def keep_open(inventory: Inventory, cache: Path, emit: Emit, *, port: int, runtime: Runtime = SYSTEM) -> None:
    """Be the tunnel in the background: open again at the same port what broke, and what is away for up to an hour.

    Raises:
        HostError: it could not be opened, or not again.
    """
    noted, opened, patience = state(inventory, cache), False, runtime.after(RETRY_SECONDS)

    def note(event: Event) -> None:
        nonlocal opened, port, patience
        if isinstance(event.data.get("port"), int):
            port, opened, patience = int(str(event.data["port"])), True, runtime.after(RETRY_SECONDS)
            noted.note_this(port)
        emit(event)

    def keep_note() -> bool:
        """A tunnel whose note is lost could neither be found nor ended."""
        if opened and noted.read() is None:
            noted.note_this(port)
        return True

    noting = runtime.repeat(keep_note, POLL, "note")
    try:
        while True:
            try:
                tunnel(inventory, note, port=port, runtime=runtime)
            except (HostKeyRejected, AuthenticationFailed):
                raise
            except (HostError, NodeMissing):  # Docker starts again there, or `up` recreates the head
                if not opened or not patience.left():
                    raise
                runtime.clock.sleep(POLL)
    finally:
        noting.stop()
        noted.forget()
