"""A tunnel to the API: until Ctrl-C, while a command runs, or in the background."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from vllm_cluster.cli.session import Session
from vllm_cluster.errors import UsageError, VclusterError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm_cluster.events import Event
    from vllm_cluster.inventory.model import Inventory


def keep_open(session: Session, inventory: Inventory, port: int) -> None:
    """Be the tunnel of `vcluster endpoint --detach`, until that ends it."""
    from vllm_cluster.actions import endpoint
    from vllm_cluster.inventory.load import load_text
    from vllm_cluster.laptop import cache_folder

    path = inventory.path

    def latest() -> Inventory:
        """The inventory as it is now; as it was, while it is being written."""
        with suppress(VclusterError, OSError):
            return load_text(path.read_bytes(), path=path, cwd=None) if path else inventory
        return inventory

    endpoint.keep_open(latest, cache_folder(), session.emit, port=port)


def hold(session: Session, inventory: Inventory, port: int | None, command: Sequence[str] = ()) -> None:
    """Keep a tunnel open until a person ends the program, or while a command runs, and exit with its code."""
    from vllm_cluster.actions.tunnel import tunnel as tunnel_action

    codes: list[int] = []
    opened = threading.Event()

    def emit(event: Event) -> None:
        session.emit(event)
        if event.kind == "result":
            opened.set()

    def run(url: str) -> None:
        session.finish()
        codes.append(_run(command, url))

    try:
        wanted = inventory.ports.api if port is None else port
        tunnel_action(inventory, emit, port=wanted, inside=run if command else None)
    except KeyboardInterrupt:
        if command or not opened.is_set():
            raise
        session.finish()  # the one way in which an open tunnel ends is not a failure
    if codes:
        # Where a signal ended the command, as a shell has it.
        raise SystemExit(codes[0] if codes[0] >= 0 else 128 - codes[0])


# Ctrl-C ends any call within 5 s, and the connection has to be closed after this.
GRACE_SECONDS = 3.0
# A command without its tunnel only fails. The input of this ends with vcluster, also after kill -9; a second line comes
# when the command has ended by itself.
_END_WITH_CALLER = 'read -r pid && { read -r _ || kill -s HUP "$pid"; }'


def _run(command: Sequence[str], url: str) -> int:
    """Run it where it finds the API: the port may be a free one."""
    import os
    import subprocess

    environment = {**os.environ, "VCLUSTER_URL": url, "OPENAI_BASE_URL": f"{url}/v1"}
    watch = ["sh", "-c", _END_WITH_CALLER]
    with subprocess.Popen(watch, stdin=subprocess.PIPE, start_new_session=True) as watcher:
        try:
            running = subprocess.Popen(command, env=environment)
        except OSError as error:
            raise UsageError(f"cannot run {command[0]}: {error.strerror}") from None
        with running:
            try:
                os.write(watcher.stdin.fileno(), b"%d\n" % running.pid)  # type: ignore[union-attr]
                return running.wait()
            except BaseException:
                # It may have files to write; a second Ctrl-C waits for nothing.
                running.terminate()
                with suppress(subprocess.TimeoutExpired):
                    running.wait(GRACE_SECONDS)
                running.kill()
                raise
            finally:
                watcher.communicate(b"\n")
