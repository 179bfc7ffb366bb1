"""How many cases are made up: VCLUSTER_DEPTH is `fast` (make test-fast), `ci` (make test) or `full` (make promises)."""

from __future__ import annotations

import os
from typing import Literal, get_args

from hypothesis import settings

Depth = Literal["fast", "ci", "full"]
DEPTHS: tuple[str, ...] = get_args(Depth)
DEPTH = os.environ.get("VCLUSTER_DEPTH", "ci")
assert DEPTH in DEPTHS, f"VCLUSTER_DEPTH is one of {', '.join(DEPTHS)}"
FULL = DEPTH == "full"


def cases(fast: int, ci: int, full: int) -> int:
    """The number for this run."""
    return {"fast": fast, "ci": ci, "full": full}[DEPTH]


# Of the tests that name no number of their own. A busy machine is not a failure: hypothesis allows a case 0.2 s.
settings.register_profile("depth", max_examples=cases(10, 50, 100), deadline=None)
settings.load_profile("depth")
