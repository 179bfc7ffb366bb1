"""A cluster that serves, with secrets that can be looked for."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.support.endpoint import MODEL
from tests.support.hosts import Sandbox
from vllm_cluster.serving.node.timing import Timing

SNAPSHOT = f"/models/hub/models--{MODEL.replace('/', '--')}/snapshots/*"
# A copy of it that shows only at its load that it cannot be served.
BROKEN = "/models/broken"
HF_TOKEN = "hf_CanaryÄ+/=0123456789 canary"  # awkward on purpose: every quoting changes it
API_KEY = "sk-Canary+/=&0123456789~canary"
S3_KEY = "S3Canary+/=0123456789abcdefghijklmnop"
# The token is in the inventory of all tests.
SECRETS = "api_key: env:SANDBOX_API_KEY\nsecrets: {SANDBOX_S3: env:SANDBOX_S3_KEY}\n"


def with_secrets(sandbox: Sandbox) -> Sandbox:
    """The same hosts with one GPU each, which is served sooner, and secrets given by reference."""
    smaller = [(f"gpu{n}: {{", f"gpu{n}: {{gpus: 1, ") for n in (1, 2)]
    inventory = sandbox.rewrite(Path("secrets.yaml"), replace=smaller, add=SECRETS)
    secrets = {"SANDBOX_HF_TOKEN": HF_TOKEN, "SANDBOX_API_KEY": API_KEY, "SANDBOX_S3_KEY": S3_KEY}
    return Sandbox(sandbox.folder, {**secrets, "VCLUSTER_INVENTORY": str(inventory)})


def cut_off_weights(sandbox: Sandbox) -> None:
    """Put the copy whose weights are cut off on both hosts."""
    copy = f"mkdir -p {BROKEN} && cp -L {SNAPSHOT}/* {BROKEN} && truncate -s -1000 {BROKEN}/model.safetensors"
    for host in ("gpu1", "gpu2"):
        sandbox.on(host, "sh", "-c", copy, root=True)


def serve(sandbox: Sandbox, *options: str) -> Sandbox:
    """Have the cluster up and the model served, with restarts left; quick where it is."""
    sandbox.vcluster("up", "--yes").ok()
    # Attacks of an hour break one model more often than the head starts it again.
    if len(_starts(sandbox)) >= Timing().restarts:
        sandbox.vcluster("stop", "--yes").ok()
    sandbox.vcluster("serve", "--yes", MODEL, *options).ok()
    return sandbox


def _starts(sandbox: Sandbox) -> list[float]:
    """When the model that is served now was started, within the last hour."""
    found = _state(sandbox, "serve.json")
    return list(found["starts"]) if found else []


def node_status(sandbox: Sandbox) -> dict[str, Any] | None:
    """What the head's node program reports of itself; None while it cannot be asked."""
    return _state(sandbox, "status.json")


def _state(sandbox: Sandbox, file: str) -> dict[str, Any] | None:
    """A document of the head's state; None while it cannot be read."""
    ask = f"docker exec vcluster-sandbox cat /var/lib/vcluster/{file}"
    argv = ["docker", "exec", sandbox.container("gpu1"), "sh", "-c", ask]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return None
    return found


def ready_since(sandbox: Sandbox) -> float | None:
    """When the model that is served now became ready; None while it is not."""
    status = node_status(sandbox)
    serving = status["serve"] if status else None
    return float(serving["ready_at"]) if serving and serving["phase"] == "ready" else None


def until_ready_again(sandbox: Sandbox, broke: float, seconds: float) -> tuple[float, float]:
    """Wait until it is shown as ready after it was not; the seconds until it was not ready, and ready again.

    Raises:
        AssertionError: not within `seconds`.
    """
    unready: float | None = None
    while True:
        since = ready_since(sandbox)
        now = time.time()
        if unready is None and (since is None or since > broke):
            unready = now - broke
        if since is not None and since > broke:
            return unready or 0.0, now - broke
        assert now - broke < seconds, f"not ready again after {seconds:.0f} s: {node_status(sandbox)}"
        time.sleep(0.2)


def addresses(sandbox: Sandbox) -> dict[str, str]:
    """The hosts' addresses on their network."""
    return {row["host"]: row["address"] for row in sandbox.vcluster("status", "--json").json()["hosts"]}
