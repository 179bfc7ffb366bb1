"""Looks after one batch on the head: takes its lines in, starts and stops its program, gives its rows out.

One JSON line in for each JSON line out. Argument: the folder of the batch. Needs Python 3.10.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

PIECE, BLOCK = 1 << 20, 1 << 16
# Left free on the disk: the node program writes its state there.
SPARE = 1 << 30
START_SECONDS, STOP_SECONDS = 60.0, 20.0
# What makes or removes a batch, while no other call does anything; the name comes from outside.
ALONE = ("begin", "remove")
# What is right also where there is no batch; anything else is about one that is there.
WITHOUT = ("begin", "look", "stop", "remove")
CALLS = ("look", "begin", "put", "sent", "start", "stop", "remove", "batches")
BEGIN = """import sys
sys.path.insert(0, sys.argv[1] + "/program")
from vllm_cluster.features.batch.on_head.runner import main
main(sys.argv[1])"""


class Folder:
    """A batch in its folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def answer(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Reply to a call, unless it is about a batch that another one has begun again since."""
        call = {name: getattr(self, name) for name in CALLS}[wanted["do"]]
        if wanted["do"] == "batches":  # of all, and nothing may keep it waiting
            return dict(call(wanted))
        with self._held(alone=wanted["do"] in ALONE):
            now = self._id()
            if now is None and wanted["do"] not in WITHOUT:
                return {"error": "another call has removed it", "begun_again": True}
            if now in (None, wanted.get("id", now), wanted.get("new")):
                return dict(call(wanted))
            return {"error": "another call has begun it again", "begun_again": True}

    @contextmanager
    def _held(self, *, alone: bool) -> Iterator[None]:
        """Keep the batch as it is for the length of a call, whichever program has another call."""
        # The state's folder: those below it come and go, and a file in them would look like a batch.
        place = os.open(self.path.parent.parent, os.O_RDONLY)
        try:
            fcntl.flock(place, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            yield
        finally:
            os.close(place)

    def look(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Report how far it is, with a piece of its rows from a place on."""
        # Whether it runs comes first: what has ended writes nothing after it.
        state, piece = self._state(), b""
        with suppress(OSError), (self.path / "output.jsonl").open("rb") as file:
            # What follows the last whole row may be torn: the next program takes it away and writes others there.
            whole = _whole_rows(file)
            file.seek(wanted["from"])
            piece = file.read(max(0, min(PIECE, whole - wanted["from"])))
        return {"state": state, "data": base64.b64encode(zlib.compress(piece, 1)).decode()}

    def begin(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Make its folder again, with who asked for it, for those who look at all batches."""
        if self._pid():
            return {"error": "it runs already"}
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(parents=True, mode=0o700)
        (self.path / "id").write_text(wanted["new"])
        (self.path / "asked.json").write_text(json.dumps(wanted["asked"]))
        return {}

    def put(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Add a piece to its lines, unless it is there; replies how much of them is."""
        data = zlib.decompress(base64.b64decode(wanted["data"]))
        if (free := shutil.disk_usage(self.path).free) < SPARE + len(data):
            return {"error": f"{free >> 20} MB are free on its disk, and {SPARE >> 20} MB must stay free"}
        with (self.path / "input.part").open("ab") as file:
            size = file.tell()
            if size == wanted["at"]:
                file.write(data)
            return {"size": file.tell()}

    def sent(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Take its lines for whole where they have this checksum."""
        part, whole = self.path / "input.part", self.path / "input"
        if part.exists():
            with part.open("rb") as file:
                found = hashlib.sha256()
                while piece := file.read(PIECE):
                    found.update(piece)
            if found.hexdigest() != wanted["sha256"]:
                return {"error": "its lines did not arrive as they were sent"}
            part.replace(whole)
        return {} if whole.exists() else {"error": "its lines are gone"}

    def batches(self, _wanted: Mapping[str, Any]) -> dict[str, Any]:
        """List every batch of this head, whichever folder this is."""
        found = []
        with suppress(FileNotFoundError):
            for path in sorted(one for one in self.path.parent.iterdir() if one.is_dir()):
                asked = _read(path / "asked.json")
                found.append({"key": path.name, "state": Folder(path)._state(), "asked": asked})
        return {"batches": found}

    def start(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Start its program, which outlives this one; no error where it runs."""
        if self._pid():
            return {}
        for name, text in wanted["program"].items():
            path = self.path / "program" / name
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.write_text(text)
        (self.path / "options.json").write_text(json.dumps(wanted["options"]))
        (self.path / "status.json").unlink(missing_ok=True)
        with (self.path / "log").open("wb") as log:
            child = subprocess.Popen(
                [sys.executable, "-c", BEGIN, str(self.path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until and child.poll() is None and self._pid() != child.pid:
            time.sleep(0.05)
        child.poll()
        if not self._pid() and _read(self.path / "status.json") is None:
            words = (self.path / "log").read_text(errors="replace").strip()[-1000:]
            return {"error": f"its program does not start: {words or child.returncode}"}
        return {}

    def stop(self, _wanted: Mapping[str, Any]) -> dict[str, Any]:
        """End its program; each of its rows is whole."""
        until = time.monotonic() + STOP_SECONDS
        while (pid := self._pid()) and time.monotonic() < until:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        if self.path.exists():  # whoever follows it must not take it for one that was killed
            status = _read(self.path / "status.json") or {}
            (self.path / "status.json").write_text(json.dumps({**status, "phase": "stopped"}))
        return {}

    def remove(self, _wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Remove the folder of a batch whose program has ended."""
        if not self._pid():
            shutil.rmtree(self.path, ignore_errors=True)
            with suppress(OSError):
                self.path.parent.rmdir()
        return {}

    def _state(self) -> dict[str, Any]:
        """How far it is, as its program wrote it; whether that runs, and whether its lines are there."""
        running = bool(self._pid())
        status = _read(self.path / "status.json") or {}
        return {**status, "running": running, "sent": (self.path / "input").exists(), "id": self._id() or ""}

    def _id(self) -> str | None:
        """The name that the call gave which began it: empty for one of an earlier version, None where there is none."""
        with suppress(OSError):
            return (self.path / "id").read_text()
        return "" if self.path.exists() else None

    def _pid(self) -> int:
        """The process of its program; 0 where it does not run, as numbers come again."""
        with suppress(OSError, ValueError):
            pid = int((self.path / "pid").read_text())
            if str(self.path).encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                return pid
        return 0


def _whole_rows(file: BinaryIO) -> int:
    """The bytes up to the end of the last line that has one."""
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        begin = max(0, end - BLOCK)
        file.seek(begin)
        if (found := file.read(end - begin).rfind(b"\n")) >= 0:
            return begin + found + 1
        end = begin
    return 0


def _read(path: Path) -> Any:
    with suppress(OSError, ValueError):
        return json.loads(path.read_text())
    return None


def main() -> None:
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.umask(0o077)
    job = Folder(Path(sys.argv[1]))
    while line := sys.stdin.readline():
        wanted = json.loads(line)
        try:
            reply = job.answer(wanted)
        except OSError as error:
            reply = {"error": f"{error.strerror or error}: {error.filename or job.path}"}
        out.write(json.dumps(reply) + "\n")


if __name__ == "__main__":
    main()
