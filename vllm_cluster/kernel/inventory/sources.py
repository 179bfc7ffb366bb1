"""Where the hosts of an inventory come from that are not in its file: a job of Slurm, or a command that prints them.

The next source is a function here, and its row in `SOURCES`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from vllm_cluster.kernel.errors import InventoryError
from vllm_cluster.kernel.inventory import grammar
from vllm_cluster.kernel.inventory.beside import others_change_command
from vllm_cluster.kernel.inventory.consistency import check
from vllm_cluster.kernel.inventory.document import Document
from vllm_cluster.kernel.inventory.model import SecretRef
from vllm_cluster.kernel.inventory.secrets import MAX_BYTES, command_output
from vllm_cluster.kernel.inventory.validate import validate
from vllm_cluster.wire.reading import bounded

KEY = "hosts_from"
# Hosts as the inventory has them, and until when they are lent, in seconds since 1970.
Source = tuple[dict[str, object], float | None]
# The GPUs that a job has on some of its nodes: gpu:h100:2(IDX:0-1).
_INDICES = re.compile(r"gpu[^(]{0,100}\(IDX:([0-9,-]+)\)")
_RANGE = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")
_JOB = re.compile(r"[0-9]{1,10}")
# More than any node has.
MAX_INDEX = 1024
_ANY_HOST: Mapping[str, object] = {"hosts": {"host": {}}}
# Of a job: each list of 64 kB may name 10,000, and a job may have thousands of lists.
MAX_NODES = 4096


def add_hosts(document: Document, base: Path, *, found: bool = False) -> bool:
    """Put the hosts of another source into a document; False where that cannot be, with the problem.

    A command runs in the folder `base`; of an inventory that was `found` not where others may change what it is.

    A source is asked last: it may be a command, and a file that is not an inventory in all else runs none.
    """
    data = document.data
    if not isinstance(data, dict) or KEY not in data:
        return True
    kind, _, word = str(data[KEY]).partition(":")
    if "hosts" in data or kind not in SOURCES:
        known = " or ".join(f"{name}:…" for name in SOURCES)
        document.add_problem((KEY,), "stays alone: remove hosts" if "hosts" in data else f"must be {known}")
        return False
    if found and kind == "command" and (why := others_change_command(word, base)):
        document.add_problem((KEY,), why)
    if document.problems or not _is_sound(document, data):
        return False
    document.lines[("hosts",)] = document.line((KEY,))
    try:
        data["hosts"], document.lent_until = SOURCES[kind](word, base)
    except InventoryError as error:
        document.add_problem((KEY,), error.message)
    return "hosts" in data


def _is_sound(document: Document, data: Mapping[str, object]) -> bool:
    """Whether all else in a document is as it must be, with any host in it."""
    validate(replace(document, data={**data, **_ANY_HOST}))
    check(replace(document, data={**{key: data[key] for key in data if key != "head"}, **_ANY_HOST}))
    return not document.problems


def _printed(words: str, base: Path) -> str:
    """What a command prints, in the folder of the inventory: whole, or hosts would seem to have left."""
    try:
        found = command_output(SecretRef(kind="cmd", value=words), base, os.environ)
    except InventoryError as error:
        # `cmd:` is how a secret is asked for; this is the value of another key.
        raise InventoryError(error.message.removeprefix("cmd:")) from None
    if len(found) > MAX_BYTES:
        raise InventoryError(f"the command prints more than {MAX_BYTES // 1000} kB")
    return found.decode("utf-8", "replace")


def slurm_hosts(job: str, base: Path) -> Source:
    """The nodes of a job, each with the indices of its GPUs there, and its end; by default of the job around this call.

    Raises:
        InventoryError: there is no such job, or it has no nodes now.
    """
    number = job or os.environ.get("SLURM_JOB_ID", "")
    if not _JOB.fullmatch(number):
        raise InventoryError("must be slurm:JOB, with the number of a job")
    shown = _printed(shlex.join(["scontrol", "show", "job", "-d", "-o", number]), base)
    hosts: dict[str, object] = {}
    for nodes, gres in _parts(shown):
        indices = sorted({index for found in _INDICES.findall(gres) for index in _numbers(found)})
        names = _printed(shlex.join(["scontrol", "show", "hostnames", nodes]), base).split()
        hosts |= {name: {"gpus": indices} if indices else {} for name in names}
        if len(hosts) > MAX_NODES:
            raise InventoryError(f"job {number} has more than {MAX_NODES} nodes")
    if not hosts:
        raise InventoryError(f"job {number} has no nodes now: it waits, or has ended")
    return hosts, _end(shown)


def _end(shown: str) -> float | None:
    """When a job ends, by the clock of this machine; None where that is not known."""
    found = re.search(r" EndTime=([0-9T:-]{19}) ", shown)
    try:
        return datetime.fromisoformat(found[1]).timestamp() if found else None
    except ValueError:
        return None


def _parts(shown: str) -> Iterator[tuple[str, str]]:
    """The nodes of a job that are alike, and what it has on each of them."""
    nodes = ""
    for word in shown.split():
        key, _, value = word.partition("=")
        if key == "Nodes":
            nodes = value
        elif key == "GRES" and nodes:
            yield nodes, value
            nodes = ""


def _numbers(text: str) -> Iterator[int]:
    for part in text.split(","):
        if (found := _RANGE.fullmatch(part)) and int(found[2] or found[1]) < MAX_INDEX:
            yield from range(int(found[1]), int(found[2] or found[1]) + 1)


def command_hosts(words: str, base: Path) -> Source:
    """The hosts that a command prints as JSON.

    Raises:
        InventoryError: it cannot be run, fails, or prints something else.
    """
    try:
        grammar.command(words, "command")
    except ValueError as error:
        raise InventoryError(str(error)) from None
    printed = _printed(words, base)
    try:
        found = json.loads(bounded(printed.encode()))
    except (ValueError, RecursionError):
        raise InventoryError("the command must print JSON: an object of hosts, as hosts has them") from None
    if not isinstance(found, dict):
        raise InventoryError("the command must print an object: a key for each host")
    return found, None


SOURCES: Mapping[str, Callable[[str, Path], Source]] = {"slurm": slurm_hosts, "command": command_hosts}
