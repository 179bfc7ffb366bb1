"""How much each replica has to do, by GET /metrics of the API: replicas report it of themselves, each of its own.

Without other modules of vcluster: it goes along with programs on hosts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import nan

# More than the front gives of all replicas at once.
MAX_METRICS = 24 << 20
# More than any server has, and few enough to count with: who runs a replica may write any number.
MAX_REQUESTS = 1e6
# The front puts the replica's number before the labels that the replica itself wrote.
_SAMPLE = re.compile(
    r'^vllm:num_requests_(running|waiting)(?:\{(?:replica="(\d{1,5})")?[^\n]*\})? +(\S+)$', re.MULTILINE | re.ASCII
)


@dataclass(frozen=True)
class Load:
    """One or more replicas at one moment: the requests that run, and those that wait."""

    running: float
    waiting: float


def read_loads(metrics: str) -> dict[str, Load | None]:
    """The load of each replica by its number, which is empty where no front gave it; summed over its engines.

    None is the load of a replica whose numbers can not be: nothing is known of it.
    """
    sums: dict[str, dict[str, float]] = {}
    for what, replica, number in _SAMPLE.findall(metrics):
        own = sums.setdefault(replica, {})
        own[what] = own.get(what, 0.0) + _number(number)
    return {replica: _load(own) for replica, own in sums.items()}


def _load(own: Mapping[str, float]) -> Load | None:
    load = Load(own.get("running", nan), own.get("waiting", nan))
    return load if load.running <= MAX_REQUESTS and load.waiting <= MAX_REQUESTS else None


def _number(text: str) -> float:
    """A number of requests; NaN, as which its sums stay, where it can not be one."""
    try:
        number = float(text)
    except ValueError:
        return nan
    return number if 0 <= number <= MAX_REQUESTS else nan
