"""A page on this machine's loopback that shows what `status --watch` shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from vllm_cluster.actions.watch import View, watch
from vllm_cluster.errors import UsageError
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.run.local_page import Content, LocalPage
from vllm_cluster.run.runtime import SYSTEM, Runtime

INTERVAL_SECONDS = 2.0


def dashboard(
    inventory: Inventory,
    show: Callable[[View], object],
    contents: Mapping[str, Content],
    opened: Callable[[str, int], object],
    *,
    port: int = 0,
    runtime: Runtime = SYSTEM,
) -> None:
    """Serve the contents until it is interrupted; `show` takes each view, `opened` the URL and its port.

    Raises:
        UsageError: the port cannot be used.
    """
    try:
        made = LocalPage(contents, port)
    except OSError as error:
        raise UsageError(f"cannot listen on 127.0.0.1:{port}: {error.strerror}", again=("--port", "0")) from None
    with made as page:
        opened(page.url, page.port)
        watch(inventory, INTERVAL_SECONDS, show, runtime=runtime)
