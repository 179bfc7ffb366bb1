"""What a login shell does before a command: skipped where it only prints, an error where no command runs."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Callable

from vllm_cluster.clock import Deadline
from vllm_cluster.errors import HostError, ShellUnusable, UsageError
from vllm_cluster.transport.base import MAX_TAIL, Result, Stream, Target
from vllm_cluster.transport.command_line import Command
from vllm_cluster.transport.ssh_config import ssh_options

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
        greeting, limit = bytearray(), Deadline.after(GREETING_SECONDS)
        while self._command.mark not in greeting:
            data = self._stream.recv(CHUNK)
            greeting += data
            if self._closed:
                return b""
            if not data or self._command.hopeless(bytes(greeting)) or not limit.left():
                raise self._refused(bytes(greeting), self._stream.stderr_tail().encode("utf-8", "replace"))
        return bytes(greeting.partition(self._command.mark)[2])


def refusal(target: Target, where: str, out: bytes, err: bytes, ask: Callable[[], Result | None]) -> ShellUnusable:
    """Why no command began at USER@HOST:PORT, from what was printed instead; `ask` runs `ASK` there."""
    shown = _shown(err + b"\n" + out)
    printed = f": it printed {shown!r}" if shown else ""
    by_hand = shlex.join(["ssh", *ssh_options(target), target.destination, "echo ok"])
    user = shlex.quote(where.rpartition("@")[0])
    other = f"set hosts.{target.name}.ssh.user to one who runs commands, or on the host: sudo chsh -s /bin/bash {user}"
    if _RESTRICTED.search(shown):
        return ShellUnusable(target.name, f"login shell: it is restricted{printed}", hint=other)
    if _NO_LOGIN.search(shown):
        return ShellUnusable(target.name, f"login shell: this account runs no commands{printed}", hint=other)
    if shell := _name_of_shell(ask):
        return ShellUnusable(
            target.name,
            f"login shell: {shell} reads the input of a command before the command starts{printed}",
            hint=guard(shell),
        )
    return ShellUnusable(
        target.name,
        f"login shell: something else runs instead of the command{printed}",
        hint=f"this must print ok: {by_hand}; look for ForceCommand in the host's sshd_config, for command= in "
        "~/.ssh/authorized_keys, and for exec in the shell's start-up files",
    )


def late(target: Target, seconds: float) -> ShellUnusable:
    """No command began within these seconds: something that the login shell starts before it does not end."""
    by_hand = shlex.join(["ssh", *ssh_options(target), target.destination, "echo ok"])
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


def _shown(shown: bytes) -> str:
    """The first lines of the output, shortened; unprintable bytes are left out."""
    text = " / ".join(line.strip() for line in shown.decode("utf-8", "replace").splitlines() if line.strip())
    return "".join(char for char in text if char.isprintable())[:200]
