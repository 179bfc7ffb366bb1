"""The lines of a cluster's history, which laptops and the head's program append: who ran what, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from vllm_cluster.wire.values import Count, Line, RunName, between

# In seconds since 1970, to the year 9999: one of its last hours is of no calendar in Tokyo.
Moment = Annotated[float, between(0.0, 253_370_764_800.0)]
# How long it took; a clock may have jumped meanwhile.
Seconds = Annotated[float, between(-1e9, 1e9)]


@dataclass(frozen=True)
class AuditLine:
    """A run of a verb: `time` by the clock of its laptop, `request` the number of what `serve` or `stop` asked for.

    `version` is that of its vcluster.
    """

    time: Moment
    user: Line
    verb: Line
    operations: tuple[Line, ...]
    version: Line = ""
    run: RunName = ""
    request: Count = 0
    seconds: Seconds | None = None


@dataclass(frozen=True)
class ResultLine:
    """What became of a request, or of what it serves, at one replica: `summary` is why it failed or started again.

    `replicas` are those that the request asks for.
    """

    request: Count
    result: Line
    time: Moment = 0.0
    user: Line = ""
    model: Line = ""
    name: Line = ""
    seconds: Seconds | None = None
    summary: Line = ""
    replica: Count = 0
    replicas: Count = 1
    # What ran then, as `Placement` names it; a node program of before the first release did not write it.
    generation: RunName = ""
