"""Runs in the pull's container beside its program: takes the files that a laptop sends on standard input.

Prints how much of each file is here; then each message names a file and how many bytes of it follow. Prints a line a
file, and ends with its input. Standard library only.
"""

from __future__ import annotations

import fcntl
import io
import json
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, cast

from vllm_cluster.remote.pull.main import FOLDER, PLAN, STATUS
from vllm_cluster.remote.pull.origin import FED
from vllm_cluster.remote.pull.plan import PullError, new_hash, read_plan
from vllm_cluster.remote.pull.store import Store
from vllm_cluster.wire.pull import HostPlan, ModelFile

PIECE = 1 << 20
INPUT = cast(io.BufferedReader, sys.stdin.buffer)


def show(row: dict[str, Any]) -> None:
    """Print one line, whole."""
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


def phase() -> str:
    """How far the program is: it hashes what is here before anything is written."""
    with suppress(OSError, ValueError):
        return str(json.loads((FOLDER / STATUS).read_text())["phase"])
    return "starting"


def take(store: Store, file: ModelFile, size: int) -> bool:
    """Append so many bytes to what is here of a file, and put it in its place; whether it is right.

    Raises:
        PullError: more bytes are to come than the file has.
    """
    found = new_hash(file)
    with store.append(file) as target:
        target.seek(0)
        while data := target.read(PIECE):
            found.update(data)
        while size and (data := INPUT.read1(min(size, PIECE))):
            target.write(data)
            found.update(data)
            size -= len(data)
    if size:
        raise EOFError
    if found.hexdigest() == file.blob:
        store.finish(file)
        return True
    store.drop_partial(file)
    return False


def locked(lock: IO[str]) -> bool:
    """Whether this process alone feeds; whoever looks whether one does has the lock for a moment too."""
    for _ in range(20):
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(0.1)
    return False


def feed(plan: HostPlan, store: Store) -> None:
    """Take the files, in the order in which they come."""
    while phase() in ("starting", "verifying"):
        show({"waiting": True})
        time.sleep(0.5)
    here = [file.size if store.complete(file) else max(0, store.have(file)) for file in plan.files]
    show({"have": here, "whole": [store.complete(file) for file in plan.files]})
    while line := INPUT.readline():
        row = json.loads(line)
        file = plan.files[row["file"]]
        if take(store, file, row["size"]):
            show({"done": file.path})
        else:
            show({"wrong": file.path, "error": f"{file.path} has changed since it was hashed"})


def main() -> None:
    """Feed the plan that is beside the program, alone."""
    with Path(FOLDER / FED).open("a") as lock:
        if not locked(lock):
            show({"error": "another machine sends the files"})
            return
        plan = read_plan(FOLDER / PLAN)
        try:
            feed(plan, Store(plan))
        except EOFError:
            return
        except PullError as error:
            show({"error": str(error)})
        except OSError as error:
            show({"error": f"{error.strerror}: {error.filename or 'the cache'}"})


if __name__ == "__main__":
    main()
