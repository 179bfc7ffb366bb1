"""`vcluster endpoint`: what clients need, the tunnel that leads there, and the key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from vllm_cluster.kernel.errors import PortInUse, UsageError
from vllm_cluster.kernel.shell_line import command_line, typed_words
from vllm_cluster.kernel.terminal.options import InventoryPath, Json
from vllm_cluster.kernel.terminal.output import out
from vllm_cluster.kernel.terminal.session import Session
from vllm_cluster.kernel.text import number_of
from vllm_cluster.serving.endpoint import open as tunnels

if TYPE_CHECKING:
    from vllm_cluster.kernel.inventory.model import Inventory

Env = Annotated[bool, typer.Option("--env", help="OPENAI_BASE_URL and OPENAI_API_KEY for a shell to eval.")]
Direct = Annotated[
    bool, typer.Option("--direct", help="For machines that reach the head, of a model served with --expose.")
]
Detach = Annotated[bool, typer.Option("--detach", help="Open a tunnel in the background, where none is open.")]
Close = Annotated[bool, typer.Option("--close", help="Close the tunnel in the background.")]
Tunnel = Annotated[
    str,
    typer.Option(
        "--tunnel",
        metavar="PORT",
        help="Forward the API to localhost until Ctrl-C; port 0 is a free one. Without PORT: that of the API.",
    ),
]
Background = Annotated[int | None, typer.Option("--background", hidden=True, help="Used by --detach.")]
Found = Annotated[bool, typer.Option("--found", hidden=True, help="The inventory was not named; used by --detach.")]
# What --tunnel has where no port is given.
OF_API = "api"
MAX_PORT = 65535
Key = Annotated[bool, typer.Option("--key", help="Print the API key alone.")]
Rotate = Annotated[
    float | None,
    typer.Option(
        "--rotate",
        metavar="DURATION",
        min=0,
        max=1e9,
        help="Make and print a new key; nothing restarts. With DURATION (10m, 1h) the old one is accepted for so long.",
    ),
]


def endpoint(
    env: Env = False,
    direct: Direct = False,
    detach: Detach = False,
    close: Close = False,
    tunnel: Tunnel = "",
    background: Background = None,
    found: Found = False,
    key: Key = False,
    rotate: Rotate = None,
    inventory: InventoryPath = None,
    as_json: Json = False,
) -> None:
    """Print what OpenAI clients need: URL and key."""
    jobs = {"--close": close, "--tunnel": bool(tunnel), "--key": key, "--rotate": rotate is not None}
    _ensure_one({**jobs, "--direct": direct, "--detach": detach})
    if job := _given(jobs):
        _ensure_one({job[0]: True, "--env": env})
    port = _local_port(tunnel)
    with Session(inventory, as_json=as_json, changes=rotate is not None, found=found) as session:
        if background is not None:
            from vllm_cluster.serving.endpoint.detached import keep_log_own

            keep_log_own()
            tunnels.keep_open(session, session.load(), background)
        elif tunnel:
            try:
                tunnels.hold(session, session.load(), port)
            except PortInUse as error:
                error.hint = f"vcluster endpoint --tunnel 0\n{error.hint or ''}"
                raise
        elif key or rotate is not None:
            _show_key(session, rotate)
        elif close:
            _close(session)
        else:
            _show(session, env=env, direct=direct, detach=detach)


def _given(options: Mapping[str, bool]) -> list[str]:
    return [name for name, is_given in options.items() if is_given]


def _local_port(tunnel: str) -> int | None:
    """The port that --tunnel names; None for that of the API."""
    if tunnel in ("", OF_API):
        return None
    if (port := number_of(tunnel)) is not None and port <= MAX_PORT:
        return port
    raise UsageError(f"--tunnel must be a port, got {tunnel!r}", hint="vcluster endpoint --tunnel 8001")


def _ensure_one(given: Mapping[str, bool]) -> None:
    wanted = _given(given)
    if len(wanted) > 1:
        lines = "\n".join(command_line("vcluster", "endpoint", *typed_words([name])) for name in wanted)
        raise UsageError(f"{' and '.join(wanted)} exclude each other", hint=lines)


def _show(session: Session, *, env: bool, direct: bool, detach: bool) -> None:
    loaded = session.load()
    from vllm_cluster.kernel.laptop import cache_folder
    from vllm_cluster.serving.endpoint import endpoint as action_of
    from vllm_cluster.serving.endpoint.render import show_clients

    again = _of_tunnel(loaded) if detach else None
    found = action_of.find_endpoint(loaded, cache_folder(), direct=direct, detach=again)
    session.finish()
    show_clients(found, loaded, env=env, as_json=session.as_json)


def _of_tunnel(inventory: Inventory) -> list[str]:
    if inventory.path is None:
        raise UsageError(
            "--detach needs the inventory as a file, not on standard input", hint="vcluster endpoint --detach -i FILE"
        )
    from vllm_cluster.serving.endpoint.render import inventory_of

    return inventory_of(inventory)


def _close(session: Session) -> None:
    loaded = session.load()
    from vllm_cluster.kernel.events import Event
    from vllm_cluster.kernel.laptop import cache_folder
    from vllm_cluster.serving.endpoint import endpoint as action_of

    closed = action_of.close(loaded, cache_folder())
    text = "Closed the tunnel." if closed else "No tunnel is open in the background."
    session.emit(Event("result", text, data={"closed": closed}))


def _show_key(session: Session, grace: float | None) -> None:
    """Print the key: a new one where the old one has a time for which it is accepted."""
    loaded = session.load()
    from vllm_cluster.kernel.laptop import cache_folder

    if grace is not None:
        from vllm_cluster.serving.endpoint.rotate import new_key

        found = new_key(loaded, cache_folder(), session.progress, grace=grace)
    else:
        from vllm_cluster.serving.endpoint import endpoint as action_of

        found = action_of.key(loaded, cache_folder())
    session.show(lambda: {"v": 1, "key": found}, lambda: out(found))
