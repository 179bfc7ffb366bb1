"""What `vcluster batch` finds by itself beside fixed numbers: `python -m tests.bench.batches FOLDER` of the sandbox.

On a cluster that serves the sandbox's model. Prints requests per second, medians of rounds in turns, and the ratio.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from tests.support.batches import write_requests
from tests.support.hosts import Sandbox

REQUESTS, TOKENS, ROUNDS = 6000, 16, 3
FIXED = (32, 64, 128, 256, 500)


def rate(sandbox: Sandbox, source: Path, *options: str) -> float:
    """Requests per second of a whole batch, its beginning included."""
    with tempfile.TemporaryDirectory() as folder:
        done = sandbox.vcluster("batch", str(source), "-o", f"{folder}/out.jsonl", "--json", *options).ok()
        events = [json.loads(line) for line in done.out.splitlines()]
    (result,) = [event for event in events if event["event"] == "result"]
    return float(result["answered_now"] / result["seconds"])


def measure(sandbox: Sandbox) -> Iterator[tuple[str, float]]:
    """The median for each fixed number and, last, for what is found."""
    variants = {str(number): ("--concurrency", str(number)) for number in FIXED} | {"found": ()}
    rates: dict[str, list[float]] = {name: [] for name in variants}
    with tempfile.TemporaryDirectory() as folder:
        source = write_requests(Path(folder) / "in.jsonl", REQUESTS, TOKENS)
        for _ in range(ROUNDS):
            for name, options in variants.items():
                rates[name].append(rate(sandbox, source, *options))
                print(name, f"{rates[name][-1]:.1f}/s", flush=True)
    for name, found in rates.items():
        yield name, median(found)


if __name__ == "__main__":
    medians = dict(measure(Sandbox(Path(sys.argv[1]))))
    best = max(value for name, value in medians.items() if name != "found")
    print({name: round(value, 1) for name, value in medians.items()})
    print(f"found by itself ÷ best fixed: {medians['found'] / best:.2f}")
