"""Commands as the one line of text that a host's login shell receives."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vllm_cluster.core.errors import CommandFailed, UsageError

if TYPE_CHECKING:
    from vllm_cluster.transport.base import Deadline, Transport

# `sh` stays above `timeout`: a command that a signal killed then has an exit code (128 + n) instead of none, which
# would look like a broken connection. The seal marks an exit code 255 as the command's own, where ssh has one too.
_BOUNDED = 'timeout -k 5 "$0" "$@"; s=$?; exit "$s"'
_SEALED = 'timeout -k 5 "$0" "$@"; s=$?; [ "$s" != 255 ] || printf %s {seal} >&2; exit "$s"'

# A connection that breaks ends `cat` like a whole file does, so the size decides what is moved into place; and it
# makes a broken pipe of the message about it, which without a trap would leave the temporary file.
_PUT = """
[ ! -d "$1" ] || { echo "$1 is a directory" >&2; exit 1; }
umask 077
t=$(mktemp "$1.XXXXXX") || exit 1
trap 'rm -f "$t"' EXIT
trap 'exit 143' HUP INT TERM PIPE
cat > "$t" && chmod "$2" "$t" || exit 1
n=$(wc -c < "$t")
[ "$n" -eq "$3" ] || { echo "$n of $3 bytes arrived" >&2; exit 1; }
mv -f "$t" "$1"
"""


def encoded(words: Sequence[str]) -> list[bytes]:
    """The arguments as bytes; what no command line can carry is refused."""
    if not words:
        raise UsageError("there is no command to run")
    for word in words:
        if "\0" in word:
            raise UsageError(f"an argument holds a NUL character: {word!r}")
    try:
        return [word.encode("utf-8", "surrogateescape") for word in words]
    except UnicodeEncodeError as error:
        raise UsageError(f"an argument is not text: {error.object!r}") from None


def command_line(argv: Sequence[str]) -> bytes:
    """A shell line that becomes the command, each argument as it is."""
    encoded(argv)
    return ("exec " + shlex.join(argv)).encode("utf-8", "surrogateescape")


def bounded(argv: Sequence[str], seconds: float, *, seal: str = "") -> bytes:
    """A shell line that runs the command and ends it, with what it started, after `seconds`."""
    encoded(argv)
    script = _SEALED.format(seal=seal) if seal else _BOUNDED
    # A duration of 0 means "no limit" to timeout.
    return command_line(["sh", "-c", script, f"{max(seconds, 0.01):.3f}", *argv])


def shown(argv: Sequence[str], width: int = 80) -> str:
    """The command for an error message, in one short line."""
    text = shlex.join(argv).replace("\n", "\\n")
    return text if len(text) <= width else text[: width - 1] + "…"


def put(transport: Transport, data: bytes, path: str, deadline: Deadline, mode: int) -> None:
    """Write a file through a command of the transport: a temporary file beside it, then one rename."""
    target = f"./{path}" if path.startswith("-") else path
    result = transport.run(["sh", "-c", _PUT, "put", target, f"{mode:o}", str(len(data))], deadline, stdin=data)
    if result.returncode:
        stderr = result.stderr.decode("utf-8", "replace").strip()
        raise CommandFailed(
            transport.host,
            f"cannot write {path}: {stderr or f'exit code {result.returncode}'}",
            exit_code=result.returncode,
            stderr=stderr,
            hint=f"check that the folder of {path} exists, is writable and has room",
        )
