"""Write a first inventory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vllm_cluster.features.init.presets import PRESETS, InventoryPreset
from vllm_cluster.kernel.errors import InventoryError, UsageError
from vllm_cluster.kernel.inventory.find import INIT
from vllm_cluster.kernel.inventory.load import load_text
from vllm_cluster.kernel.inventory.template import HostSeed, render
from vllm_cluster.kernel.inventory.words import quote_value
from vllm_cluster.kernel.laptop import meaning, write_given
from vllm_cluster.kernel.shell_line import Option, command_line
from vllm_cluster.kernel.transport.ssh_config import hosts_matching
from vllm_cluster.kernel.versions import VLLM_IMAGE

# In place of a preset: all of them.
LIST = "list"
# As many characters as `cluster` may have.
MAX_NAME = 32
# What a new file has; a person sets another folder there.
MODEL_CACHE = "/data/huggingface"
OTHER = "or write another file: -o FILE"
# The option that gives each key of the file.
_OPTIONS = {"hosts": "--host NAME=ADDRESS", "cluster": "--cluster"}


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
    output: Path | None,
    force: bool,
    preset: InventoryPreset | None = None,
) -> Written:
    """Write the inventory to `output`, where one is given; what a preset has where nothing else is given.

    Raises:
        UsageError: there is no host, or the file exists or cannot be written.
    """
    seeds = _seeds(hosts, hosts_matching(None, pattern) if pattern else ())
    if preset:
        seeds = [replace(seed, gpus=preset.gpus) for seed in seeds or ([] if pattern else preset.hosts)]
    if not seeds:
        where = f"no Host of your ssh_config matches {pattern}" if pattern else "no host was given"
        raise UsageError(where, hint=INIT)
    if output and output.is_symlink() and (output.is_file() or not output.exists()):
        # Whose file that is, a link of a cloned repository does not show; and other programs need /dev/stdout as it is.
        raise UsageError(f"{output} is a link: nothing is written behind it", again=("-o", "-"), hint=OTHER)
    if output and output.exists() and not force:
        raise UsageError(f"{output} already exists", hint=OTHER, again=("--force",))
    values, notes = (preset.values, preset.notes) if preset else ({}, ())
    text = render(cluster, seeds, VLLM_IMAGE, MODEL_CACHE, values=values, notes=notes)
    _ensure_loadable(text)
    if output:
        try:
            write_given(output, text)
        except OSError as error:
            found = meaning(error)
            raise UsageError(found.message, hint=found.hint) if found else error from None
    return Written(text, output, len(seeds))


def find_preset(name: str) -> InventoryPreset:
    """The preset of a name.

    Raises:
        UsageError: there is none.
    """
    if name not in PRESETS:
        raise UsageError(
            f"there is no preset {quote_value(name)}", hint=command_line("vcluster", "init", Option("--preset"), LIST)
        )
    return PRESETS[name]


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
        wrong = [
            re.sub(r"^<stdin>:\d+: ", "", line) for line in error.message.splitlines() if line.startswith("<stdin>:")
        ]
        wrong = [line for line in wrong if not re.fullmatch(r"<stdin>: \d+ problems", line)]
        keys = [re.split(r"[.:]", line, maxsplit=1)[0] for line in wrong]
        options = dict.fromkeys(_OPTIONS[key] for key in keys if key in _OPTIONS)
        raise UsageError(*wrong, hint=f"correct {', '.join(options) or 'the options'}") from None


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
    """`name`, `name=address` or `name=user@host`: what looks like no address is the way to reach it.

    A user before the name, or a port behind the address, is of SSH at that address.
    """
    name, _, rest = text.partition("=")
    user, at, name = name.rpartition("@")
    if (ip := re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,3}){3})(:[0-9]+)?", rest)) and (at or ip[2]):
        return HostSeed(name, f"{user}{at}{rest}", ip[1])
    if at and not rest:
        return HostSeed(name, f"{user}@{name}", None)
    name = f"{user}{at}{name}"
    looks = rest and all(character in "0123456789abcdefABCDEF.:" for character in rest) and not rest.isalpha()
    return HostSeed(name, None, rest) if looks else HostSeed(name, rest or None, None)
