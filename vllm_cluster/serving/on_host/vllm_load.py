"""Reports how many requests vLLM works on, and the host's clock, since the laptop's may differ.

Arguments: vLLM's host and port, and the seconds that it may take. Only its two gauges are read, of each replica; by
http.client and not urllib, which would ask a proxy for our own port.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import sys
import time
from pathlib import Path

from vllm_cluster.wire.keys import key_to_use
from vllm_cluster.wire.listeners import connect_to_own_only
from vllm_cluster.wire.metrics import MAX_METRICS, read_loads


def requests(host: str, port: int, seconds: float) -> dict[str, int]:
    """How many requests run or wait by replica, where that is known; empty where vLLM does not answer."""
    with contextlib.suppress(OSError, KeyError, ValueError, ArithmeticError, http.client.HTTPException):
        key = key_to_use(Path(os.environ["VCLUSTER_API_KEY_FILE"]))
        with contextlib.closing(http.client.HTTPConnection(host, port, timeout=seconds)) as server:
            server.request("GET", "/metrics", headers={"Authorization": f"Bearer {key}"})
            reply = server.getresponse()
            text = reply.read(MAX_METRICS).decode("utf-8", "replace")
        loads = read_loads(text) if reply.status == http.HTTPStatus.OK else {}
        return {replica: round(load.running + load.waiting) for replica, load in loads.items() if load}
    return {}


if __name__ == "__main__":
    connect_to_own_only()
    began = time.time()
    found = requests(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
    print(json.dumps({"now": began, "requests": found}))
