"""By which way Docker hands out a host's GPUs, as its engine says and not as files on the host do."""

from __future__ import annotations

import re
from collections.abc import Iterator

from vllm_cluster.core.facts import Engine
from vllm_cluster.core.spec import Way

KIND = "nvidia.com/gpu"
RUNTIME = "nvidia"
# Since this version CDI is on unless it is switched off, and containers with CDI devices are started with the engine.
CDI_MATURE = (28, 2)


def ways(engine: Engine) -> tuple[Way, ...]:
    """The ways that work on this engine, the best first; one that an engine's restart breaks comes last."""
    return tuple(_ways(engine))


def _ways(engine: Engine) -> Iterator[Way]:
    by_cdi = cdi_on(engine) and KIND in {*engine.cdi_specs, *(name.partition("=")[0] for name in engine.cdi_devices)}
    if by_cdi and survives_restart(engine):
        yield "cdi"
    # An engine that lists no runtime at all was not asked: what most have is assumed, and the container shows it.
    if engine.gpu_hook or not engine.runtimes:
        yield "request"
    if RUNTIME in engine.runtimes:
        yield "runtime"
    if by_cdi and not survives_restart(engine):
        yield "cdi"


def cdi_on(engine: Engine) -> bool:
    """Whether the engine reads CDI files."""
    return _release(engine) >= CDI_MATURE if engine.cdi is None else engine.cdi


def survives_restart(engine: Engine) -> bool:
    """Whether the engine, when it starts, starts containers with CDI devices; before 28.2 they stay down."""
    return _release(engine) >= CDI_MATURE


def _release(engine: Engine) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", engine.version)[:2])
