"""The private folder of ssh's socket and log; what a killed process left is removed by the next one."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import tempfile
from pathlib import Path

from vllm_cluster.errors import UsageError

# ssh listens under a temporary name, 17 characters longer, and no socket's name may pass 104 (macOS).
MAX_SOCKET_PATH = 85
_PREFIX = "vc-"


class SshFolder:
    """A folder that is in use for as long as this process holds the lock in it, however the process ends."""

    def __init__(self) -> None:
        """Make it.

        Raises:
            UsageError: no folder for temporary files has a short enough name.
        """
        remove_leftovers()
        for parent in _parents():
            with contextlib.suppress(OSError):
                # Under another name until it is locked, or another process's clean-up could take it for a leftover.
                new = Path(tempfile.mkdtemp(prefix=f"new-{_PREFIX}", dir=parent))
                self.path = new.with_name(new.name.removeprefix("new-"))
                if len(os.fsencode(self.path)) + 2 <= MAX_SOCKET_PATH:
                    self._lock = os.open(new / "lock", os.O_RDWR | os.O_CREAT, 0o600)
                    fcntl.flock(self._lock, fcntl.LOCK_EX)
                    new.rename(self.path)
                    return
                new.rmdir()
        raise UsageError(
            "there is no folder for ssh's socket with a short enough name", hint="set TMPDIR to a short path"
        )

    def remove(self) -> None:
        """Remove it with what is in it; may be called twice."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


@functools.cache
def remove_leftovers() -> None:
    """Remove this user's folders that no living process holds; once in a process."""
    for parent in _parents():
        for folder in parent.glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError):
                lock = os.open(folder / "lock", os.O_RDWR | os.O_NOFOLLOW)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if folder.stat(follow_symlinks=False).st_uid == os.getuid():
                        shutil.rmtree(folder, ignore_errors=True)
                finally:
                    os.close(lock)


def _parents() -> list[Path]:
    return list(dict.fromkeys((Path(tempfile.gettempdir()), Path("/tmp"))))  # noqa: S108 - what is made in it is private
