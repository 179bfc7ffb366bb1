"""What comes back by itself after something was killed on the last host, and how soon."""

from __future__ import annotations

import json
import signal
import time
from typing import Any

from tests.gpu.cluster import Cluster, Failed

# By command line. The container ends with its node program; not by `docker kill`, which Docker takes for a person's
# will and starts nothing after.
RANK = r"RayWorkerProc|RayWorkerWrapper|VLLM::(Worker|EngineCore)"
KILLS = {
    "rank": (RANK, signal.SIGKILL),
    "hang": (RANK, signal.SIGSTOP),
    "raylet": (r"/raylet ", signal.SIGKILL),
    "container": (r"^python3 /opt/vcluster/node\.py", signal.SIGKILL),
}
NOTICE_SECONDS = 60.0
PROBE_SECONDS = 8.0
STATUS = "/var/lib/vcluster/status.json"
APART = 0.5


def heal(cluster: Cluster, what: str, seconds: float) -> dict[str, Any]:
    """Kill it on the last host while the model is ready; seconds until no answer came, and until one came again.

    Raises:
        Failed: nothing answered before, nothing was killed, or no answer came again in time.
    """
    if _until(cluster, time.monotonic(), seconds, answering=True) is None:
        raise Failed("nothing answers before the kill")
    began = time.monotonic()
    if not cluster.kill(cluster.worker, *KILLS[what], 1):
        raise Failed(f"no {what} found on {cluster.worker}")
    noticed = _until(cluster, began, NOTICE_SECONDS, answering=False)
    again = _until(cluster, began, seconds, answering=True)
    if again is None:
        raise Failed(f"no answer within {seconds:.0f} s of the kill of a {what} on {cluster.worker}")
    failure = json.loads(cluster.inside(cluster.head, f"cat {STATUS}").text)["serve"]["failure"]
    return {
        "killed": what,
        "host": cluster.worker,
        "silent_after": noticed,
        "answers_after": again,
        "called": failure and failure["summary"],
    }


def _until(cluster: Cluster, began: float, seconds: float, *, answering: bool) -> float | None:
    """Seconds since the kill until a completion is answered, or is not."""
    while time.monotonic() - began < seconds:
        if (cluster.answers(seconds=PROBE_SECONDS) is not None) == answering:
            return round(time.monotonic() - began, 1)
        time.sleep(APART)
    return None
