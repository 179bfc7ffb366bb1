"""What the first node of a Slurm job with replicas runs: the front, and what shows it the replicas that are ready."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from vllm_cluster.serving.node.files import write_whole
from vllm_cluster.serving.node.front import main as serve_front
from vllm_cluster.wire.front import FrontDeployment, FrontReplica, FrontRoutes, ReplicaState
from vllm_cluster.wire.inside import beginning
from vllm_cluster.wire.listeners import is_own_listener
from vllm_cluster.wire.reading import RefusedDocument, read
from vllm_cluster.wire.values import Address, Count, Line, Name, Number, Port

LOOK_SECONDS = 0.2
MAX_READY = 64 << 10


@dataclass(frozen=True)
class ReadyReplica:
    """What a replica writes once its model has answered."""

    v: Literal[1]
    job: Line
    model: Line
    node: Name
    address: Address
    port: Port
    attempt: Count
    answered: Line
    since: Number
    start_seconds: Number


def ready_replicas(job: Path) -> dict[str, ReadyReplica]:
    """What each replica that is ready has written, by its start: another start of it is another one."""
    found = {}
    for path in sorted(job.glob("replica-*.json")):
        # It has just ended; or it is nothing that a replica writes, which must not end the others' routes.
        with suppress(OSError, RefusedDocument):
            one = read(ReadyReplica, beginning(path, MAX_READY + 1), path.name, MAX_READY)
            found[f"start-{one.attempt}"] = one
    return found


def routes(model: str, ready: Mapping[str, ReadyReplica], gone: Mapping[str, ReadyReplica]) -> FrontRoutes:
    """Where requests go: to those that are ready; what is open at those that have gone is ended."""
    states: list[tuple[ReplicaState, Mapping[str, ReadyReplica]]] = [("ready", ready), ("lost", gone)]
    key = str(Path(os.environ["VCLUSTER_JOB"]) / "replica-key")
    rows = [
        FrontReplica(start, one.address, one.port, state, key, one.attempt)
        for state, those in states
        for start, one in those.items()
    ]
    return FrontRoutes(1, (FrontDeployment(model, tuple(rows)),))


def keep_routes(job: Path, model: str, own: Mapping[str, Any]) -> None:
    """Write the routes and the job's ready.json, each time that a replica becomes ready or ends."""
    before: dict[str, ReadyReplica] | None = None
    shown = False
    while True:
        ready = ready_replicas(job)
        if ready != before:
            gone = {start: one for start, one in (before or {}).items() if start not in ready}
            write_whole(job / "routes.json", asdict(routes(model, ready, gone)))
            before, shown = ready, False
        if not shown:
            shown = show(job, ready, own)
        time.sleep(LOOK_SECONDS)


def show(job: Path, ready: Mapping[str, ReadyReplica], own: Mapping[str, Any]) -> bool:
    """Write the job's ready.json, by which clients find the front; whether it is as it shall be.

    Not before this front listens: they would give the key to another user of the node who does so there.
    """
    if not ready:
        (job / "ready.json").unlink(missing_ok=True)
        return True
    return is_own_listener(own["address"], own["port"]) and write_whole(
        job / "ready.json", {**asdict(next(iter(ready.values()))), **own, "ready": len(ready)}
    )


def main(argv: Sequence[str]) -> int:
    """Be the front until a signal."""
    job, address, port = Path(os.environ["VCLUSTER_JOB"]), os.environ["MASTER"], int(os.environ["API_PORT"])
    own = {"node": os.environ["SLURMD_NODENAME"], "address": address, "port": port, "replicas": int(argv[1])}
    write_whole(job / "routes.json", asdict(routes(argv[0], {}, {})))
    threading.Thread(target=keep_routes, args=(job, argv[0], own), daemon=True).start()
    return serve_front([f"--listen={address}:{port}", f"--routes={job / 'routes.json'}", "--grace=5"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
