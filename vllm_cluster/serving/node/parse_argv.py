"""Reads options and places out of command lines."""

from __future__ import annotations

from collections.abc import Sequence

Place = tuple[str, int]


def option(argv: Sequence[str], name: str) -> str | None:
    """The value of `--name=value`."""
    return next((word.partition("=")[2] for word in argv if word.startswith(f"{name}=")), None)


def place(text: str) -> Place:
    """host:port, v6:port or [v6]:port."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)
