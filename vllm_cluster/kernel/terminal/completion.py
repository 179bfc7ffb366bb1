"""What TAB offers: hosts as they are here, models and what is served as they were seen last. Never a connection.

Nothing here may be slow or fail: the shell waits for it, and shows what it prints.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Protocol

from vllm_cluster.kernel.errors import VclusterError
from vllm_cluster.kernel.inventory.find import MAX_BYTES, find
from vllm_cluster.kernel.laptop import cache_folder, here, make_private, read_own_file, real, write_whole

MAX_MODELS, MAX_SERVED = 20, 100
_COLUMNS = 3
_HOSTS = re.compile(r"^hosts:[ \t]*(?:#.*)?\n((?:[ \t].*\n|#.*\n|\n)*)", re.MULTILINE)
# A shell would run parts of other names, or needs them quoted; what begins with - would be an option of the verb.
_PLAIN = re.compile(r"(?!-)[\w.+@:/,-]*")
_KEY = re.compile(r"""^([ \t]+)["']?([\w.-]+)["']?[ \t]*:""", re.MULTILINE)
_FAILURE = re.compile(r"^\[\w+\.([\w-]+)\]", re.MULTILINE)


class Words(Protocol):
    """What was typed so far, by the names of the parameters."""

    params: Mapping[str, object]


def complete_hosts(ctx: Words, args: list[str], incomplete: str) -> list[str]:
    """The hosts of the inventory, by its text: a YAML parser takes longer than a TAB may."""
    path = _inventory(ctx)
    if path is None:
        return []
    try:
        if not path.is_file():  # a named pipe would be waited for
            return []
        with path.open(encoding="utf-8", errors="replace") as file:
            found = _HOSTS.search(file.read(MAX_BYTES) + "\n")
    except OSError:
        return []
    keys = _KEY.findall(found[1]) if found else []
    return _offered((name for indent, name in keys if indent == keys[0][0]), incomplete)


def complete_host_list(ctx: Words, args: list[str], incomplete: str) -> list[str]:
    """The hosts that a list with commas does not have yet."""
    before, comma, last = incomplete.rpartition(",")
    there = before.split(",")
    return _offered(
        (f"{before}{comma}{name}" for name in complete_hosts(ctx, args, last) if name not in there), incomplete
    )


def complete_models(ctx: Words, args: list[str], incomplete: str) -> list[str]:
    """The models that this user has served, the last one first."""
    return _offered(_kept("models"), incomplete)


def complete_served(ctx: Words, args: list[str], incomplete: str) -> list[str]:
    """The names that the cluster of the inventory serves, as it was seen last: a verb about one refuses others."""
    return _offered(_served_by(ctx), incomplete)


def complete_unserved(ctx: Words, args: list[str], incomplete: str) -> list[str]:
    """The models that may be removed: not those that are served."""
    served = {*_served_by(ctx).values()}
    # One that begins with a / is a folder as containers see it.
    return _offered((one for one in _kept("models") if one not in served and not one.startswith("/")), incomplete)


def complete_failures(ctx: Words, args: list[str], incomplete: str) -> list[str]:
    """The failures that the catalogue's text has: it is not loaded for TAB. The shell offers files where none fits."""
    try:
        text = files("vllm_cluster.kernel.explain").joinpath("failures.toml").read_text("utf-8")
    except (OSError, ValueError):
        return []
    return _offered(_FAILURE.findall(text), incomplete) if incomplete else []


def _offered(names: Iterable[str], incomplete: str) -> list[str]:
    """Of these what continues the word, and means the same in every shell without a quote."""
    return [name for name in names if name.startswith(incomplete) and _PLAIN.fullmatch(name)]


def remember_model(model: str) -> None:
    """Keep the name of a model that is served, for the next TAB."""
    names = _kept("models")
    if names[:1] != [model]:
        _keep("models", [model, *(name for name in names if name != model)][:MAX_MODELS])


def forget_model(model: str) -> None:
    """Offer a model no more that was removed from the hosts."""
    if model in (names := _kept("models")):
        _keep("models", [name for name in names if name != model])


def remember_served(inventory: Path | None, served: Mapping[str, str], ready: str = "") -> None:
    """Keep what the cluster of an inventory serves, the models by name, and which is ready, for the next TAB."""
    if ready:
        remember_model(ready)
    if inventory is not None:
        at = row_key(inventory)
        # What is not offered is not kept: a host may have given it any name.
        own = [(at, *names) for names in served.items() if all(map(_PLAIN.fullmatch, names))]
        rows = [*own, *(row for row in _served() if row[0] != at)][:MAX_SERVED]
        _keep("served", map("\t".join, rows))


def remember_stopped(inventory: Path | None, name: str | None) -> None:
    """Keep that a name is served no more, or none is."""
    if inventory is not None:
        at = row_key(inventory)
        remember_served(
            inventory, {one: model for path, one, model in _served() if path == at and name not in (None, one)}
        )


def _served_by(ctx: Words) -> dict[str, str]:
    """The models by name that the cluster of the inventory serves, as it was seen last."""
    path = _inventory(ctx)
    return {name: model for at, name, model in _served() if at == row_key(path)} if path else {}


def _served() -> list[tuple[str, str, str]]:
    """The inventory, the name and the model of each that is served."""
    rows = (line.split("\t") for line in _kept("served"))
    return [(row[0], row[1], row[2]) for row in rows if len(row) == _COLUMNS]


def row_key(inventory: Path) -> str:
    """What a row has for an inventory, whose path may hold any byte."""
    import hashlib

    return hashlib.sha256(os.fsencode(real(inventory))).hexdigest()


def _kept(name: str) -> list[str]:
    try:
        return list(filter(None, read_own_file(_file(name)).decode().split("\n")))
    except (OSError, ValueError, VclusterError):
        return []


def _file(name: str) -> Path:
    return cache_folder() / name


def _keep(name: str, lines: Iterable[str]) -> None:
    # A cache that cannot be written is none.
    with suppress(OSError, ValueError, VclusterError):
        file = _file(name)
        make_private(file.parent)
        write_whole(file, "\n".join(lines))


def _inventory(ctx: Words) -> Path | None:
    try:
        given = ctx.params.get("inventory") or os.environ.get("VCLUSTER_INVENTORY")
        return (here() / given) if isinstance(given, str | Path) else find(here()).absolute()
    except (OSError, VclusterError):
        return None
