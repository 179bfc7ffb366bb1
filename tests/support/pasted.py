"""Lines that a person may paste, run by real shells in a folder of traps: no file may come of them."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

SHELLS = ("sh", "bash", "zsh", "fish")
# What is started in place of a program: it writes down its words, with their number before them.
NOTES = """#!/bin/sh
printf '%s\\0' "$#" "${0##*/}" "$@" >> "$NOTES"
"""
# A word of a host that a program would take for an option makes a file, too: no shell has a part in it.
TAKES_OPTIONS = "#!/bin/sh\nfor word do case $word in -*RAN*) : > RAN-as-option;; esac; done\n"
# What remedies name; a line that has another program starts nothing here.
PROGRAMS = ("vcluster", "curl", "ssh", "docker", "sudo", "scp", "rm", "kill", "systemctl", "pip", "pipx", "python3")
_LABEL = re.compile(r"^(?:fix|status|stop|follow|continue|next|or|ask|clients|tunnel|key|log): +(.*)$")
_COMMAND = re.compile(r"\b(?:vcluster|curl|ssh|docker|sudo|export|eval) .*$")
# What a line does to the shell is gone with its subshell.
_EACH = {
    "sh": 'for line do (eval "$line") </dev/null >/dev/null 2>&1; done',
    "fish": "for line in $argv; eval $line </dev/null >/dev/null 2>&1; end",
}
PIECE = 400


def pasteable(output: str) -> Iterator[str]:
    """The command lines in what was printed: what is behind a label, and from a program's name to the line's end."""
    for line in output.splitlines():
        if line.startswith("{"):
            yield from (part for text in _texts(json.loads(line)) for part in pasteable(text))
        elif found := _LABEL.match(line.strip()):
            yield found[1]
        elif command := _COMMAND.search(line):
            yield command[0]


def _texts(value: Any) -> Iterator[str]:
    """Every text in a document."""
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _texts(one)
    if isinstance(value, str):
        yield from value.splitlines() if not value.startswith("{") else ()


def run(lines: Collection[str], folder: Path) -> list[str]:
    """What the shells made in the folder of these lines, by the shell's name; a harmless line makes nothing."""
    programs, traps = folder / "bin", folder / "traps"
    programs.mkdir(parents=True, exist_ok=True)
    traps.mkdir(exist_ok=True)
    for name in PROGRAMS:
        (programs / name).write_text(TAKES_OPTIONS)
        (programs / name).chmod(0o755)
    touch = programs / "touch"
    if not touch.exists():
        touch.symlink_to("/usr/bin/touch")
    environment = {"PATH": str(programs), "HOME": str(folder), "LANG": "C.UTF-8"}
    made, every = list[str](), sorted({line.replace("\0", "") for line in lines})
    for shell in SHELLS:
        script = _EACH.get(shell, _EACH["sh"])
        for at in range(0, len(every), PIECE):
            some = every[at : at + PIECE]
            argv = ["fish", "--no-config", "-c", script] if shell == "fish" else [shell, "-c", script, shell]
            subprocess.run(
                [f"/usr/bin/{argv[0]}", *argv[1:], *some],
                cwd=traps,
                env=environment,
                check=False,
                stderr=subprocess.DEVNULL,
            )
            made += [f"{shell}: {path.name}" for path in traps.iterdir()]
            for path in traps.iterdir():
                path.unlink()
    return made


def noted(path: Path) -> list[list[str]]:
    """The words of each program that was started."""
    words, calls = iter(path.read_bytes().decode().split("\0")[:-1]), list[list[str]]()
    for count in words:
        calls.append([next(words) for _ in range(int(count) + 1)])
    path.unlink()
    return calls
