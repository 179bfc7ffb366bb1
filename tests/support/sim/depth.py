"""How far the simulated tests go: all of CI's in a minute, or as far as VCLUSTER_SIM_EXAMPLES says."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

EXAMPLES = int(os.environ.get("VCLUSTER_SIM_EXAMPLES", "0"))
DEEP = EXAMPLES > 0
# A busy machine is no failure; a failing case prints what reproduces it.
PATIENT = settings(
    deadline=None,
    print_blob=True,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],  # to explain takes minutes here
    derandomize=not DEEP,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


def examples(number: int, **more: int) -> settings:
    """Settings for so many examples, or for as many as were asked for."""
    return settings(PATIENT, max_examples=EXAMPLES or number, **more)  # type: ignore[arg-type]
