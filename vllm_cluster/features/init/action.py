"""Write a first inventory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from vllm_cluster.kernel.errors import InventoryError, UsageError
from vllm_cluster.kernel.inventory.find import INIT
from vllm_cluster.kernel.inventory.load import load_text
from vllm_cluster.kernel.inventory.template import HostSeed, render
from vllm_cluster.kernel.laptop import meaning, naming
from vllm_cluster.kernel.transport.ssh_config import hosts_matching

# As many characters as `cluster` may have.
MAX_NAME = 32
# The option that gives each key of the file.
_OPTIONS = {"hosts": "--host NAME=ADDRESS", "cluster": "--cluster", "image": "--image", "model_cache": "--model-cache"}


@dataclass(frozen=True)
class Written:
    """An inventory: its text, where it was written, and how many hosts it has."""

    text: str
    output: Path | None
    hosts: int


def write(
    *,
    hosts: list[str],
    pattern: str | None,
    cluster: str,
    image: str,
    model_cache: str,
    output: Path | None,
    force: bool,
) -> Written:
    """Write the inventory to `output`, where one is given.

    Raises:
        UsageError: there is no host, or the file exists or cannot be written.
    """
    seeds = _seeds(hosts, hosts_matching(None, pattern) if pattern else ())
    if not seeds:
        where = f"no Host of your ssh_config matches {pattern}" if pattern else "no host was given"
        raise UsageError(where, hint=INIT)
    if output and output.exists() and not force:
        raise UsageError(f"{output} already exists", hint="or write another file: -o FILE", again=("--force",))
    text = render(cluster, seeds, image, model_cache)
    _ensure_loadable(text)
    if output:
        try:
            with naming(output):
                output.write_text(text, encoding="utf-8")
        except OSError as error:
            found = meaning(error)
            raise UsageError(found.message, hint=found.hint) if found else error from None
    return Written(text, output, len(seeds))


def cluster_name(folder: Path) -> str | None:
    """A cluster's name by that of a folder; None where nothing of it can stay."""
    name = re.sub(r"[^a-z0-9]+", "-", folder.name.lower()).strip("-")[:MAX_NAME].strip("-")
    return name or None


def _ensure_loadable(text: str) -> None:
    """Write no inventory that cannot be read."""
    try:
        load_text(text.encode(), path=None, cwd=None)
    except InventoryError as error:
        # Its line in a file that was not written helps less than the key.
        wrong = [re.sub(r"^<stdin>:\d+: ", "", line) for line in error.message.splitlines()]
        keys = [re.split(r"[.:]", line, maxsplit=1)[0] for line in wrong]
        options = dict.fromkeys(_OPTIONS[key] for key in keys if key in _OPTIONS)
        raise UsageError("\n".join(wrong), hint=f"correct {', '.join(options) or 'the options'}") from None


def _seeds(given: Sequence[str], matching: Iterable[str]) -> list[HostSeed]:
    """The hosts that were given, and those of ssh_config: of a host of both, what was given with it is kept.

    Raises:
        UsageError: one is given twice.
    """
    seeds: dict[str, HostSeed] = {}
    for seed in map(_seed, given):
        if seed.name in seeds:
            raise UsageError(f"host {seed.name} is given twice", hint=f"give {seed.name} once")
        seeds[seed.name] = seed
    return list({**seeds, **{name: HostSeed(name) for name in matching if name not in seeds}}.values())


def _seed(text: str) -> HostSeed:
    """`name`, `name=address` or `name=user@host`: what looks like no address is the way to reach it."""
    name, _, rest = text.partition("=")
    looks = rest and all(character in "0123456789abcdefABCDEF.:" for character in rest) and not rest.isalpha()
    return HostSeed(name, None, rest) if looks else HostSeed(name, rest or None, None)
