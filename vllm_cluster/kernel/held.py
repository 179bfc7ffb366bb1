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

# Of the facts of all hosts, in bytes as Python has them; `up` looks twice, and holds both. A host with 8 GPUs, 20
# adapters and 300 images takes 0.3 MB, and one of any number of hosts may.
ALL_HOSTS, ONE_HOST, MIN_HOST = 20 << 20, 4 << 20, 320 << 10
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


def share(hosts: int, of_all: int, of_one: int, least: int = 0) -> int:
    """One host's part of what is held of so many hosts, in bytes."""
    return max(least, min(of_one, of_all // max(1, hosts)))


def share_of_facts(hosts: int) -> int:
    """One host's part of the memory for the facts of so many hosts, in bytes."""
    return share(hosts, ALL_HOSTS, ONE_HOST, MIN_HOST)


class Memory:
    """Memory for what is kept of one host: so many bytes, as Python has them."""

    def __init__(self, most: int) -> None:
        self._most = self._left = most

    def keep(self, value: T) -> T:
        """Return a value that there is room for.

        Raises:
            TooMuch: there is none.
        """
        self._count(value)
        return value

    def _count(self, value: object) -> None:
        self._left -= sys.getsizeof(value)
        if self._left < 0:
            raise TooMuch(f"has more than the {self._most >> 10} KiB of memory that there are for one host")
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
