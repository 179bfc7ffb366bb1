"""`vcluster exec`, and this machine's terminal, signals and streams, which it lends to the command."""

from __future__ import annotations

import os
import signal
import sys
import termios
import threading
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from vllm_cluster.kernel.errors import UsageError, combine
from vllm_cluster.kernel.shell_line import Option, command_line, typed_words
from vllm_cluster.kernel.terminal import output
from vllm_cluster.kernel.terminal.completion import complete_hosts
from vllm_cluster.kernel.terminal.options import InventoryPath
from vllm_cluster.kernel.terminal.session import Session
from vllm_cluster.kernel.text import printable

if TYPE_CHECKING:
    from vllm_cluster.features.exec.action import NodeCommand
    from vllm_cluster.kernel.inventory.model import Inventory

Host = Annotated[str | None, typer.Argument(metavar="HOST", help="A host.", autocompletion=complete_hosts)]
Command = Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND", help="What to run. Default: a shell.")]
# An image may have no bash.
SHELL = ("sh", "-c", "exec $(command -v bash || echo sh)")
_FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")
# A command that ignores a signal so often is left to itself.
PATIENCE = 3
CHUNK = 32_768
# What is longer is shown in pieces: a host that ends no line must not fill the memory.
MAX_LINE = 64 << 10


def exec_(
    host: Host = None,
    command: Command = None,
    inventory: InventoryPath = None,
    head: Annotated[bool, typer.Option("--head", help="Run it on the head.")] = False,
    everywhere: Annotated[bool, typer.Option("--all", help="Run it on every host, without input.")] = False,
    by_ssh: Annotated[bool, typer.Option("--ssh", help="Run it on the host itself, by this machine's ssh.")] = False,
) -> None:
    """Run a command or a shell on a node, or on its host."""
    command = command or []
    _ensure_one_place(host, command, head=head, everywhere=everywhere, by_ssh=by_ssh)
    with Session(inventory, as_json=False) as session:
        loaded = session.load()
        if host is not None and host not in loaded.hosts:
            raise _no_host(host, command, tuple(loaded.hosts))
        at = host or loaded.head_name
        if everywhere:
            _on_all(loaded, command)
        elif by_ssh:
            _by_ssh(loaded, at, command)
        else:
            _on_one(loaded, at, command, terminal=sys.stdin.isatty() and sys.stdout.isatty())


def _ensure_one_place(host: str | None, command: Sequence[str], *, head: bool, everywhere: bool, by_ssh: bool) -> None:
    """Refuse a call that names no place, several, or all without a command."""
    if not (host or head or everywhere):
        raise UsageError("missing HOST", hint=_at(Option("--head"), command))
    given = [host, "--head" if head else None, "--all" if everywhere else None, "--ssh" if by_ssh else None]
    places = [name for name in given if name and (name != "--ssh" or everywhere)]
    if len(places) > 1:
        raise UsageError(f"{' and '.join(places)} exclude each other", hint=_at(typed_words(places)[0], command))
    if everywhere and not command:
        raise UsageError("--all needs a command", hint="vcluster exec --all -- nvidia-smi")


def _no_host(word: str, command: Sequence[str], hosts: tuple[str, ...]) -> UsageError:
    """The error of a host that is not there: it is misspelt, or it was left out."""
    from vllm_cluster.kernel.inventory.words import like, nearest

    # What is like no host's name is a command whose host was left out.
    is_command = not command and not any(like(word, host) for host in hosts)
    place = Option("--head") if is_command else nearest(word, hosts) or hosts[0]
    hint = _at(place, [word] if is_command else command)
    return UsageError(f"no host {word}: there are {', '.join(hosts)}", hint=hint)


def _at(place: str, command: Sequence[str]) -> str:
    """The call at a place that may be meant: nothing is asked before a command runs, so a person types that again."""
    return command_line("vcluster", "exec", place, *((Option("--"), "COMMAND") if command else ()))


def _by_ssh(loaded: Inventory, host: str, command: Sequence[str]) -> NoReturn:
    """Become the ssh of this machine: it is the person's own terminal from here on."""
    from vllm_cluster.features.exec.action import ssh_command

    argv = [*ssh_command(loaded, host), *(["--", *command] if command else [])]
    try:
        os.execvp(argv[0], argv)  # noqa: S606 - words, and no shell of this machine
    except OSError as error:
        hint = f"install the OpenSSH client, then:\n{command_line(*typed_words(argv))}"
        raise UsageError(f"cannot run ssh: {error.strerror}", hint=hint) from None


def _on_one(loaded: Inventory, host: str, command: Sequence[str], *, terminal: bool) -> NoReturn:
    """Run it on one host, with this machine's input, terminal and signals, and exit with its code."""
    from vllm_cluster.features.exec.action import command_on

    ends = _LocalEnds(terminal=terminal)
    environment = {"TERM": os.environ.get("TERM", "xterm")} if terminal else {}
    with ends.lent(), command_on(loaded, host, command or SHELL, ends.size(), environment) as running:
        ends.attach(running)
        code = running.run(_out, _read)
    raise SystemExit(code)


def _on_all(loaded: Inventory, command: Sequence[str]) -> NoReturn:
    """Run it on every host and exit with the worst code; each line of output has its host."""
    from vllm_cluster.features.exec.action import exec_all

    lines = _Lines(max(map(len, loaded.hosts)))
    ends = _LocalEnds(terminal=False)
    with ends.lent():
        codes, failures = exec_all(loaded, command, lines.write, ends.attach)
    lines.end()
    worst = max(codes.values(), default=0)
    if failures:
        error = combine(failures)
        error.exit_code = max(worst, error.exit_code)
        raise error
    raise SystemExit(worst)


def _out(of_errors: bool, data: bytes) -> None:
    """Write what a command prints as it is."""
    output.raw(data, of_errors=of_errors)


def _read() -> bytes:
    """The next of standard input."""
    try:
        return os.read(0, CHUNK)
    except OSError:
        return b""  # it is closed


class _LocalEnds:
    """This machine's signals, and with `terminal` its terminal in raw mode, for commands elsewhere."""

    def __init__(self, *, terminal: bool) -> None:
        self._terminal = terminal
        self._commands: list[NodeCommand] = []
        self._signals = 0

    def size(self) -> tuple[int, int] | None:
        """The terminal's rows and columns; None without one."""
        if not self._terminal:
            return None
        size = os.get_terminal_size(sys.stdin.fileno())
        return size.lines, size.columns

    def attach(self, command: NodeCommand) -> None:
        """Send signals and sizes to this command, too."""
        self._commands.append(command)

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Forward signals, and keys as they are pressed, until the command has ended."""
        before = {name: signal.signal(getattr(signal, name), self._forward) for name in _FORWARDED}
        if self._terminal:
            before["SIGWINCH"] = signal.signal(signal.SIGWINCH, self._resize)
        modes = termios.tcgetattr(0) if self._terminal else None
        try:
            if modes:
                tty.setraw(0)
            yield
        finally:
            if modes:
                termios.tcsetattr(0, termios.TCSADRAIN, modes)
            for name, handler in before.items():
                signal.signal(getattr(signal, name), handler)

    def _forward(self, number: int, _frame: FrameType | None) -> None:
        self._signals += 1
        if self._terminal or self._signals > PATIENCE or not self._commands:
            # In raw mode Ctrl-C is a key; a signal is meant for this program.
            raise KeyboardInterrupt
        name = signal.Signals(number).name.removeprefix("SIG")
        # Not in the handler: what it interrupts may hold the locks that a call to the host needs.
        for command in self._commands:
            threading.Thread(target=command.signal, args=(name,), daemon=True).start()

    def _resize(self, _number: int, _frame: FrameType | None) -> None:
        for command in self._commands:
            threading.Thread(target=command.resize, args=(self.size(),), daemon=True).start()


class _Lines:
    """What several hosts print, in whole lines."""

    def __init__(self, width: int) -> None:
        self._width, self._lock = width, threading.Lock()
        self._rest: dict[tuple[str, bool], bytes] = {}

    def write(self, host: str, of_errors: bool, data: bytes) -> None:
        """Write the lines that are whole, of little at a time: a million empty ones at once took 90 MB."""
        for begin in range(0, len(data), MAX_LINE):
            self._take(host, of_errors, data[begin : begin + MAX_LINE])

    def _take(self, host: str, of_errors: bool, data: bytes) -> None:
        *lines, rest = (self._rest.get((host, of_errors), b"") + data).split(b"\n")
        if len(rest) > MAX_LINE:
            lines, rest = [*lines, rest], b""
        self._rest[host, of_errors] = rest
        self._show(host, of_errors, lines)

    def end(self) -> None:
        """Write what has no end of a line."""
        for (host, of_errors), rest in self._rest.items():
            if rest:
                self._show(host, of_errors, [rest])

    def _show(self, host: str, of_errors: bool, lines: list[bytes]) -> None:
        write = output.err if of_errors else output.out
        texts = (line.decode("utf-8", "replace").rstrip("\r").replace("\t", "    ") for line in lines)
        with self._lock:
            # A frame may have 100,000 lines: they are written at once.
            before = output.Style(f"{host:<{self._width}} | ")
            write(*(part for text in texts for part in (before, printable(text), output.END)), end="")
