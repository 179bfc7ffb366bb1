"""Commands as a host receives them, quoted for any login shell, and what that shell does before them."""

from __future__ import annotations

import contextlib
import re
import secrets
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import HostError, ShellUnusable, UsageError
from vllm_cluster.kernel.shell_line import Option, command_line, shell_line, typed_words
from vllm_cluster.kernel.text import redact_words
from vllm_cluster.kernel.transport.base import MAX_OUTPUT, MAX_TAIL, Result, Stream, Target
from vllm_cluster.kernel.transport.kept import Kept
from vllm_cluster.kernel.transport.ssh_config import ssh_options

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

GREETING_SECONDS = 30.0
CHUNK = 1 << 16
ASK_SECONDS = 10.0
# A login shell that has begun no command for so long waits for something; in less time it may be a slow host.
LATE_SECONDS = 4.0
# Needs no standard input, which something else may have taken; quoted as `LINE` is.
ASK = b"""exec /bin/sh -c 'printf "%s-%s=%s=" vcluster shell "$SHELL"'"""
_ANSWER = re.compile(rb"vcluster-shell=([^=\n]*)=")
_RESTRICTED = re.compile(r"\brestricted\b|\brbash\b|\brksh\b", re.I)
_NO_LOGIN = re.compile(r"account is (currently )?not available|nologin|not permitted to log ?in", re.I)
# How each shell is kept from running its start-up file for a command.
_GUARDS = {
    "bash": ("~/.bashrc", "[[ $- == *i* ]] || return"),
    "zsh": ("~/.zshenv", "[[ -o interactive ]] || return"),
    "fish": ("~/.config/fish/config.fish", "status is-interactive; or return"),
    "tcsh": ("~/.cshrc and ~/.tcshrc", "if (! $?prompt) exit"),
    "csh": ("~/.cshrc", "if (! $?prompt) exit"),
}
_ANY = ("the shell's start-up file", "an end of it where there is no terminal")


@dataclass(frozen=True)
class Command:
    """The first line of standard input, and the mark after which the command's own output begins, on both outputs."""

    first: bytes
    mark: bytes

    def kept(self, most: int = MAX_OUTPUT) -> Kept:
        """One of its outputs, to gather: so many bytes, and the beginning of what comes before them."""
        return Kept(self.mark, most)

    def hopeless(self, output: Kept) -> bool:
        """Whether the command will never begin: too much came before it, or only its own text comes back."""
        return output.hopeless or (not output.begun and self.first in output.whole())

    def started(self, result: Result) -> bool:
        """Whether the command itself began, and not only the login shell."""
        return self.mark in result.stdout

    def own_255(self, result: Result) -> bool:
        """Whether an exit code 255 is the command's own."""
        return result.stderr.endswith(self.mark) and result.stderr.count(self.mark) > 1

    def own(self, result: Result, most: int = MAX_OUTPUT) -> Result:
        """The result without what the login shell printed before the command."""
        stdout, stderr = result.stdout.partition(self.mark)[2], self.own_stderr(result.stderr)
        return replace(result, stdout=stdout[:most], stderr=stderr[:most])

    def own_stderr(self, stderr: bytes) -> bytes:
        """Standard error without what the login shell printed; all of it where the mark is not in it."""
        before, mark, after = stderr.partition(self.mark)
        return after.removesuffix(self.mark) if mark else before


def encoded(words: Sequence[str]) -> list[bytes]:
    """The arguments as bytes; what no command line can carry is refused."""
    if not words:
        raise UsageError("there is no command to run", hint="give a command")
    for word in words:
        if "\0" in word:
            raise UsageError(f"an argument holds a NUL character: {word!r}", hint="remove that character")
    try:
        return [word.encode("utf-8", "surrogateescape") for word in words]
    except UnicodeEncodeError as error:
        raise UsageError(f"an argument is not text: {error.object!r}", hint="write it in UTF-8") from None


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


def shorten_command(argv: Sequence[str]) -> str:
    """The command for an error message, in one short line."""
    text = shell_line(redact_words(argv)).replace("\n", "\\n")
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"


class MarkedStream:
    """A stream that begins with the command's own output: what the login shell prints before is skipped."""

    def __init__(self, stream: Stream, command: Command, refused: Callable[[bytes, bytes], HostError]) -> None:
        """`refused` makes the error of a stream that ended before the command began."""
        self._stream = stream
        self._command = command
        self._refused = refused
        self._begun = self._closed = False
        self._first = b""
        self.sendall = stream.sendall
        self.settimeout = stream.settimeout
        self.shutdown_write = stream.shutdown_write
        self.exit_code = stream.exit_code

    def recv(self, size: int, /) -> bytes:
        """At most `size` bytes; empty when the command has ended its output."""
        if not self._begun:
            self._first = self._after_greeting()
            self._begun = True
        if self._first:
            data, self._first = self._first[:size], self._first[size:]
            return data
        return self._stream.recv(size)

    def stderr_tail(self) -> str:
        """The last lines that the command wrote to standard error."""
        shown, mark = self._stream.stderr_tail(), self._command.mark.decode().strip()
        greeting, found, own = shown.partition(mark)
        if found:
            return own.strip()
        # Either a long error has pushed the mark out, or nothing but the greeting has come yet.
        return greeting if len(shown) > MAX_TAIL // 2 or not self._begun else ""

    def close(self) -> None:
        """End the stream; may be called twice."""
        self._closed = True
        self._stream.close()

    def _after_greeting(self) -> bytes:
        output, limit = self._command.kept(CHUNK), Deadline.after(GREETING_SECONDS)
        while not output.begun:
            data = self._stream.recv(CHUNK)
            output.add(data)
            if self._closed:
                return b""
            if not data or self._command.hopeless(output) or not limit.left():
                raise self._refused(output.whole(), self._stream.stderr_tail().encode("utf-8", "replace"))
        return output.own


def refusal(target: Target, where: str, out: bytes, err: bytes, ask: Callable[[], Result | None]) -> ShellUnusable:
    """Why no command began at USER@HOST:PORT, from what was printed instead; `ask` runs `ASK` there."""
    shown = _printed(err + b"\n" + out)
    printed = f": it printed {shown!r}" if shown else ""
    by_hand = command_line("ssh", *typed_words(ssh_options(target)), target.destination, "echo ok")
    shell = command_line("sudo", "chsh", Option("-s"), "/bin/bash", where.rpartition("@")[0])
    other = f"set hosts.{target.name}.ssh.user to one who runs commands, or on the host: {shell}"
    if _RESTRICTED.search(shown):
        return ShellUnusable(target.name, f"login shell: it is restricted{printed}", hint=other)
    if _NO_LOGIN.search(shown):
        return ShellUnusable(target.name, f"login shell: this account runs no commands{printed}", hint=other)
    if name := _name_of_shell(ask):
        return ShellUnusable(
            target.name,
            f"login shell: {name} reads the input of a command before the command starts{printed}",
            hint=guard(name),
        )
    return ShellUnusable(
        target.name,
        f"login shell: something else runs instead of the command{printed}",
        hint=f"this must print ok: {by_hand}\n"
        "look there for ForceCommand in sshd_config, for command= in ~/.ssh/authorized_keys, and for exec in the "
        "start-up files of the shell",
    )


def late(target: Target, seconds: float) -> ShellUnusable:
    """No command began within these seconds: something that the login shell starts before it does not end."""
    by_hand = command_line("ssh", *typed_words(ssh_options(target)), target.destination, "echo ok")
    return ShellUnusable(
        target.name,
        f"login shell: it began no command within {seconds:.0f} s: a start-up file of the shell waits for something",
        hint=f"this must print ok at once: {by_hand}\n"
        f"On the host, let the start-up file end where there is no terminal; in ~/.bashrc: {_GUARDS['bash'][1]}",
    )


def guard(shell: str) -> str:
    """The line that keeps a shell's start-up file from running for a command."""
    # The end of the name: Debian's csh is bsd-csh.
    file, line = next((words for name, words in _GUARDS.items() if shell.endswith(name)), _ANY)
    return f"make this the first line of {file} on the host: {line}"


def _name_of_shell(ask: Callable[[], Result | None]) -> str:
    """The login shell of a host where a command runs that needs no input; empty where none does."""
    with contextlib.suppress(HostError, UsageError, OSError):
        if (result := ask()) and (found := _ANSWER.search(result.stdout)):
            return found[1].decode("utf-8", "replace")
    return ""


def _printed(shown: bytes) -> str:
    """The first lines of the output, shortened; unprintable bytes are left out."""
    text = " / ".join(line.strip() for line in shown.decode("utf-8", "replace").splitlines() if line.strip())
    return "".join(char for char in text if char.isprintable())[:200]
