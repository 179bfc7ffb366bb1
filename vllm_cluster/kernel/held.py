"""How much is held of what hosts answer: of each so much that all of them have room together."""

from __future__ import annotations

import ctypes
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from typing import TypeVar

T = TypeVar("T")

# Of the facts of all hosts, in bytes as Python has them. A host with 8 GPUs, 20 adapters, 300 images and 200 containers
# takes 0.4 MB while it is looked at: all hosts of any number may. One may take more of what the others leave.
ALL_HOSTS, EACH_HOST, ONE_HOST = 20 << 20, 448 << 10, 4 << 20
# What each has for itself, also where the others take all else.
OWN = 128 << 10
# What a host takes of the spare memory at once.
_STEP = 16 << 10
_READING = threading.Lock()
# Of glibc's malloc.h.
_M_ARENA_MAX = -8


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Read an answer while no other one is read: short values take up to 30 times their text, of 32 hosts 1.3 GB."""
    with _READING:
        try:
            yield
        except BaseException as error:
            let_go(error)
            raise


def let_go(error: BaseException | None) -> None:
    """Let an error hold nothing of what was at hand where it was raised: those of 64 hosts are kept together."""
    while error:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def share_heap() -> None:
    """Let all threads that are started from now on allocate from one heap, where the C library is glibc.

    Each of 32 had its own, where what one has freed is of no use to the others: 13 MB of 16 that were held.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


class TooMuch(ValueError):
    """What is to be kept takes more memory than there is for one host."""


def share(hosts: int, of_all: int, of_one: int) -> int:
    """One host's part of what is held of so many hosts, in bytes."""
    return min(of_one, of_all // max(1, hosts))


class SharedMemory:
    """The memory for the facts of all hosts: what each has for itself, and the rest for those that take more."""

    def __init__(self, hosts: int) -> None:
        self._lock = threading.Lock()
        self._spare = max(ALL_HOSTS, hosts * EACH_HOST) - hosts * OWN

    def lend(self, size: int) -> bool:
        """Whether so many bytes are spare; they are not any more."""
        with self._lock:
            lent = size <= self._spare
            self._spare -= size if lent else 0
        return lent

    def take_back(self, size: int) -> None:
        """Have so many bytes to spare again."""
        with self._lock:
            self._spare += size


class Memory:
    """Memory for what is kept of one host, counted in bytes as Python has them; by itself, so many."""

    def __init__(self, own: int, shared: SharedMemory | None = None, most: int = 0) -> None:
        self._own, self._shared, self._most = own, shared, most or own
        self._kept, self._left, self._lent = 0, own, 0

    def renew(self) -> Memory:
        """Forget what was kept: it is looked at again, and what was there before goes."""
        if self._shared:
            self._shared.take_back(self._lent)
        self._kept, self._left, self._lent = 0, self._own, 0
        return self

    def keep(self, value: T) -> T:
        """Return a value that there is room for.

        Raises:
            TooMuch: there is none.
        """
        self._count(value)
        return value

    def _take(self, size: int) -> None:
        self._kept += size
        self._left -= size
        if self._left < 0 and self._shared:
            step = max(_STEP, -self._left)
            if self._own + self._lent + step <= self._most and self._shared.lend(step):
                self._lent += step
                self._left += step
        if self._left < 0:
            raise TooMuch(f"takes more than {(self._kept - size) >> 10} KiB of memory, and there is no more for it")

    def _count(self, value: object) -> None:
        self._take(sys.getsizeof(value))
        if isinstance(value, Mapping):
            for key, entry in value.items():
                self._count(key)
                self._count(entry)
        elif isinstance(value, tuple | list | frozenset):
            for entry in value:
                self._count(entry)
        elif is_dataclass(value):
            for one in fields(value):
                self._count(getattr(value, one.name))
