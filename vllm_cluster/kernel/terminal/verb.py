"""What is known of a verb before its module is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Verb:
    """One verb: what its help prints, and where its function is below the package, as `serving.cluster.verb:up`."""

    group: str
    function: str
    summary: str
    about: str = ""
    examples: tuple[str, ...] = ()
    exits: Mapping[int, str] = field(default_factory=dict)
    # Words of the same command elsewhere that ask for what is done anyway.
    habits: tuple[str, ...] = ()
    # Options that may be given without their value, with the one that is meant then.
    bare: Mapping[str, str] = field(default_factory=dict)
    # What a call needs, where that is more than its arguments.
    usage: tuple[str, ...] = ()
    # Of a group that has a default verb: its own ones.
    verbs: Mapping[str, Verb] = field(default_factory=dict)
    # Whether it asks a cluster, and so takes an inventory.
    inventory: bool = True
