"""One call of the program: its settings, where events go, and how it ends."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from vllm_cluster.core.errors import Interrupted, VclusterError

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

    from vllm_cluster.inventory.model import Inventory
    from vllm_cluster.run.events import Event

# Soon, and after the callback that dropped it has ended.
AGAIN_SECONDS = 0.01


@dataclass
class Settings:
    """What the options before the verb say."""

    verbosity: int = 0
    color: str = "auto"


# The root command fills it before any verb runs; verbs only read it.
SETTINGS = Settings()


def cache_folder() -> Path:
    """Where downloads are kept; removing it is harmless."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "vcluster"


class Session:
    """Runs one verb's action and renders what it tells."""

    def __init__(self, inventory: Path | None, *, as_json: bool) -> None:
        self._path = inventory
        self.as_json = as_json
        self._renderer: Callable[[Event], None] | None = None
        self._close: Callable[[], None] = lambda: None

    def load(self) -> Inventory:
        """The inventory that was named, or the one found here."""
        from vllm_cluster.inventory.load import load

        return load(self._path, stdin=sys.stdin, cwd=Path.cwd())

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
            sys.stderr.write(f"{question} [y/N] ")
            sys.stderr.flush()
            answer = sys.stdin.readline()
            if not answer:  # Ctrl-D
                sys.stderr.write("\n")
                raise KeyboardInterrupt
            return answer.strip().lower() in ("y", "yes")

        return ask

    def run(self, action: Callable[[Session], object]) -> None:
        """Run an action; every error becomes a message and an exit code."""
        _two_stage_interrupt()
        try:
            action(self)
        except VclusterError as error:
            self._fail(error)
        except KeyboardInterrupt:
            self._fail(Interrupted("stopped; what was done stands", hint="run the same command again to go on"))
        except BrokenPipeError:
            os._exit(1)  # who read our output has gone; Python's own flush at the end would complain
        except Exception:
            self._fail(_unexpected())
        finally:
            self._close()

    def _fail(self, error: VclusterError) -> NoReturn:
        self._close()
        if error.again:
            error.hint = command(*error.again)
        from vllm_cluster.cli.render import errors

        errors.show(error, as_json=self.as_json, color=SETTINGS.color)
        raise SystemExit(error.exit_code)


def command(*options: str) -> str:
    """This call with more options, as a line to paste."""
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    return shlex.join(["vcluster", *words[:end], *options, *words[end:]])


def _unexpected() -> VclusterError:
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    log = folder / "crash.log"
    log.write_text(traceback.format_exc())
    log.chmod(0o600)
    kind, value = sys.exc_info()[:2]
    name = kind.__name__ if kind else "error"
    return VclusterError(f"this is a bug in vcluster: {name}: {value}", hint=f"please report it with {log}")


def _two_stage_interrupt() -> None:
    """The first Ctrl-C stops in order, the second at once; so does a polite kill."""

    def first(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, second)
        signal.signal(signal.SIGTERM, second)
        raise KeyboardInterrupt

    def second(_number: int, _frame: FrameType | None) -> None:
        os._exit(130)

    def again(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    def dropped(unraisable: UnraisableHookArgs) -> None:
        # What is raised in a finalizer or in a weak reference's callback Python only prints and then goes on, past
        # Ctrl-C too: one of 45 was lost so while a pool's threads ended.
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS)
        else:
            sys.__unraisablehook__(unraisable)

    sys.unraisablehook = dropped
    signal.signal(signal.SIGALRM, again)
    signal.signal(signal.SIGINT, first)
    signal.signal(signal.SIGTERM, first)
