"""Looks after one batch on the head: takes its files in, starts and stops its program, gives its rows out.

One JSON line in for each JSON line out. Argument: the folder of the batch. Needs Python 3.10.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

PIECE = 1 << 20
# Left free on the disk: the node program writes its state there.
SPARE = 1 << 30
START_SECONDS, STOP_SECONDS = 60.0, 20.0
BEGIN = """import sys
sys.path.insert(0, sys.argv[1] + "/program")
from vllm_cluster.batch.on_head import main
main(sys.argv[1])"""


class Job:
    """A batch in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def look(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """How far it is, and a piece of a file from a place on."""
        # Whether it runs comes first: what has ended writes nothing after it.
        pid = self._pid()
        path = self.folder / wanted.get("file", "output.jsonl")
        piece, size = b"", 0
        with suppress(OSError), path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(wanted.get("from", 0))
            piece = file.read(PIECE)
        return {
            "input": (self.folder / "input.jsonl").exists(),
            "running": bool(pid),
            "status": self._status(),
            "size": size,
            "data": base64.b64encode(zlib.compress(piece, 1)).decode(),
        }

    def same(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Whether the output begins with so many bytes of this checksum."""
        with suppress(OSError):
            return {"same": _digest(self.folder / "output.jsonl", int(wanted["size"])) == wanted["sha256"]}
        return {"same": False}

    def put(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Add to a file that arrives; with its checksum it is whole. Replies how much of it is there."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        part, whole = self.folder / f"{wanted['file']}.part", self.folder / wanted["file"]
        if wanted.get("sha256") and whole.exists() and not part.exists() and _digest(whole) == wanted["sha256"]:
            return {"size": whole.stat().st_size}  # its last piece comes again, as the reply to it was lost
        data = zlib.decompress(base64.b64decode(wanted["data"])) if wanted.get("data") else b""
        if (free := shutil.disk_usage(self.folder).free) < SPARE + len(data):
            return {"error": f"{free >> 20} MB are free on its disk, and {SPARE >> 20} MB must stay free"}
        # From its beginning on it is another file; one that broke off is taken up.
        with part.open("wb" if wanted.get("at") == 0 else "ab") as file:
            if file.tell() == wanted.get("at"):
                file.write(data)
            size = file.tell()
        if wanted.get("sha256"):
            if _digest(part) != wanted["sha256"]:
                part.unlink()
                return {"error": f"{wanted['file']} did not arrive as it was sent"}
            part.replace(whole)
        return {"size": size}

    def asked(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Keep who asked for it, with which files and options, for those who look at all batches."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (self.folder / "asked.json").write_text(json.dumps(wanted["asked"]))
        return {}

    def batches(self, _wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Every batch of this head, whichever folder this is."""
        with suppress(FileNotFoundError):
            return {"batches": [Job(one)._about() for one in sorted(self.folder.parent.iterdir()) if one.is_dir()]}
        return {"batches": []}

    def _about(self) -> dict[str, Any]:
        running = bool(self._pid())
        sent = (self.folder / "input.jsonl").exists()
        row = {"key": self.folder.name, "running": running, "input": sent, "asked": None, "options": None}
        for name in ("asked", "options"):
            with suppress(OSError, ValueError):
                row[name] = json.loads((self.folder / f"{name}.json").read_text())
        return {**row, "status": self._status()}

    def start(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Start its program, which outlives this one; no error where it runs."""
        if self._pid():
            return {}
        for path, text in wanted["program"].items():
            place = self.folder / "program" / path
            place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            place.write_text(text)
        (self.folder / "options.json").write_text(json.dumps(wanted["options"]))
        (self.folder / "status.json").unlink(missing_ok=True)
        with (self.folder / "log").open("wb") as log:
            child = subprocess.Popen(
                [sys.executable, "-c", BEGIN, str(self.folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until and child.poll() is None and self._pid() != child.pid:
            time.sleep(0.05)
        child.poll()
        if not self._pid() and self._status() is None:
            words = (self.folder / "log").read_text(errors="replace").strip()[-1000:]
            return {"error": f"its program does not start: {words or child.returncode}"}
        return {}

    def stop(self, _wanted: Mapping[str, Any]) -> dict[str, Any]:
        """End its program."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if pid := self._pid():
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            until = time.monotonic() + STOP_SECONDS
            while self._pid() and time.monotonic() < until:
                time.sleep(0.05)
        return {}

    def remove(self, _wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Remove the folder of a batch whose program has ended."""
        if not self._pid():
            shutil.rmtree(self.folder, ignore_errors=True)
            with suppress(OSError):
                self.folder.parent.rmdir()
        return {}

    def _pid(self) -> int:
        """The process of its program; 0 where it does not run, as numbers come again."""
        with suppress(OSError, ValueError):
            pid = int((self.folder / "pid").read_text())
            if str(self.folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                return pid
        return 0

    def _status(self) -> Any:
        with suppress(OSError, ValueError):
            return json.loads((self.folder / "status.json").read_text())
        return None


def _digest(path: Path, size: int = -1) -> str:
    """The checksum of a file, or of so many of its first bytes."""
    found, left = hashlib.sha256(), size if size >= 0 else path.stat().st_size
    with path.open("rb") as file:
        while left and (piece := file.read(min(left, PIECE))):
            found.update(piece)
            left -= len(piece)
    return found.hexdigest()


def main() -> None:
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.umask(0o077)
    job = Job(Path(sys.argv[1]))
    calls = {"look": job.look, "same": job.same, "put": job.put, "start": job.start, "stop": job.stop}
    calls |= {"remove": job.remove, "asked": job.asked, "batches": job.batches}
    while line := sys.stdin.readline():
        wanted = json.loads(line)
        try:
            reply = calls[wanted["do"]](wanted)
        except OSError as error:
            reply = {"error": f"{error.strerror or error}: {error.filename or job.folder}"}
        out.write(json.dumps(reply) + "\n")


if __name__ == "__main__":
    main()
