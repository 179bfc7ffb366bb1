"""The problems of a file, each with its line and key, reported all at once."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from vllm_cluster.kernel.errors import InventoryError
from vllm_cluster.kernel.inventory.words import quote_value
from vllm_cluster.kernel.text import count, printable, redact_value

Loc = tuple[str | int, ...]
MAX_PROBLEMS = 20


@dataclass(frozen=True)
class Problem:
    """One problem, its place, and its fix; the `example` are lines of a file in which that is right."""

    line: int
    loc: Loc
    text: str
    example: tuple[str, ...] = ()


def key_of(loc: Loc) -> str:
    """A place in the file as people write it: hosts.gpu1.address, volumes[0]."""
    key = ""
    for part in loc:
        if isinstance(part, int):
            key += f"[{part}]"
        else:
            word = redact_value(part)
            plain = re.fullmatch(r"(?:[A-Za-z0-9_-]|\[redacted\]){1,63}", word)
            key += ("." if key else "") + (word if plain else quote_value(part))
    return key


def as_error(problems: Iterable[Problem], file: str) -> InventoryError:
    """All problems as one error: their number where there are several, then each in the file's order."""
    ordered = sorted(dict.fromkeys(problems), key=lambda problem: problem.line)
    lines = [f"{file}: {count(len(ordered), 'problem')}"] if len(ordered) > 1 else []
    for problem in ordered[:MAX_PROBLEMS]:
        lines += [_line(problem, file), *(f"    {line}" for line in problem.example)]
    if ordered[MAX_PROBLEMS:]:
        lines.append(f"{file}:{ordered[MAX_PROBLEMS].line}: {len(ordered) - MAX_PROBLEMS} more problems from here on")
    return InventoryError(*lines)


def _line(problem: Problem, file: str) -> str:
    key = key_of(problem.loc)
    return f"{file}:{problem.line}: {key + ': ' if key else ''}{problem.text}"


def file_name(path: Path | None, cwd: Path | None = None) -> str:
    """The file as the user would name it from `cwd`, which is the current folder where there is one."""
    if path is None:
        return "<stdin>"
    with suppress(OSError):
        cwd = cwd or Path.cwd()
    near = cwd and path != cwd and path.is_relative_to(cwd)
    return printable(str(path.relative_to(cwd) if cwd and near else path))
