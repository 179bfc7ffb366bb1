"""`vcluster endpoint`: what clients need, the tunnel that leads there, and the key."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from vllm_cluster.kernel.errors import PortInUse, UsageError
from vllm_cluster.kernel.shell_line import command_line
from vllm_cluster.kernel.terminal.options import InventoryPath, Json, Wait
from vllm_cluster.kernel.terminal.output import out
from vllm_cluster.kernel.terminal.session import Session
from vllm_cluster.serving.endpoint import open as tunnels

Env = Annotated[bool, typer.Option("--env", help="OPENAI_BASE_URL and OPENAI_API_KEY for a shell to eval.")]
Direct = Annotated[
    bool, typer.Option("--direct", help="For machines that reach the head, of a model served with --expose.")
]
Detach = Annotated[bool, typer.Option("--detach", help="Open a tunnel in the background, where none is open.")]
Close = Annotated[bool, typer.Option("--close", help="Close the tunnel in the background.")]
Tunnel = Annotated[bool, typer.Option("--tunnel", help="Forward the API to localhost until Ctrl-C.")]
Port = Annotated[
    int | None,
    typer.Option(
        "--port",
        "-p",
        metavar="PORT",
        min=0,
        max=65535,
        help="With --tunnel: the local port; 0 takes a free one. Default: that of the API.",
    ),
]
Background = Annotated[bool, typer.Option("--background", hidden=True, help="Used by --detach.")]
Key = Annotated[bool, typer.Option("--key", help="Print the API key alone.")]
Rotate = Annotated[bool, typer.Option("--rotate", help="Make and print a new key; nothing restarts.")]
Grace = Annotated[
    float | None,
    typer.Option(
        "--grace", metavar="DURATION", min=0, max=1e9, help="With --rotate: accept the old key for so long (10m, 1h)."
    ),
]


def endpoint(
    env: Env = False,
    direct: Direct = False,
    detach: Detach = False,
    close: Close = False,
    tunnel: Tunnel = False,
    port: Port = None,
    background: Background = False,
    key: Key = False,
    rotate: Rotate = False,
    grace: Grace = None,
    inventory: InventoryPath = None,
    as_json: Json = False,
    wait: Wait = 0.0,
) -> None:
    """Print what OpenAI clients need: URL and key."""
    jobs = {"--close": close, "--tunnel": tunnel, "--key": key, "--rotate": rotate}
    _ensure_one({**jobs, "--direct": direct, "--detach": detach})
    if job := _given(jobs):
        _ensure_one({job[0]: True, "--env": env})
    if not background:
        _ensure_needed("--tunnel", {"--port": port is not None}, jobs)
        _ensure_needed("--rotate", {"--grace": grace is not None, "--wait": bool(wait)}, jobs)
    with Session(inventory, as_json=as_json, changes=rotate) as session:
        if background:
            tunnels.keep_open(session, session.load(), port or 0)
        elif tunnel:
            try:
                tunnels.hold(session, session.load(), port)
            except PortInUse as error:
                error.again = ("--port", "0")
                raise
        elif key or rotate:
            _show_key(session, grace=grace or 0.0, wait=wait, rotate=rotate)
        elif close:
            _close(session)
        else:
            _show(session, env=env, direct=direct, detach=detach)


def _given(options: Mapping[str, bool]) -> list[str]:
    return [name for name, is_given in options.items() if is_given]


def _ensure_needed(mode: str, options: Mapping[str, bool], jobs: Mapping[str, bool]) -> None:
    names = _given(options)
    if names and not jobs[mode]:
        raise UsageError(f"{' and '.join(names)} {'need' if len(names) > 1 else 'needs'} {mode}", again=(mode,))


def _ensure_one(given: Mapping[str, bool]) -> None:
    wanted = _given(given)
    if len(wanted) > 1:
        lines = "\n".join(command_line("vcluster", "endpoint", name) for name in wanted)
        raise UsageError(f"{' and '.join(wanted)} exclude each other", hint=lines)


def _show(session: Session, *, env: bool, direct: bool, detach: bool) -> None:
    loaded = session.load()
    from vllm_cluster.kernel.laptop import cache_folder
    from vllm_cluster.serving.endpoint import endpoint as action_of
    from vllm_cluster.serving.endpoint.render import show_clients

    again = _of_tunnel(loaded.path) if detach else None
    found = action_of.endpoint(loaded, cache_folder(), direct=direct, detach=again)
    session.finish()
    show_clients(found, loaded.path, env=env, as_json=session.as_json)


def _of_tunnel(inventory: Path | None) -> list[str]:
    if inventory is None:
        raise UsageError("--detach needs the inventory as a file, not on standard input")
    return ["-i", str(inventory.absolute())]


def _close(session: Session) -> None:
    loaded = session.load()
    from vllm_cluster.kernel.events import Event
    from vllm_cluster.kernel.laptop import cache_folder
    from vllm_cluster.serving.endpoint import endpoint as action_of

    closed = action_of.close(loaded, cache_folder())
    text = "Closed the tunnel." if closed else "No tunnel is open in the background."
    session.emit(Event("result", text, data={"closed": closed}))


def _show_key(session: Session, *, grace: float, wait: float, rotate: bool) -> None:
    loaded = session.load()
    from vllm_cluster.kernel.laptop import cache_folder
    from vllm_cluster.serving.endpoint import endpoint as action_of
    from vllm_cluster.serving.endpoint import rotate as rotation
    from vllm_cluster.serving.hooks import KEY_CHANGED

    if rotate:
        found = rotation.rotate(loaded, session.progress, grace=grace, wait=wait)
        for renew in KEY_CHANGED.given():
            renew(loaded, cache_folder(), found, session.progress)
    else:
        found = action_of.key(loaded)
    session.show(lambda: {"v": 1, "key": found}, lambda: out(found))
