"""What a node reports of its load, as its samples have it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from vllm_cluster.serving.status.counters import MIN_SECONDS
from vllm_cluster.wire.reading import RefusedDocument, convert
from vllm_cluster.wire.values import Count, Long, Number, Positive, at_most, brief, words

# A host has 16, or seven parts of each; each is in every view, and on the page of the dashboard.
MAX_GPUS = 128
# Of all hosts together: eight with 60,000 characters in each text had a dashboard take 137 MB.
GpuName = Annotated[str, words, brief(100)]
Why = Annotated[str, words, brief(300)]


@dataclass(frozen=True)
class GpuLoad:
    """One GPU now; None is what its driver does not report, `error` why it cannot be asked."""

    index: Count
    name: GpuName
    error: Why
    use_percent: Positive | None
    memory_used_bytes: Positive | None
    memory_total_bytes: Positive | None
    power_watts: Positive | None
    power_limit_watts: Positive | None
    temperature_celsius: Number | None


@dataclass(frozen=True)
class NodeSample:
    """One sample of a node: `time` is its host's clock, `boot` the seconds since that host started.

    `processors` are ticks busy and in all, `memory` bytes used and in all, `network` bytes received and sent since the
    host started; `status` is the text of its status.json, `metrics` lines of vLLM's /metrics.
    """

    v: Literal[1]
    time: Number
    boot: Positive
    processors: tuple[Positive, Positive] | None
    cores: Count
    memory: tuple[Positive, Positive] | None
    network: tuple[Positive, Positive] | None
    ranks: Count
    gpus: Annotated[tuple[GpuLoad, ...], at_most(MAX_GPUS)]
    gpu_error: Why
    status: Long
    metrics: Long
    metrics_error: Why


@dataclass(frozen=True)
class HostLoad:
    """How busy a host is: its processors, memory, network and GPUs, and the ranks of the model that run there."""

    cpu_percent: float | None
    cores: int
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    ranks: int
    gpus: tuple[GpuLoad, ...]
    error: str = ""
    received_bytes_per_second: float | None = None
    sent_bytes_per_second: float | None = None


class UnreadableSample(ValueError):
    """A sample that is not one."""


def parse_sample(row: Mapping[str, object]) -> NodeSample:
    """Read a sample as a node prints it.

    Raises:
        UnreadableSample: it is not one.
    """
    try:
        return convert(NodeSample, row, "its sample")
    except RefusedDocument as refused:
        raise UnreadableSample(f"{refused.field} {refused.why}") from None


def host_load(before: NodeSample | None, now: NodeSample, *, gpus: bool) -> HostLoad:
    """How busy a host is between two samples; `gpus` is whether it should have any."""
    used, total = now.memory or (None, None)
    return HostLoad(
        _busy(before, now),
        now.cores,
        None if used is None else int(used),
        None if total is None else int(total),
        now.ranks,
        now.gpus,
        f"its GPUs cannot be read: {now.gpu_error}" if gpus and now.gpu_error else "",
        *_rates(before, now),
    )


def _busy(before: NodeSample | None, now: NodeSample) -> float | None:
    """The share of all processors that was busy, in percent."""
    if before is None or before.processors is None or now.processors is None:
        return None
    busy, total = (later - earlier for earlier, later in zip(before.processors, now.processors, strict=True))
    return min(100.0, max(0.0, 100 * busy / total)) if total > 0 else None


def _rates(before: NodeSample | None, now: NodeSample) -> tuple[float | None, float | None]:
    """The bytes a second that came and went between two samples."""
    if before is None or before.network is None or now.network is None or now.boot - before.boot < MIN_SECONDS:
        return None, None
    grown = [later - earlier for earlier, later in zip(before.network, now.network, strict=True)]
    received, sent = (each / (now.boot - before.boot) if each >= 0 else None for each in grown)
    return received, sent
