"""The debug log: what was sent to which host, how long it took and what came back; secrets redacted.

One file a run. `-vv` streams it, and `explain --bundle` packs the last ones of its inventory. A run that cannot
write it continues without.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path

from vllm_cluster.kernel.clock import SYSTEM_CLOCK, Clock
from vllm_cluster.kernel.laptop import make_private
from vllm_cluster.kernel.text import printable, redact

# Of each run one file and, where that is full, the one before it.
MAX_FILES, MAX_BYTES = 20, 10 << 20
MAX_LINE = 2000
FOLDER = "logs"

_CALLS = logging.getLogger("vllm_cluster.calls")
_CALLS.propagate = False
_CALLS.setLevel(logging.CRITICAL)


class LoggedCall:
    """One call, from its start to its end; `result` is what came back, in a few words."""

    def __init__(self, host: str, carrier: str, what: str) -> None:
        self.host, self.carrier, self.what, self.result = host, carrier, what, "done"


@contextmanager
def logged(host: str, carrier: str, what: str, clock: Clock = SYSTEM_CLOCK) -> Iterator[LoggedCall]:
    """Write one line when the call has ended, also where it ended in an error, which is raised again."""
    call, began = LoggedCall(host, carrier, what), clock.monotonic()
    try:
        yield call
    except BaseException as error:
        call.result = f"{type(error).__name__}: {error}"
        raise
    finally:
        milliseconds = (clock.monotonic() - began) * 1000
        _CALLS.debug("%s %s %.0f ms: %s -> %s", host, carrier, milliseconds, call.what, call.result)


def inventory_key(cluster: str, path: Path | None) -> str:
    """A name for the cluster of an inventory file: what was sent to another's hosts must not get into its bundle.

    Not by the hosts: two sites may have the same names for theirs. One on standard input is this run's alone.
    """
    words = [cluster, str(path.resolve()) if path else os.getpid()]
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()[:12]


def to_file(cache: Path, verb: str, key: str) -> Path | None:
    """Keep the log of this run in a file for its owner alone; None where none can be written."""
    folder = cache / FOLDER
    path = folder / f"{time.strftime('%Y%m%dT%H%M%S')}-{verb}-{key}-{os.getpid()}.log"
    with suppress(OSError):
        make_private(folder)
        _add(_PrivateFile(path, maxBytes=MAX_BYTES, backupCount=1, encoding="utf-8"))
        for oldest in kept(cache)[-MAX_FILES:][:1]:
            # With what was full before: its name has one number more.
            for old in folder.glob("*-*-*.log*"):
                if old.name < oldest.name:
                    old.unlink(missing_ok=True)
        return path
    return None


def to_stderr() -> None:
    """Stream the log of this run."""
    _add(_Quiet(sys.stderr))


def kept(cache: Path, key: str = "*") -> list[Path]:
    """The files of the last runs on an inventory, or on all, the oldest first: their names begin with the time."""
    return sorted((cache / FOLDER).glob(f"*-{key}-*.log"))


def close() -> None:
    """End the log of this run."""
    _CALLS.setLevel(logging.CRITICAL)
    for handler in tuple(_CALLS.handlers):
        _CALLS.removeHandler(handler)
        # What did not fit on a full disk is gone; the call itself may have been well.
        with suppress(OSError):
            handler.close()


class _OneLine(logging.Formatter):
    """Redacts, and keeps what a host wrote from making lines of its own or steering a terminal."""

    default_msec_format = "%s.%03d"

    def format(self, record: logging.LogRecord) -> str:
        # Cut last: a part of a secret has its shape no more.
        return printable(redact(super().format(record)))[:MAX_LINE]


def _add(handler: logging.Handler) -> None:
    handler.setFormatter(_OneLine("%(asctime)s %(message)s"))
    _CALLS.addHandler(handler)
    _CALLS.setLevel(logging.DEBUG)


class _Quiet(logging.StreamHandler):  # type: ignore[type-arg]  # generic for the checker alone
    """A full disk or a closed terminal must not print a traceback for each line."""

    def handleError(self, record: logging.LogRecord) -> None:
        pass


class _PrivateFile(RotatingFileHandler, _Quiet):
    def _open(self) -> object:  # type: ignore[override]
        return open(self.baseFilename, self.mode, encoding=self.encoding, opener=_open_private)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
