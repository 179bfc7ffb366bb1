"""Reports how many requests vLLM works on, and the host's clock, since the laptop's may differ.

Arguments: vLLM's host and port, and the seconds that it may take. Only its two gauges are read; by http.client and not
urllib, which would ask a proxy for our own port.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import sys
import time
from pathlib import Path

from vllm_cluster.wire.keys import key_to_use
from vllm_cluster.wire.listeners import connect_to_own_only

GAUGES = re.compile(r"^vllm:num_requests_(?:running|waiting)(?:{([^\n]*)})? +(\S+)$", re.MULTILINE)
MODEL = re.compile(r'(?:^|,)model_name="([^"\\]*)"')
MAX_METRICS = 8 << 20


def requests(host: str, port: int, seconds: float) -> dict[str, float]:
    """How many requests run or wait by model, and all under no name; empty where vLLM does not answer."""
    found: dict[str, float] = {}
    with contextlib.suppress(OSError, KeyError, ValueError, ArithmeticError, http.client.HTTPException):
        key = key_to_use(Path(os.environ["VCLUSTER_API_KEY_FILE"]))
        with contextlib.closing(http.client.HTTPConnection(host, port, timeout=seconds)) as server:
            server.request("GET", "/metrics", headers={"Authorization": f"Bearer {key}"})
            reply = server.getresponse()
            gauges = GAUGES.findall(reply.read(MAX_METRICS).decode("utf-8", "replace"))
        for labels, number in gauges if reply.status == http.HTTPStatus.OK else ():
            named = MODEL.search(labels)
            for name in {"", named[1] if named else ""}:
                found[name] = found.get(name, 0) + float(number)
    return found


if __name__ == "__main__":
    connect_to_own_only()
    began = time.time()
    found = requests(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
    counts = {name: round(number) for name, number in found.items()}
    print(json.dumps({"now": began, "requests": counts.pop("", None), "models": counts}))
