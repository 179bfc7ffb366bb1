"""`vcluster exec`."""

from __future__ import annotations

import os
import shlex
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from vllm_cluster.cli.completion import complete_hosts
from vllm_cluster.cli.options import InventoryPath
from vllm_cluster.cli.session import Session
from vllm_cluster.errors import UsageError, combine
from vllm_cluster.text import printable

if TYPE_CHECKING:
    from vllm_cluster.inventory.model import Inventory

Host = Annotated[str | None, typer.Argument(metavar="HOST", help="A host.", autocompletion=complete_hosts)]
Command = Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND", help="What to run. Default: a shell.")]
# An image may have no bash.
SHELL = ("sh", "-c", "exec $(command -v bash || echo sh)")


def exec_(
    host: Host = None,
    command: Command = None,
    inventory: InventoryPath = None,
    head: Annotated[bool, typer.Option("--head", help="Run it on the head.")] = False,
    everywhere: Annotated[bool, typer.Option("--all", help="Run it on every host, without input.")] = False,
    by_ssh: Annotated[bool, typer.Option("--ssh", help="Run it on the host itself, by this machine's ssh.")] = False,
    no_terminal: Annotated[
        bool, typer.Option("--no-tty", "-T", help="No terminal for the command; it gets one where there is one here.")
    ] = False,
) -> None:
    """Run a command or a shell on a node, or on its host."""
    command = command or []
    _ensure_one_place(host, command, head=head, everywhere=everywhere, by_ssh=by_ssh)
    with Session(inventory, as_json=False) as session:
        loaded = session.load()
        if host is not None and host not in loaded.hosts:
            raise _no_host(host, command, tuple(loaded.hosts))
        from vllm_cluster.actions.exec import exec_one
        from vllm_cluster.cli.terminal import LocalEnds

        if everywhere:
            _on_all(loaded, command)
        if by_ssh:
            _by_ssh(loaded, host or loaded.head_name, command)
        terminal = not no_terminal and sys.stdin.isatty() and sys.stdout.isatty()
        ends = LocalEnds(terminal=terminal)
        with ends.lent():
            code = exec_one(loaded, host or loaded.head_name, command or SHELL, ends)
        raise SystemExit(code)


def _ensure_one_place(host: str | None, command: Sequence[str], *, head: bool, everywhere: bool, by_ssh: bool) -> None:
    """Refuse a call that names no place, several, or all without a command."""
    line = shlex.join(command) or "COMMAND"
    if not (host or head or everywhere):
        raise UsageError("missing HOST", hint=f"vcluster exec HOST\nvcluster exec HOST -- {line}")
    given = [host, "--head" if head else None, "--all" if everywhere else None, "--ssh" if by_ssh else None]
    places = [name for name in given if name and (name != "--ssh" or everywhere)]
    if len(places) > 1:
        raise UsageError(f"{' and '.join(places)} exclude each other", hint=f"vcluster exec {places[0]} -- {line}")
    if everywhere and not command:
        raise UsageError("--all needs a command", hint=f"vcluster exec --all -- {line}")


def _no_host(word: str, command: Sequence[str], hosts: tuple[str, ...]) -> UsageError:
    """The error of a host that is not there: it is misspelt, or it was left out."""
    from vllm_cluster.inventory.words import nearest

    # Where no host is near, none is taken for the one that was meant.
    near = nearest(word, hosts)
    if near or command:
        hint = shlex.join(["vcluster", "exec", near or "HOST", *(["--", *command] if command else [])])
    else:
        hint = "\n".join(f"vcluster exec {at} -- {shlex.quote(word)}" for at in (hosts[0], "--all"))
    return UsageError(f"no host {word}: there are {', '.join(hosts)}", hint=hint)


def _by_ssh(loaded: Inventory, host: str, command: Sequence[str]) -> NoReturn:
    """Become the ssh of this machine: it is the person's own terminal from here on."""
    from vllm_cluster.actions.exec import ssh_command

    argv = [*ssh_command(loaded, host), *(["--", *command] if command else [])]
    try:
        os.execvp(argv[0], argv)  # noqa: S606 - words, and no shell of this machine
    except OSError as error:
        hint = f"install the OpenSSH client, then:\n{shlex.join(argv)}"
        raise UsageError(f"cannot run ssh: {error.strerror}", hint=hint) from None


def _on_all(loaded: Inventory, command: Sequence[str]) -> None:
    """Run it on every host and exit with the worst code; each line of output has its host."""
    from vllm_cluster.actions.exec import exec_all
    from vllm_cluster.cli.terminal import LocalEnds

    lines = _Lines(max(map(len, loaded.hosts)))
    ends = LocalEnds(terminal=False)
    with ends.lent():
        codes, failures = exec_all(loaded, command, lines.write, ends.attach)
    lines.end()
    worst = max(codes.values(), default=0)
    if failures:
        error = combine(failures)
        error.exit_code = max(worst, error.exit_code)
        raise error
    raise SystemExit(worst)


class _Lines:
    """What several hosts print, in whole lines."""

    def __init__(self, width: int) -> None:
        self._width, self._lock = width, threading.Lock()
        self._rest: dict[tuple[str, bool], bytes] = {}

    def write(self, host: str, of_errors: bool, data: bytes) -> None:
        """Write the lines that are whole."""
        *lines, rest = (self._rest.get((host, of_errors), b"") + data).split(b"\n")
        self._rest[host, of_errors] = rest
        self._show(host, of_errors, lines)

    def end(self) -> None:
        """Write what has no end of a line."""
        for (host, of_errors), rest in self._rest.items():
            if rest:
                self._show(host, of_errors, [rest])

    def _show(self, host: str, of_errors: bool, lines: list[bytes]) -> None:
        stream = sys.stderr if of_errors else sys.stdout
        texts = (line.decode("utf-8", "replace").rstrip("\r").replace("\t", "    ") for line in lines)
        with self._lock:
            stream.write("".join(f"{host:<{self._width}} | {printable(text)}\n" for text in texts))
            stream.flush()
