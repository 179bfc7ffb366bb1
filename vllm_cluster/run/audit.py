"""The history of a cluster: who did what and when, appended on the head."""

from __future__ import annotations

import getpass
import json
import socket
import time
from collections.abc import Sequence

from vllm_cluster import __version__
from vllm_cluster.core.desired import STATE_FOLDER
from vllm_cluster.docker.engine import EngineClient
from vllm_cluster.transport.base import Deadline

AUDIT_FILE = f"{STATE_FOLDER}/audit.jsonl"


def record(head: EngineClient, cluster: str, verb: str, what: Sequence[str]) -> None:
    """Append one line; secrets never get here, since operations do not hold their values."""
    line = json.dumps(
        {
            "at": round(time.time(), 3),
            "who": f"{getpass.getuser()}@{socket.gethostname()}",
            "version": __version__,
            "verb": verb,
            "what": list(what),
        }
    )
    script = 'printf "%s\\n" "$1" >>"$2"'
    argv = ["timeout", "10", "sh", "-c", script, "audit", line, AUDIT_FILE]
    head.exec(f"vcluster-{cluster}", argv, Deadline.after(15))
