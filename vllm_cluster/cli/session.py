"""One call of the program: its settings, where events go, and how it ends."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from vllm_cluster.cli import edge
from vllm_cluster.core.errors import Interrupted, VclusterError
from vllm_cluster.inventory.find import read
from vllm_cluster.laptop import here
from vllm_cluster.text import printable

if TYPE_CHECKING:
    from vllm_cluster.inventory.model import Inventory
    from vllm_cluster.run.events import Event


@dataclass
class Settings:
    """What the options before the verb say."""

    verbosity: int = 0
    color: str = "auto"


# The root command fills it before any verb runs; verbs only read it.
SETTINGS = Settings()


class Session:
    """Runs one verb's action and renders what it tells."""

    def __init__(self, inventory: Path | None, *, as_json: bool, changes: bool = False) -> None:
        self._path = inventory
        self._changes = changes
        self.as_json = as_json
        self._renderer: Callable[[Event], None] | None = None
        self._close: Callable[[], None] = lambda: None
        self._inventory: Inventory | None = None

    def load(self) -> Inventory:
        """The inventory that was named, or the one found here."""
        path, raw = read(self._path, stdin=sys.stdin)
        from vllm_cluster.inventory.load import load_text

        self._inventory = load_text(raw, path=path, cwd=None if path else here())
        return self._inventory

    def paste(self, remedy: str) -> str:
        """A remedy as lines to paste: with this call's inventory, and with the ssh options that it gives."""
        if self._inventory:
            from vllm_cluster.cli.paste import pasteable, ssh_words

            remedy = pasteable(remedy, ssh_words(self._inventory))
        return edge.with_inventory(remedy, self._path)

    def emit(self, event: Event) -> None:
        """Show an event the way this call wants it."""
        if self._renderer is None:
            from vllm_cluster.cli.render import events

            self._renderer, self._close = events.renderer(self.as_json, SETTINGS.verbosity, SETTINGS.color)
        self._renderer(event)

    def progress(self, event: Event) -> None:
        """For verbs that print one document: their events are for people alone."""
        if not self.as_json:
            self.emit(event)

    def finish(self) -> None:
        """Take a live picture away, before standard output is written."""
        self._close()

    def confirm(self, yes: bool) -> Callable[[str], bool | None]:
        """How this call asks: not at all with --yes, and never without a terminal."""

        def ask(question: str) -> bool | None:
            if yes:
                return True
            if self.as_json or not (sys.stdin.isatty() and sys.stderr.isatty()):
                return None
            # The next event opens a new picture below the answer.
            self._close()
            self._renderer = None
            try:
                # A host may have written what it names.
                sys.stderr.write(f"{printable(question)} [y/N] ")
                sys.stderr.flush()
                answer = sys.stdin.readline()
            except KeyboardInterrupt:
                answer = ""
            if not answer:  # Ctrl-C or Ctrl-D
                sys.stderr.write("\n")
                raise Interrupted("Aborted. Nothing was changed.")
            return answer.strip().lower() in ("y", "yes")

        return ask

    def run(self, action: Callable[[Session], object]) -> None:
        """Run an action; every error becomes a message and an exit code."""
        edge.two_stage_interrupt()
        try:
            action(self)
        except KeyboardInterrupt:
            if not self._changes:
                raise SystemExit(Interrupted.exit_code) from None
            self._fail(Interrupted(again=()))
        except Exception as error:
            self._fail(edge.judged(error))
        finally:
            self._close()

    def _fail(self, error: VclusterError) -> NoReturn:
        self._close()
        error.hint = edge.remedy(error, self.paste)
        from vllm_cluster.cli.render import errors

        if error.message:
            errors.show(error, as_json=self.as_json, color=SETTINGS.color)
        raise SystemExit(error.exit_code)
