"""The output of the command that starts Ray, and which Ray it is."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata


def option(argv: Sequence[str], name: str) -> str | None:
    """The value of `--name=value`."""
    return next((word.partition("=")[2] for word in argv if word.startswith(f"{name}=")), None)


def listen_address(ray: Sequence[str], port: str) -> tuple[str, int] | None:
    """Where Ray listens on this host, by the option that names the port."""
    address, number = option(ray, "--node-ip-address"), option(ray, port)
    return (address, int(number)) if address and number else None


def place(text: str) -> tuple[str, int]:
    """host:port or [v6]:port."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def ray_version() -> str | None:
    """Ray's version in this image; None where it has none."""
    try:
        return metadata.version("ray")
    except metadata.PackageNotFoundError:
        return None
