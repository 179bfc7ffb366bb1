"""As much of a shell as tests need of a container: `echo WORDS`, `echo WORDS >&2`, `sleep N` and `exit N`."""

from __future__ import annotations


def run(script: str) -> tuple[str, str, int | None]:
    """What a script prints to standard output and to standard error, and its exit code, None while it sleeps."""
    out = errors = ""
    for command in script.split("; "):
        words = command.split()
        match words:
            case ["echo", *said, ">&2"]:
                errors += " ".join(said) + "\n"
            case ["echo", *said]:
                out += " ".join(said) + "\n"
            case ["sleep", _]:
                return out, errors, None
            case ["exit", code]:
                return out, errors, int(code)
            case _:
                raise AssertionError(f"no such command here: {command}")
    return out, errors, 0
