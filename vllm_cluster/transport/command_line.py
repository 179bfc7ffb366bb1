"""Commands as a host receives them, quoted for any login shell."""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from vllm_cluster.errors import UsageError
from vllm_cluster.transport.base import MAX_GREETING, MAX_OUTPUT, Result

# All that a login shell ever parses. Each shell quotes in its own way, so this holds nothing that one of them reads
# differently: no newline and no "!" (csh), no backslash (fish), no name that an alias could take. The command itself
# is the first line of standard input: `read` takes no byte beyond it, and nothing runs when the line breaks off.
LINE = b"""exec /bin/sh -c 'IFS= read -r s && eval "$(printf %b "$s")"'"""

# Characters of a command in an error message.
MAX_SHOWN = 80

# What a line of standard input cannot carry; `printf %b` turns \0ooo back into the byte.
_ESCAPED = re.compile(rb"[^ -\[\]-~]")

# A program that only repeats its input does not print the mark, since the end of a line is escaped there.
_MARKED = "echo {mark}\necho {mark} >&2\n{script}"

# `sh` stays above `timeout`: a command that a signal killed then has an exit code (128 + n) instead of none, which
# would look like a broken connection. A second mark makes an exit code 255 the command's own, where ssh has one too.
_BOUNDED = 'timeout -k 5 {seconds:.3f} {command}\ns=$?\n[ "$s" != 255 ] || echo {mark} >&2\nexit "$s"'


@dataclass(frozen=True)
class Command:
    """The first line of standard input, and the mark after which the command's own output begins, on both outputs."""

    first: bytes
    mark: bytes

    def hopeless(self, greeting: bytes) -> bool:
        """Whether the command will never begin: too much came before it, or only its own text comes back."""
        return len(greeting) > MAX_GREETING or self.first in greeting

    def started(self, result: Result) -> bool:
        """Whether the command itself began, and not only the login shell."""
        return self.mark in result.stdout

    def own_255(self, result: Result) -> bool:
        """Whether an exit code 255 is the command's own."""
        return result.stderr.endswith(self.mark) and result.stderr.count(self.mark) > 1

    def own(self, result: Result) -> Result:
        """The result without what the login shell printed before the command."""
        stdout, stderr = result.stdout.partition(self.mark)[2], self.own_stderr(result.stderr)
        return replace(result, stdout=stdout[:MAX_OUTPUT], stderr=stderr[:MAX_OUTPUT])

    def own_stderr(self, stderr: bytes) -> bytes:
        """Standard error without what the login shell printed; all of it where the mark is not in it."""
        before, mark, after = stderr.partition(self.mark)
        return after.removesuffix(self.mark) if mark else before


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


def posix_line(argv: Sequence[str]) -> bytes:
    """A line for a POSIX shell that becomes the command, each argument as it is."""
    encoded(argv)
    return ("exec " + shlex.join(argv)).encode("utf-8", "surrogateescape")


def without_timeout(argv: Sequence[str]) -> Command:
    """A command that runs until it ends or the connection does."""
    return _command(_mark(), posix_line(argv).decode("utf-8", "surrogateescape"))


def with_timeout(argv: Sequence[str], seconds: float) -> Command:
    """A command that is ended, with what it started, after `seconds`."""
    encoded(argv)
    mark = _mark()
    # A duration of 0 means "no limit" to timeout.
    return _command(mark, _BOUNDED.format(seconds=max(seconds, 0.01), command=shlex.join(argv), mark=mark))


def _mark() -> str:
    return f"vcluster-{secrets.token_hex(8)}"


def _command(mark: str, script: str) -> Command:
    text = _MARKED.format(mark=mark, script=script).encode("utf-8", "surrogateescape")
    return Command(_ESCAPED.sub(lambda byte: b"\\0%03o" % byte[0][0], text) + b"\n", f"{mark}\n".encode())


def shown(argv: Sequence[str]) -> str:
    """The command for an error message, in one short line."""
    text = shlex.join(argv).replace("\n", "\\n")
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"
