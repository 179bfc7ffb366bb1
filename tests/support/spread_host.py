"""One host of a pull in a process of its own: `python -m tests.support.spread_host PLAN`.

Prints a line of progress each time it changes, and ends with its input.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from vllm_cluster.kernel.spread import spread
from vllm_cluster.kernel.spread.plan import read_plan
from vllm_cluster.kernel.spread.spread import SpreadProgress
from vllm_cluster.kernel.spread.store import Store


def main() -> None:
    """Serve, receive unless it is the source, and wait for the end of the input."""
    plan = read_plan(Path(sys.argv[1]))
    store = Store(plan)
    server = spread.serve(plan, store)
    last = SpreadProgress(-1)

    def report(progress: SpreadProgress) -> None:
        nonlocal last
        if progress != last:
            print(json.dumps(asdict(progress)), flush=True)
        last = progress

    steering = spread.receive(plan, store, report) if plan.me != plan.hosts[0].name else None
    print(json.dumps({"whole": True}), flush=True)
    sys.stdin.read()
    if steering:
        steering.close()
    server.close()


if __name__ == "__main__":
    main()
