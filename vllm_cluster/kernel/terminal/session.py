"""One call of the program: its settings, where events go, and how it ends."""

from __future__ import annotations

import sys
import termios
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from vllm_cluster.kernel.errors import Aborted, Interrupted, InventoryError, VclusterError
from vllm_cluster.kernel.inventory.find import find, read
from vllm_cluster.kernel.laptop import cache_folder, here
from vllm_cluster.kernel.shell_line import Pasted, unbroken
from vllm_cluster.kernel.terminal import edge, output
from vllm_cluster.kernel.terminal.settings import SETTINGS
from vllm_cluster.kernel.text import printable

if TYPE_CHECKING:
    from vllm_cluster.kernel.events import Event
    from vllm_cluster.kernel.inventory.model import Inventory


class Session:
    """One verb: its events are rendered, and every error becomes a message and an exit code.

    A verb that `changes` something does so at any moment, or only once it has emitted its plan.
    """

    def __init__(
        self,
        inventory: Path | None,
        *,
        as_json: bool,
        changes: bool = False,
        after_plan: bool = False,
        found: bool = False,
    ) -> None:
        self._path = inventory
        self._found = found or inventory is None
        self._changes = changes
        self._untouched = after_plan
        self.as_json = as_json
        self._renderer: Callable[[Event], None] | None = None
        self._close: Callable[[], None] = lambda: None
        self._inventory: Inventory | None = None
        self._log: Path | None = None

    @property
    def has_inventory(self) -> bool:
        """Whether an inventory was named, or is found here; it may be wrong."""
        try:
            return self._path is not None or bool(find(here()))
        except InventoryError:
            return False

    def load(self) -> Inventory:
        """The inventory that was named, or the one found here."""
        path, raw = read(self._path, found=self._found, stdin=sys.stdin)
        from vllm_cluster.kernel.inventory.load import load_text
        from vllm_cluster.kernel.inventory.local_files import ensure_ssh_config

        self._inventory = load_text(raw, path=path, cwd=None if path else here(), found=self._found)
        ensure_ssh_config(self._inventory)
        self._open_log(self._inventory)
        if not all(host.address for host in self._inventory.hosts.values()):
            from vllm_cluster.kernel.addresses import find_addresses

            self._inventory = find_addresses(self._inventory, self.progress)
        return self._inventory

    def _open_log(self, inventory: Inventory) -> None:
        """Keep the calls to hosts from here on, where this machine has a place for it."""
        from vllm_cluster.kernel import debug_log

        with suppress(VclusterError):
            key = debug_log.inventory_key(inventory.cluster, inventory.path)
            self._log = debug_log.to_file(cache_folder(), SETTINGS.verb, key)
        if SETTINGS.verbosity > 1:
            debug_log.to_stderr()

    def paste(self, remedy: str) -> Pasted:
        """A remedy as lines to paste: with this call's inventory, and with the ssh options that it gives."""
        if self._inventory:
            from vllm_cluster.kernel.terminal.paste import pasteable, ssh_arguments

            remedy = pasteable(remedy, ssh_arguments(self._inventory))
        return Pasted(unbroken(edge.with_inventory(remedy, self._path)))

    def emit(self, event: Event) -> None:
        """Show an event the way this call wants it."""
        self._untouched = self._untouched and event.kind != "plan"
        if self._renderer is None:
            from vllm_cluster.kernel.terminal import events

            self._renderer, self._close = events.renderer(self.as_json, SETTINGS.verbosity, SETTINGS.color)
        self._renderer(self.advising(event))

    def advising(self, event: Event) -> Event:
        """Return the event with this call's inventory: the texts of some hold remedies too."""
        if event.kind not in ("warning", "note", "result", "failed"):
            return event
        return replace(event, text=edge.with_inventory(event.text, self._path))

    def progress(self, event: Event) -> None:
        """For verbs that print one document: their events are for people alone."""
        if not self.as_json:
            self.emit(event)

    def finish(self) -> None:
        """Take a live picture away, before standard output is written."""
        self._close()

    def show(self, document: Callable[[], object], render: Callable[[], object]) -> None:
        """Write the result on standard output: the document with --json, else what `render` writes."""
        self.finish()
        if not self.as_json:
            render()
            return
        output.document(document())

    def can_ask(self, yes: bool) -> bool:
        """Whether a question has an answer here: --yes, or a person at a terminal."""
        return yes or (not self.as_json and sys.stdin.isatty() and sys.stderr.isatty())

    def confirm(self, yes: bool) -> Callable[[str], bool | None]:
        """How this call asks: not at all with --yes, and never without a terminal."""

        def ask(question: str) -> bool | None:
            if yes:
                return True
            if not self.can_ask(yes):
                return None
            # The next event opens a new picture below the answer.
            self._close()
            self._renderer = None
            try:
                # A host may have written what it names.
                # What was typed before the question does not answer it: a stray `y` would stop a model.
                termios.tcflush(sys.stdin, termios.TCIFLUSH)
                output.err(f"{printable(question)} [y/N] ", end="")
                answer = sys.stdin.readline()
            except KeyboardInterrupt:
                answer = ""
            if not answer:  # Ctrl-C or Ctrl-D
                output.err()
                raise Interrupted("Aborted. Nothing was changed.")
            return answer.strip().lower() in ("y", "yes")

        return ask

    def __enter__(self) -> Session:
        edge.two_stage_interrupt()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            if isinstance(error, KeyboardInterrupt) or (isinstance(error, Exception) and edge.hides_interrupt(error)):
                self._interrupted()
            if isinstance(error, Exception):
                self._fail(edge.as_vcluster_error(error))
        finally:
            self._close()
            if self._inventory:
                from vllm_cluster.kernel import debug_log

                debug_log.close()

    def _interrupted(self) -> NoReturn:
        if not self._changes:
            raise SystemExit(Interrupted.exit_code) from None
        done = "Nothing was changed." if self._untouched else "Completed steps are kept."
        self._fail(Interrupted(f"Interrupted. {done}", again=()))

    def _fail(self, error: VclusterError) -> NoReturn:
        self._close()
        error.hint = edge.remedy(error, self.paste)
        from vllm_cluster.kernel.terminal import errors

        if error.message:
            failed = type(error).exit_code == VclusterError.exit_code and not isinstance(error, Aborted)
            # Later runs may have removed the log of one that took long.
            log = self._log if failed and self._log and self._log.exists() else None
            errors.write_error(error, self.paste, as_json=self.as_json, color=SETTINGS.color, log=log)
        raise SystemExit(error.exit_code)
