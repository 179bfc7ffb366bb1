"""A tunnel to the API: until Ctrl-C, or in the background."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from vllm_cluster.kernel.clock import SYSTEM_CLOCK, Clock
from vllm_cluster.kernel.errors import InventoryError, VclusterError
from vllm_cluster.kernel.terminal.session import Session

if TYPE_CHECKING:
    from vllm_cluster.kernel.events import Event
    from vllm_cluster.kernel.inventory.model import Inventory


# An editor removes the file and writes it again within moments.
GONE_SECONDS = 60.0


def keep_open(session: Session, inventory: Inventory, port: int) -> None:
    """Be the tunnel of `vcluster endpoint --detach`, until that ends it."""
    from vllm_cluster.kernel.laptop import cache_folder
    from vllm_cluster.serving.endpoint import endpoint

    endpoint.be_tunnel(_latest(inventory), cache_folder(), session.emit, port=port)


def hold(session: Session, inventory: Inventory, port: int | None) -> None:
    """Keep a tunnel open until a person ends the program."""
    from vllm_cluster.serving.endpoint.tunnel import tunnel as tunnel_action

    opened = False

    def emit(event: Event) -> None:
        nonlocal opened
        session.emit(event)
        opened = opened or event.kind == "result"

    try:
        tunnel_action(_latest(inventory), emit, port=inventory.ports.api if port is None else port)
    except KeyboardInterrupt:
        if not opened:
            raise
        session.finish()  # the one way in which an open tunnel ends is not a failure


def _latest(inventory: Inventory, clock: Clock = SYSTEM_CLOCK) -> Callable[[float], Inventory]:
    """The inventory as it is now; as it was, while it is being written, or where another user has put theirs there.

    It is read again where the file has changed, and once the answer of another source is older than asked for.
    Where the file is gone for good that raises: no verb could find a tunnel in the background any more.
    """
    from vllm_cluster.kernel.inventory.find import own_bytes
    from vllm_cluster.kernel.inventory.load import load_text

    path, last, gone, read, at = inventory.path, inventory, float("inf"), b"", 0.0
    # A person who names another user's inventory has chosen that user alone.
    owner = path.stat().st_uid if path and not inventory.found else None

    def latest(age: float) -> Inventory:
        nonlocal last, gone, read, at
        if path is None:
            return inventory
        try:
            raw = own_bytes(path, owner)
        except FileNotFoundError:
            gone = min(gone, clock.monotonic())
            if clock.monotonic() - gone > GONE_SECONDS:
                raise VclusterError(f"{path} is gone", hint="vcluster endpoint --detach") from None
            return last
        except (OSError, InventoryError):
            return last
        gone = float("inf")
        if raw != read or clock.monotonic() - at >= age:
            with suppress(VclusterError, OSError):
                last = load_text(raw, path=path, cwd=None, found=inventory.found)
            read, at = raw, clock.monotonic()  # also where it failed: its command may take long
        return last

    return latest
