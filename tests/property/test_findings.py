"""P46: no remedy of a finding runs what a host calls itself, whichever word of its facts that is in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.support import pasted, world
from tests.support.paths import FIXTURES
from vllm_cluster.kernel.checks.registry import check_all
from vllm_cluster.kernel.facts.bounds import bounded
from vllm_cluster.kernel.facts.host_facts import Hca, HostFacts
from vllm_cluster.kernel.facts.parse import facts

FACTS = (FIXTURES / "facts" / "h200-x2-host.txt").read_text()
WORDS = ("x; touch RAN #", "$(touch RAN)", "x';touch RAN;'", 'x";touch RAN;"', "fix: touch RAN", "x\nfix: touch RAN")


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where in facts a text is."""
    if isinstance(value, str):
        yield path
    elif is_dataclass(value):
        for one in fields(value):
            yield from places(getattr(value, one.name), (*path, one.name))
    elif isinstance(value, Mapping):
        for key in value:
            yield from places(value[key], (*path, key))
    elif isinstance(value, tuple) and value:
        yield from places(value[0], (*path, 0))


def put(value: Any, path: tuple[Any, ...], text: str) -> Any:
    """The facts with another text at a place."""
    if not path:
        return text
    first, *rest = path
    if is_dataclass(value):
        return replace(value, **{first: put(getattr(value, first), tuple(rest), text)})  # type: ignore[type-var]
    if isinstance(value, Mapping):
        return {**value, first: put(value[first], tuple(rest), text)}
    return (put(value[0], tuple(rest), text), *value[1:])


# An adapter that has no address for RoCE: the remedy names its interface.
ETHERNET = Hca("mlx5_0", 1, "4: ACTIVE", "Ethernet", "200 Gb/sec", ("/dev/infiniband/uverbs0",), ("ens1",))


# fault: kernel/facts/bounds.py: words(value).translate(_OF_SHELLS) if _is_plain(field) else words(value) → words(value)
@pytest.mark.promise("P46")
def test_no_remedy_runs_a_word_of_a_hosts_facts(tmp_path: Path) -> None:
    """Of two hosts with unlike drivers one wrote the remedy of the other: `install driver $(…)`."""
    inventory = world.inventory(2, accelerator="nvidia")
    # The second host differs in all that is compared.
    honest = {name: facts(name, FACTS, deep=True) for name in inventory.hosts}
    second = FACTS.replace("580.159.04", "570.1")
    lines, tried = set[str](), 0
    both = (honest["gpu1"], replace(honest["gpu1"], hcas=(ETHERNET,), gids=()))
    # Its name is the inventory's.
    for base, path in ((one, path) for one in both for path in places(one) if path != ("host",)):
        for word in WORDS:
            try:
                forged: HostFacts = bounded(put(base, path, word))
            except ValueError:
                continue
            tried += 1
            for other in (honest["gpu2"], facts("gpu2", second, deep=True)):
                try:
                    found = check_all(inventory, {"gpu1": forged, "gpu2": other})
                except ValueError:
                    # An address that is none is refused where the facts are parsed.
                    continue
                lines |= {line for one in found for line in one.fix.split("\n")}
    assert tried > 200
    assert len(lines) > 10
    assert pasted.run(lines, tmp_path) == []
