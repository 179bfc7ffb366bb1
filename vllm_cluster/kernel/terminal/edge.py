"""Where the program meets the operating system: its streams, its signals, and what an exception becomes."""

from __future__ import annotations

import io
import itertools
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, TextIO

from vllm_cluster.kernel.errors import Interrupted, VclusterError
from vllm_cluster.kernel.laptop import STANDARD_OUTPUT, cache_folder, make_private, meaning
from vllm_cluster.kernel.shell_line import QUOTED, Option, Pasted, command_line, typed_words, unbroken
from vllm_cluster.kernel.terminal.called import NAMES
from vllm_cluster.kernel.terminal.output import err, to_paste, with_ends
from vllm_cluster.kernel.terminal.verb import Verb
from vllm_cluster.kernel.text import redact

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

    from _typeshed import ReadableBuffer

# Soon, and after the callback that dropped it has ended.
AGAIN_SECONDS = 0.01
# What the name in a word follows: options with `=`, and the `./` of a folder, which as a name alone is a model.
_BEGIN = re.compile(r"(?:(?:--)?[a-z_-]+=)*(?:\./)?")
# No option, no path of this machine, no HOST:/PATH, and no second word.
_NAME = re.compile(r"(?![-~./])(?!.*(?::/|\.\.))\S+")
_FLAG = re.compile(r"--[\w-]+", re.ASCII)
# The verbs of the program, which the layers above name.
KNOWN: dict[str, Verb] = {}


class _Out(io.FileIO):
    """Standard output, which names itself in its errors: they are not about another file."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            error.filename = STANDARD_OUTPUT
            raise


class _Err(io.FileIO):
    """Standard error, whose own failure can be reported nowhere and changes no exit code."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def open_streams() -> None:
    """Make the three streams usable: also where they are closed, full, or of an encoding that lacks our characters."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # Else the next file or socket gets the number, and what is printed goes there. Read only, so that output
            # that goes nowhere fails as it does on a closed stream.
            os.open(os.devnull, os.O_RDONLY)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - until the program ends
    sys.stdout = _text(_Out(1, "w", closefd=False), sys.stdout)
    sys.stderr = _text(_Err(2, "w", closefd=False), sys.stderr)


def _text(raw: io.FileIO, before: TextIO | None) -> io.TextIOWrapper:
    encoding = before.encoding if before else "utf-8"
    buffered = io.BufferedWriter(raw)
    return io.TextIOWrapper(
        buffered, encoding, errors="backslashreplace", line_buffering=raw.isatty() or raw.fileno() == 2
    )


def run_to_exit_code(program: Callable[[], object]) -> int:
    """Run the program to its end; the exit code. Not 0 where its output could not be written."""
    code: object = 0
    try:
        program()
    except SystemExit as end:
        code = end.code
    except KeyboardInterrupt:
        code = 130
    except Exception as error:
        code = _report(as_vcluster_error(error))
    try:
        sys.stdout.flush()
    except OSError as error:
        code = code or _report(as_vcluster_error(error))
        # What could not be written must not be tried once more when the stream is closed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    # The shell gets the last 8 bits: 256 would be 0, as if all were well.
    return code if isinstance(code, int) and 0 <= code <= 255 else int(code is not None)


def _report(error: VclusterError) -> int:
    """Write an error that no verb has written: of the command line, which may ask for JSON all the same."""
    words = sys.argv[1:]
    inventory = _named_inventory(words)

    def paste(text: str) -> Pasted:
        return Pasted(unbroken(with_inventory(text, inventory)))

    error.hint = remedy(error, paste)
    if error.message and "--json" in words[: words.index("--") if "--" in words else None]:
        from vllm_cluster.kernel.terminal import errors

        errors.write_error(error, paste, as_json=True, color="never")
    elif error.message:
        fixes = (to_paste("fix: ", line) for line in paste(error.hint or "").each)
        err("error: ", *with_ends((*error.lines, *fixes)), end="")
    return error.exit_code


def _named_inventory(given: Sequence[str]) -> Path | None:
    """The inventory of a call that failed before its verb had read it."""
    from vllm_cluster.kernel.terminal.typed import INVENTORY, as_parsed, known_options

    own = given[: given.index("--")] if "--" in given else given
    path = os.environ.get("VCLUSTER_INVENTORY")
    for name, words in as_parsed(own, known_options()):
        if name in INVENTORY:
            # -i FILE, -iFILE, --inventory=FILE; of several the last one counts.
            joined = words[0].partition("=")[2] if words[0].startswith("--") else words[0][2:]
            path = words[1] if len(words) > 1 else joined
    return Path(path) if path else None


def hides_interrupt(error: BaseException) -> bool:
    """Whether Ctrl-C is behind an error that vcluster did not raise.

    It may come inside of Python's own locking, as while a thread starts; what leaves there is then
    `RuntimeError: release unlocked lock`, seen once in some hundred.
    """
    behind = None if isinstance(error, VclusterError) else error.__context__
    while behind is not None and not isinstance(behind, KeyboardInterrupt):
        behind = behind.__context__
    return behind is not None


def as_vcluster_error(error: Exception) -> VclusterError:
    """The error for an exception: its own, one of this machine, or a bug."""
    if isinstance(error, VclusterError):
        return error
    from typer import Abort

    if isinstance(error, Abort):
        return Interrupted("Aborted. Nothing was changed.")
    if isinstance(error, OSError):
        if isinstance(error, BrokenPipeError) and error.filename == STANDARD_OUTPUT:
            return VclusterError("")  # whoever read our output has enough of it
        found = meaning(error)
        if found:
            return found
    log = _crash_log()
    hint = f"report it and attach {log}" if log else "report it and attach the output of -v"
    return VclusterError(redact(f"internal error: {type(error).__name__}: {error}"), hint=hint)


def _crash_log() -> str | None:
    """The file with the traceback of the exception that is being handled; None where none can be written."""
    try:
        folder = cache_folder()
        make_private(folder)
        log = folder / "crash.log"
        log.unlink(missing_ok=True)
        with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(redact(traceback.format_exc()))
        return str(log)
    except (OSError, VclusterError, ValueError):
        return None


def with_inventory(text: str, inventory: Path | None) -> str:
    """The text, in which other verbs have this call's inventory."""
    from vllm_cluster.kernel.inventory.find import inventory_words

    if not (named := inventory_words(inventory)):
        return text
    # Of a group, its own verbs take the option.
    groups = {name: " [a-z]+" for name, verb in KNOWN.items() if verb.function.endswith(":app")}
    # One that has a default verb: a word behind it may be one of a sentence.
    groups |= {name: rf"(?: (?:{'|'.join(verb.verbs)})\b)?" for name, verb in KNOWN.items() if verb.verbs}
    verbs = "|".join(name + groups.get(name, "") for name, verb in KNOWN.items() if verb.inventory)
    option = " " + command_line(*typed_words(named))
    names = "|".join(NAMES)
    # A call may name it already, as the parser writes some remedies from the words of the call. By whole words, up to
    # the next call: the name of a model may end in --inventory.
    word = rf"(?!--(?: |$)|(?:{names}) )(?:{QUOTED}|[^\s']\S*(?<![,.;:)]))"
    has = re.compile(rf" --help|(?: {word})*? (?:-i|--inventory)")
    call = re.compile(rf"{QUOTED}|(?P<call>\b(?:{names}) (?:{verbs})(?=[,.;:)]*(?: |$)))")

    def named_in(line: str) -> Iterator[str]:
        ends = [(found.start(), found.end()) for found in call.finditer(line) if found["call"]]
        yield line[: ends[0][1] if ends else None]
        for (_, end), (following, stop) in itertools.pairwise([*ends, (len(line), len(line))]):
            yield "" if has.match(line, end, following) else option
            yield line[end:stop]

    return "\n".join("".join(named_in(line)) for line in text.split("\n"))


def remedy(error: VclusterError, paste: Callable[[str], str]) -> str | None:
    """What to do, as lines to paste: this call with other words or more options, then the error's own remedy.

    The same call with consent comes last.
    """
    from vllm_cluster.kernel.terminal.typed import INVENTORY, as_parsed, guessed, known_options

    hint, words = paste(error.hint or ""), list[str](typed_words(sys.argv[1:]))
    end = words.index("--") if "--" in words else len(words)
    own = [(name, word) for name, typed in as_parsed(words[:end], known_options()) for word in typed_words(typed)]
    # Which of equal numbers was meant is not known.
    values = [word.rpartition("=")[2] for word in words]
    instead = {was: one for was, one in error.instead.items() if not was.isdecimal() or values.count(was) == 1}
    # Of what is behind the dashes no name of a file was meant: it is another program's.
    flags = {name: one for name, one in instead.items() if _same_flag(name, one)}

    def call(line: str) -> str:
        """A call; where the inventory is named by the environment alone, it is named as in all others."""
        return line if any(name in INVENTORY for name, _ in own) else paste(line)

    def flag(word: str) -> str:
        """A word for another program."""
        name, equals, value = word.partition("=")
        return f"{flags.get(name, name)}{equals}{flags.get(value, value)}"

    def placed(option: str, word: str) -> str:
        """A word of this call; its inventory is none that a host may name, as that of another cluster."""
        found = instead.get(word)
        return word if option in INVENTORY and not isinstance(found, Option) else _placed(word, found)

    meant, behind = [placed(*one) for one in own], typed_words(map(flag, words[end:]))
    if [*meant, *behind] != [*(word for _, word in own), *words[end:]]:
        hint = "\n".join((call(guessed("vcluster", *meant, *behind)), hint))
    if error.again is not None:
        again = typed_words([*_with(words[:end], error.again), *words[end:]])
        lines = call(command_line("vcluster", *again)), hint
        # What --yes loses the others do not: they come first.
        hint = "\n".join(reversed(lines) if "--yes" in error.again else lines)
    return hint.strip() or None


def _placed(typed: str, meant: str | None) -> str:
    """The word that is in the place of a typed one: what was meant, where that cannot be more than a name.

    A host may have chosen it. An `Option` is this program's own, or a file of the person.
    """
    if meant is None or isinstance(meant, Option):
        return meant or typed
    # As --set=model=NAME: what is before the name is as it was typed.
    begin = _BEGIN.match(typed)
    name = meant.removeprefix(begin[0]) if begin else meant
    return typed_words([meant])[0] if _NAME.fullmatch(name) and name.isprintable() else typed


def _same_flag(typed: str, meant: str) -> bool:
    """Whether it is a number for a number, or an option whose name is near to the typed one: a host has chosen it."""
    from vllm_cluster.kernel.inventory.words import nearest

    if typed.isdecimal():
        return meant.isascii() and meant.isdecimal()
    opposite = meant.removeprefix("--no-") == typed.removeprefix("--") or meant == f"--{typed.removeprefix('--no-')}"
    is_flag = typed.startswith("--") and bool(_FLAG.fullmatch(meant))
    return is_flag and not opposite and nearest(typed, (meant,)) is not None


def _with(words: Sequence[str], more: Sequence[str]) -> list[str]:
    """The words of a call with more options, each in place of the same one that it has, whichever form that was in."""
    from vllm_cluster.kernel.terminal.settings import SETTINGS
    from vllm_cluster.kernel.terminal.typed import as_parsed

    known = SETTINGS.known
    added = {name for word in more for name in known.same.get(word, (word,))}
    kept = [word for name, typed in as_parsed(words, known) if name not in added for word in typed]
    return [*kept, *more]


def two_stage_interrupt() -> None:
    """The first Ctrl-C stops in order, the second at once; so do a polite kill and a terminal that is closed."""

    def first(_number: int, _frame: FrameType | None) -> None:
        for number in polite:
            signal.signal(number, second)
        raise KeyboardInterrupt

    def second(_number: int, _frame: FrameType | None) -> None:
        os._exit(130)

    def again(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    def dropped(unraisable: UnraisableHookArgs) -> None:
        # What is raised in a finalizer or in a weak reference's callback Python only prints and then continues, past
        # Ctrl-C too: one of 45 was lost so while a pool's threads ended.
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS)
        else:
            sys.__unraisablehook__(unraisable)

    polite = [signal.SIGINT, signal.SIGTERM]
    # nohup has it ignored, and means it.
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        polite.append(signal.SIGHUP)
    sys.unraisablehook = dropped
    signal.signal(signal.SIGALRM, again)
    for number in polite:
        signal.signal(number, first)
