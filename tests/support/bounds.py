"""What hostile input may cost: seconds of this process's own time, and megabytes at once."""

from __future__ import annotations

import resource
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def within(seconds: float, megabytes: float = 100) -> Iterator[None]:
    """Fail where what is inside takes more; a loaded machine takes no more of a process's own time."""
    tracemalloc.start()
    began = time.thread_time()
    try:
        yield
        took, peak = time.thread_time() - began, tracemalloc.get_traced_memory()[1] / 1e6
    finally:
        tracemalloc.stop()
    assert took <= seconds, f"took {took:.1f} s, not {seconds}"
    assert peak <= megabytes, f"took {peak:.0f} MB, not {megabytes}"


@contextmanager
def full_disk(most: int) -> Iterator[None]:
    """No file of this process may grow beyond so many bytes, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def open_files(least: int) -> Iterator[None]:
    """This process may have so many files open, as far as this machine lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(least, hard)), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
