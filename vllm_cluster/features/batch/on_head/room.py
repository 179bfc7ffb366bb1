"""Room on the head's disk, and what arrives of an answer: on the disk beyond its beginning, so that none waits."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import SpooledTemporaryFile

from vllm_cluster.features.batch.on_head.lines import BatchProblem

# Left free on the disk: the node program writes its state there.
SPARE = 1 << 30
# Of each answer in memory; of 1024 open ones the whole would be 16 GiB.
BEGINNING = 64 << 10
# Left by answers that arrive to the rows of those that have: a row that finds no room ends the batch.
ROWS = 64 << 20


class NoRoom(BatchProblem):
    """The disk is too full for an answer: others may leave it soon."""


def lack_of_room(folder: Path, more: int = 0) -> str:
    """Return why nothing may be written in a folder that leaves so much `more`; empty where something may."""
    if (free := shutil.disk_usage(folder).free) >= SPARE + more:
        return ""
    return f"{free >> 20} MB are free on the head's disk ({folder}), and {SPARE + more >> 20} stay free"


class AnswerSoFar:
    """The content of an answer, as far as it has arrived; its file has no name, and is gone with this program."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.size = folder, 0
        self._file: SpooledTemporaryFile[bytes] = SpooledTemporaryFile(BEGINNING, dir=str(folder))  # noqa: SIM115

    @property
    def long(self) -> bool:
        """Whether it is on the disk."""
        return self.size > BEGINNING

    def add(self, piece: bytes) -> None:
        """Add what has arrived.

        Raises:
            NoRoom: the disk is nearly full.
            OSError: it cannot be written.
        """
        self.size += len(piece)
        if self.long and (why := lack_of_room(self._folder, ROWS)):
            raise NoRoom(why)
        self._file.write(piece)

    def whole(self) -> bytes:
        """Take it into memory, and free its room."""
        self._file.seek(0)
        found = self._file.read()
        self.close()
        return found

    def close(self) -> None:
        """Free its room."""
        self._file.close()
