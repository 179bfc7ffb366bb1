"""`vcluster endpoint`."""

from __future__ import annotations

from typing import Annotated

import typer

from vllm_cluster.cli.options import InventoryPath, Json
from vllm_cluster.cli.session import Session
from vllm_cluster.errors import UsageError

Env = Annotated[bool, typer.Option("--env", help="OPENAI_BASE_URL and OPENAI_API_KEY for a shell to eval.")]
Python = Annotated[bool, typer.Option("--python", help="A Python program with the openai package.")]
Curl = Annotated[bool, typer.Option("--curl", help="A curl command.")]
Direct = Annotated[
    bool, typer.Option("--direct", help="For machines that reach the head, of a model served with --expose.")
]
Detach = Annotated[bool, typer.Option("--detach", help="Open a tunnel in the background, where none is open.")]
Close = Annotated[bool, typer.Option("--close", help="Close the tunnel in the background.")]


def endpoint(
    env: Env = False,
    python: Python = False,
    curl: Curl = False,
    direct: Direct = False,
    detach: Detach = False,
    close: Close = False,
    inventory: InventoryPath = None,
    as_json: Json = False,
) -> None:
    """Print what OpenAI clients need: URL, key, a snippet."""
    with Session(inventory, as_json=as_json) as session:
        form = _form({"--env": env, "--python": python, "--curl": curl})
        if direct and (detach or close):
            raise UsageError("--direct needs no tunnel: leave out --detach and --close")
        if detach and close:
            raise UsageError("--detach and --close exclude each other", hint="vcluster endpoint --close")
        loaded = session.load()
        from vllm_cluster.actions import endpoint as action_of
        from vllm_cluster.cli.render.clients import show_clients
        from vllm_cluster.events import Event
        from vllm_cluster.laptop import cache_folder

        if close:
            closed = action_of.close(loaded, cache_folder())
            text = "Closed the tunnel." if closed else "No tunnel is open in the background."
            session.emit(Event("result", text, data={"closed": closed}))
            return
        again = None
        if detach:
            if loaded.path is None:
                raise UsageError("--detach needs the inventory as a file, not on standard input")
            again = ["--background", "-i", str(loaded.path.absolute())]
        found = action_of.endpoint(loaded, cache_folder(), direct=direct, detach=again)
        session.finish()
        show_clients(found, form, loaded.path, as_json=session.as_json)


def _form(given: dict[str, bool]) -> str:
    wanted = [name for name, is_given in given.items() if is_given]
    if len(wanted) > 1:
        raise UsageError(f"one of {', '.join(wanted)} at a time")
    return wanted[0] if wanted else ""
