"""Where the model answers and how to ask it."""

from __future__ import annotations

import json
import shlex
import sys
import time
from pathlib import Path

from vllm_cluster.actions.request_phases import Endpoint
from vllm_cluster.text import host_port


def curl_line(endpoint: Endpoint, inventory: Path | None) -> str:
    """A line that asks the model something, the key fetched on the way; without --expose the tunnel must be open."""
    host = endpoint.host if endpoint.exposed else "127.0.0.1"
    option = f" -i {shlex.quote(str(inventory))}" if inventory else ""
    body = json.dumps({"model": endpoint.model, "prompt": "Hello", "max_tokens": 16})
    return (
        f"curl -s http://{host_port(host, endpoint.port)}/v1/completions -H 'Content-Type: application/json'"
        f' -H "Authorization: Bearer $(vcluster key{option})" -d {shlex.quote(body)}'
    )


def show_endpoint(endpoint: Endpoint, inventory: Path | None, *, as_json: bool) -> None:
    """Write the endpoint on standard output."""
    option = f" -i {shlex.quote(str(inventory))}" if inventory else ""
    line = curl_line(endpoint, inventory)
    where = f"http://{host_port(endpoint.host, endpoint.port)}/v1"
    if as_json:
        document = {
            "v": 1,
            "time": round(time.time(), 3),
            "event": "endpoint",
            "model": endpoint.model,
            "url": where,
            "head": endpoint.head,
            "curl": line,
        }
        print(json.dumps({**document, "key": f"vcluster key{option}", "exposed": endpoint.exposed}), flush=True)
        return
    out = sys.stdout
    out.write(f"{endpoint.model} answers at {where}" + ("\n" if endpoint.exposed else f" on {endpoint.head}\n"))
    # Both open the way to the API by themselves, and keep the key off the command line.
    out.write(f'ask:     vcluster complete "Hello"{option}\n')
    way = " --direct" if endpoint.exposed else " --detach"
    out.write(f"clients: vcluster endpoint{way}{option}\n")
