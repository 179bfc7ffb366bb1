"""Memory and time of a batch of ten million lines: `python -m tests.bench.large_batches [LINES]`, 6 GB of disk.

A server that is made up answers at once. The run is killed at half of the lines, and another one continues.
"""

from __future__ import annotations

import json
import os
import queue
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from time import process_time
from typing import Any, cast

from tests.support.sim import make
from vllm_cluster.actions import batch as action
from vllm_cluster.actions.batch import batch
from vllm_cluster.batch import engine
from vllm_cluster.batch.client import ApiAddress, ApiConnection, Outcome, Task
from vllm_cluster.batch.work import BatchFiles
from vllm_cluster.events import Event

LINES = 10_000_000


class Server:
    """The way to the model, and the model: it answers with 20 words."""

    endpoint, model = ApiAddress(1, "k"), "m"

    # When the files were read, and the first request could be asked.
    opened = 0.0

    def __init__(self, *_: object) -> None: ...

    def __enter__(self) -> Server:
        Server.opened = process_time()
        return self

    def __exit__(self, *_: object) -> None: ...

    def ensure_model(self, *_: object) -> None: ...

    def post(self, _path: str, _body: Mapping[str, Any]) -> Outcome:
        usage = {"prompt_tokens": 12, "completion_tokens": 20}
        choices = [{"index": 0, "text": " word" * 20, "finish_reason": "length"}]
        return Outcome(200, {"id": "cmpl-1", "model": "m", "choices": choices, "usage": usage})


class Instant:
    """In the place of the threads: each task is done when it is submitted."""

    def __init__(self, *_: object) -> None:
        self.results: queue.SimpleQueue[object] = queue.SimpleQueue()

    def submit(self, task: Task) -> None:
        self.results.put(task(cast(ApiConnection, Server())))

    def taken(self) -> None: ...

    def close(self) -> None: ...


def run(folder: Path, end: int) -> None:
    """Answer what is left; at `end` answers the process ends as by a kill."""
    began = process_time()

    def show(answered: int) -> None:
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        read, asked = Server.opened - began, process_time() - Server.opened
        seconds = f"{read:.0f} s of a processor to read the files, {asked:.0f} s for the answers"
        print(f"{answered:,} answered, {seconds}, {memory} MB", flush=True)

    def watch(event: Event) -> None:
        answered, total = (int(str(event.data.get(name, 0))) for name in ("answered", "total"))
        if event.kind == "progress" and end <= answered < total:
            show(answered)
            os._exit(9)

    setattr(engine, "Threads", Instant)  # noqa: B010
    setattr(action, "HeadApi", Server)  # noqa: B010
    files = BatchFiles(folder / "in.jsonl", folder / "out.jsonl", folder / "errors.jsonl")
    done = batch(make.inventory(1), files, engine.Options(concurrency=500), watch, wait=0)
    show(done.answered)


def measure(lines: int) -> None:
    """Write the input, and answer it in two runs."""
    with tempfile.TemporaryDirectory() as folder:
        with (Path(folder) / "in.jsonl").open("w") as file:
            for number in range(lines):
                body = {"prompt": f"The number {number} is", "max_tokens": 20}
                row = {"custom_id": f"request-{number}", "method": "POST", "url": "/v1/completions", "body": body}
                file.write(json.dumps(row) + "\n")
        print(f"{lines:,} lines, {(Path(folder) / 'in.jsonl').stat().st_size >> 20} MB", flush=True)
        for end in (lines // 2, lines):
            subprocess.run([sys.executable, "-m", "tests.bench.large_batches", folder, str(end)], check=False)
        print(f"output {(Path(folder) / 'out.jsonl').stat().st_size >> 20} MB", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        run(Path(sys.argv[1]), int(sys.argv[2]))
    else:
        measure(int(sys.argv[1]) if len(sys.argv) > 1 else LINES)
