"""Help as text: nothing cut, types in the words of the field, examples and exit codes."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from vllm_cluster.kernel.terminal.called import as_called

if TYPE_CHECKING:
    from typer.core import TyperArgument, TyperOption

    from vllm_cluster.kernel.terminal.verb import Verb

    Parameter = TyperArgument | TyperOption

# The metavar of the argument that takes what follows `--`.
VLLM_FLAGS = "-- VLLM_FLAGS"
MIN_WIDTH, MAX_WIDTH = 40, 100
# The column of descriptions; a longer name gets a line of its own.
COLUMN = 26
COMMON = ("inventory", "as_json", "verbose", "quiet", "color", "help")


def verb_help(path: str, verb: Verb, params: Sequence[Parameter]) -> str:
    """The help of one verb."""
    width = _width()
    arguments = [one for one in params if one.param_type_name == "argument"]
    options = [one for one in params if one.param_type_name == "option" and not one.hidden]
    own = [one for one in options if one.name not in COMMON]
    common = sorted((one for one in options if one.name in COMMON), key=lambda one: COMMON.index(one.name))
    lines = [*usage_lines(path, arguments, width, verb.usage), "", *textwrap.wrap(verb.summary, width)]
    for paragraph in filter(None, as_called(verb.about).split("\n")):
        lines += ["", *textwrap.wrap(paragraph, width)]
    lines += _section("Arguments", ((shown_name(one), one.help or "") for one in arguments), width)
    lines += _section("Options", map(option_row, own), width)
    lines += _section("Common options", map(option_row, common), width)
    lines += _section("Exit codes", ((str(code), what) for code, what in sorted(verb.exits.items())), width, column=6)
    if verb.examples:
        lines += ["", "Examples:", *(f"  {as_called(example)}" for example in verb.examples)]
    return "\n".join(lines)


def program_options(params: Iterable[Parameter]) -> list[tuple[str, str]]:
    """The options of a program or of a group of verbs; the common ones are in the help of each verb."""
    return [option_row(one) for one in params if one.param_type_name == "option" and one.name not in COMMON[:-1]]


def program_help(path: str, about: str, verbs: Mapping[str, Verb], options: Iterable[tuple[str, str]]) -> str:
    """The help of a program or of a group of verbs."""
    width = _width()
    lines = [f"Usage: {path} VERB [OPTIONS]", "", *textwrap.wrap(about, width)]
    for group in dict.fromkeys(verb.group for verb in verbs.values()):
        rows = ((name, verb.summary) for name, verb in verbs.items() if verb.group == group)
        lines += _section(group, rows, width, column=13)
    lines += _section("Options", options, width)
    lines += ["", *textwrap.wrap(f"{path} VERB --help shows the options of a verb, with examples.", width)]
    return "\n".join(lines)


def shown_name(param: Parameter) -> str:
    """How a parameter is called in help and errors: MODEL, --port."""
    if param.param_type_name == "option":
        return str(max(param.opts, key=len))
    return str(param.metavar or param.name.upper())


def usage_lines(
    path: str, arguments: Iterable[Parameter], width: int = MAX_WIDTH, words: Sequence[str] = ()
) -> Iterator[str]:
    """How a verb is called; `words` in place of its arguments and options, where these alone do not make a call."""
    pieces = [f"Usage: {path}"]
    last = []
    for one in arguments:
        name = shown_name(one)
        if name.startswith("-- "):
            last.append(f"[{name}]")
        else:
            pieces.append((name if one.required else f"[{name}]") + "..." * (one.nargs == -1))
    # What belongs together is not broken.
    whole = (pieces[0], *words) if words else (*pieces, "[OPTIONS]", *last)
    line = " ".join(piece.replace(" ", "\xa0") for piece in whole)
    for piece in textwrap.wrap(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False):
        yield piece.replace("\xa0", " ")


def has_value(param: Parameter) -> bool:
    """Whether an option is followed by a value."""
    return not (getattr(param, "is_flag", False) or getattr(param, "count", False))


def option_row(param: Parameter) -> tuple[str, str]:
    """The names of an option with its metavar, and its help with its default."""
    # With the parser: the help of the program needs neither.
    from vllm_cluster.kernel.terminal.values import DURATION, written

    name = ", ".join(sorted([*param.opts, *param.secondary_opts], key=len))
    if has_value(param):
        name += f" {param.metavar}"
    more = []
    if param.envvar:
        more.append(f"environment: {param.envvar}")
    default = None if param.default is None or callable(param.default) else param.default
    if param.show_default and default not in (None, False, "", 0, 0.0, (), []):
        more.append(f"default: {written(default) if param.metavar == DURATION else default}")
    return name, (param.help or "") + (f" [{'; '.join(more)}]" if more else "")


def _section(title: str, rows: Iterable[tuple[str, str]], width: int, column: int = COLUMN) -> list[str]:
    lines = []
    # A narrow terminal has room for descriptions below the names.
    column = min(column, width // 3)
    for name, description in rows:
        wrapped = textwrap.wrap(as_called(description), width - column, break_long_words=False) or [""]
        first = f"  {name}"
        if len(first) + 2 > column:
            lines.append(first)
        else:
            lines.append(first.ljust(column) + wrapped.pop(0))
        lines += [" " * column + line for line in wrapped]
    return ["", f"{title}:", *(line.rstrip() for line in lines)] if lines else []


def _width() -> int:
    columns = shutil.get_terminal_size().columns if os.environ.get("COLUMNS") or os.isatty(1) else 80
    return max(MIN_WIDTH, min(MAX_WIDTH, columns)) - 1
