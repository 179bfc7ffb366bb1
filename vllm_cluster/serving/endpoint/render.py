"""Where the model answers, how to ask it, and what clients of its API need."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_cluster.kernel.inventory.find import inventory_words
from vllm_cluster.kernel.shell_line import Filled, Paste, export_line, shell_line
from vllm_cluster.kernel.terminal.called import as_called
from vllm_cluster.kernel.terminal.output import data, document, out, to_paste
from vllm_cluster.kernel.text import host_port
from vllm_cluster.serving.ask_head import Endpoint
from vllm_cluster.serving.endpoint.endpoint import ClientEndpoint

if TYPE_CHECKING:
    from vllm_cluster.kernel.inventory.model import Inventory


def curl_line(endpoint: Endpoint, inventory: Path | None) -> str:
    """A line that asks the model something, the key fetched on the way; without --expose the tunnel must be open."""
    host = endpoint.host if endpoint.exposed else "127.0.0.1"
    url = f"http://{host_port(host, endpoint.port)}/v1/completions"
    key = Filled("Authorization: Bearer ", ["vcluster", "endpoint", *inventory_words(inventory), "--key"])
    body = json.dumps({"model": endpoint.model, "prompt": "Hello", "max_tokens": 16})
    # By its input: other users of this machine read command lines.
    asks = ["curl", "-s", url, "-H", "Content-Type: application/json", "-H", "@-", "-d", body]
    return " | ".join((shell_line(["echo", key]), shell_line(asks)))


def show_endpoint(endpoint: Endpoint, inventory: Path | None, paste: Paste, *, as_json: bool) -> None:
    """Write the endpoint on standard output."""
    option = inventory_words(inventory)
    line = curl_line(endpoint, inventory)
    where = f"http://{host_port(endpoint.host, endpoint.port)}/v1"
    if as_json:
        found = {
            "v": 1,
            "time": round(time.time(), 3),
            "event": "endpoint",
            "model": endpoint.model,
            "url": where,
            "head": endpoint.head,
            "curl": line,
        }
        key = shell_line(["vcluster", "endpoint", *option, "--key"])
        document({**found, "key": key, "exposed": endpoint.exposed})
        return
    # First what works here: both open the way to the API by themselves, and keep the key off the command line.
    model = ["--set", f"model={endpoint.model}"] if endpoint.several else []
    out(to_paste("ask:     ", paste(shell_line(["vcluster", "complete", "Hello", *model, *option]))))
    way = "--direct" if endpoint.exposed else "--detach"
    out(to_paste("clients: ", paste(shell_line(["vcluster", "endpoint", way, *option]))))
    # Loopback is the head's, and not of whoever reads this.
    there = "" if endpoint.exposed else f" on {endpoint.head} itself; from elsewhere as above"
    out(f"{endpoint.model} answers at {where}{there}")


def inventory_of(inventory: Inventory) -> list[str]:
    """The words that name an inventory from any folder, and that no person named it where it was found."""
    if inventory.path is None:
        return []
    return ["-i", str(inventory.path.absolute()), *(["--found"] if inventory.found else [])]


def show_clients(endpoint: ClientEndpoint, inventory: Inventory, *, env: bool, as_json: bool) -> None:
    """Write what clients need on standard output; the key itself only with `env`."""
    # What a program keeps is run from any folder.
    named = inventory_of(inventory) if as_json else inventory_words(None if inventory.found else inventory.path)
    words = [*as_called("vcluster endpoint").split(), *named]
    key = shell_line([*words, "--key"])
    if as_json:
        tunnel = {"pid": endpoint.tunnel.pid, "port": endpoint.tunnel.port} if endpoint.tunnel else None
        found = {"model": endpoint.model, "models": endpoint.models, "key": key, "tunnel": tunnel}
        document({"v": 1, "base_url": endpoint.url, **found})
    elif env:
        data(export_line("OPENAI_BASE_URL", endpoint.url) + "\n")
        data(export_line("OPENAI_API_KEY", endpoint.key) + "\n")
    else:
        data(f"url:    {endpoint.url}\n")
        data("".join(f"model:  {name}\n" for name in endpoint.models or (endpoint.model,)))
        data(f"key:    {key}\n")
        if endpoint.tunnel:
            data(f"tunnel: process {endpoint.tunnel.pid}, until {shell_line([*words, '--close'])}\n")
