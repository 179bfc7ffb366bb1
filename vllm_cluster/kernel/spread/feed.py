"""Runs in the pull's container beside its program: takes the files that a laptop sends on standard input.

Prints how much of each file is here; then each message names a file and how many bytes of it follow. Prints a line a
file, and ends with its input. Standard library only.
"""

from __future__ import annotations

import fcntl
import io
import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, cast

from vllm_cluster.kernel.spread.main import FOLDER, PLAN, STATUS
from vllm_cluster.kernel.spread.origin import FED, STREAMS
from vllm_cluster.kernel.spread.plan import PullError, new_hash, read_plan
from vllm_cluster.kernel.spread.store import Store
from vllm_cluster.wire.pull import HostPlan, ModelFile

PIECE = 1 << 20
PRINTING = threading.Lock()
INPUT = cast(io.BufferedReader, sys.stdin.buffer)


def print_line(row: dict[str, object]) -> None:
    """Print one line, whole."""
    with PRINTING:
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()


def phase() -> str:
    """How far the program is: it hashes what is here before anything is written."""
    with suppress(OSError, ValueError):
        return str(json.loads((FOLDER / STATUS).read_text())["phase"])
    return "starting"


def take_bytes(store: Store, file: ModelFile, size: int) -> bool:
    """Append so many bytes to what is here of a file; whether it is right. What is wrong is dropped.

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
        print_line({"waiting": True})
        time.sleep(0.5)
    here = [file.size if store.complete(file) else max(0, store.have(file)) for file in plan.files]
    print_line({"have": here, "whole": [store.complete(file) for file in plan.files]})
    # A flush of the disk takes longer than a small file.
    with ThreadPoolExecutor(STREAMS) as pool:
        while line := INPUT.readline():
            row = json.loads(line)
            # Answers are short, by number and not by name: many are printed before one is read.
            if take_bytes(store, plan.files[row["file"]], row["size"]):
                pool.submit(finish, plan, store, row["file"])
            else:
                print_line({"wrong": row["file"]})


def finish(plan: HostPlan, store: Store, index: int) -> None:
    """Put a file in its place."""
    try:
        store.finish(plan.files[index])
    except OSError as error:
        show_error(error)
    else:
        print_line({"done": index})


def show_error(error: OSError) -> None:
    """Print why the host takes no more."""
    print_line({"error": f"{error.strerror}: {error.filename or 'the cache'}"})


def main() -> None:
    """Feed the plan that is beside the program, alone."""
    with Path(FOLDER / FED).open("a") as lock:
        if not locked(lock):
            print_line({"error": "another machine sends the files"})
            return
        plan = read_plan(FOLDER / PLAN)
        try:
            feed(plan, Store(plan))
        except EOFError:
            return
        except PullError as error:
            print_line({"error": str(error)})
        except OSError as error:
            show_error(error)


if __name__ == "__main__":
    main()
