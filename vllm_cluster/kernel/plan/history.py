"""One entry of a cluster's history, as people read it."""

from __future__ import annotations

from dataclasses import dataclass

# Who restarts a model where no person does.
RESTARTER = "vcluster"
# In the state of the head: a line for each change that a person ordered.
AUDIT_FILE = "audit.jsonl"


@dataclass(frozen=True)
class Entry:
    """One run of a verb, and for a request to serve what became of it; `time` in seconds since 1970.

    Also a restart of the served model by the head's node program (`restart`): `failure` is why, `seconds` how long it
    took until the model was ready again.
    """

    time: float
    user: str
    verb: str
    operations: tuple[str, ...]
    request: int | None = None
    result: str | None = None
    seconds: float | None = None
    failure: str | None = None
