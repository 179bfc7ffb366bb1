"""What a node reports of its load: no sample is believed unread, and a start has an end that is known or unknown."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from vllm_cluster.serving.status.load import MAX_GPUS, NodeSample, UnreadableSample, host_load, parse_sample

GPU = {
    **{"index": 0, "name": "NVIDIA H100", "error": "", "use_percent": 97, "memory_used_bytes": 1 << 36},
    **{"memory_total_bytes": 80 << 30, "power_watts": 512.5, "power_limit_watts": 700, "temperature_celsius": 61},
}
ROW: dict[str, Any] = {
    **{"v": 1, "time": 1000.0, "boot": 50.0, "processors": [100, 400], "cores": 4, "memory": [10, 40], "ranks": 1},
    "network": [1000, 2000],
    **{"gpus": [GPU], "gpu_error": "", "status": "", "metrics": "", "metrics_error": ""},
}


def sample(**more: object) -> NodeSample:
    """A sample, and what is other about it."""
    return parse_sample({**ROW, **more})


def test_a_sample_is_read_as_it_is() -> None:
    assert asdict(sample()) == {
        **ROW,
        "processors": (100, 400),
        "memory": (10, 40),
        "network": (1000, 2000),
        "gpus": (GPU,),
    }


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("v", 2),
        ("time", float("nan")),
        ("boot", "soon"),
        ("processors", [1]),
        ("memory", [-1, 10]),
        ("gpus", [{**GPU, "use_percent": float("inf")}]),
        ("gpus", {"index": 0}),
        ("network", [-1, 2]),
        ("ranks", None),
        ("status", 7),
        ("metrics", ["a"]),
    ],
)
def test_an_invalid_sample_is_refused_by_its_key(key: str, value: object) -> None:
    with pytest.raises(UnreadableSample, match=f"^{key}"):
        sample(**{key: value})


# fault: serving/status/load.py: GpuName = Annotated[str, words, brief(100)] → GpuName = str
# fault: serving/status/load.py: Why = Annotated[str, words, brief(300)] → Why = str
def test_the_texts_of_a_sample_are_short() -> None:
    """All hosts have theirs in each view, at four bytes a character where one of them is rare."""
    text = "\N{GRINNING FACE}" + "x" * 60_000
    kept = sample(gpus=[{**GPU, "name": text, "error": text}], gpu_error=text, metrics_error=text)
    texts = (kept.gpus[0].name, kept.gpus[0].error, kept.gpu_error, kept.metrics_error)
    assert [len(one) for one in texts] == [100, 300, 300, 300]


# fault: serving/status/load.py: Annotated[tuple[GpuLoad, ...], at_most(MAX_GPUS)] → tuple[GpuLoad, ...]
def test_a_host_with_thousands_of_gpus_is_refused() -> None:
    """Each is in every view: 15,000 were 5 MB of the dashboard's page every two seconds."""
    assert len(sample(gpus=[GPU] * MAX_GPUS).gpus) == MAX_GPUS
    with pytest.raises(UnreadableSample, match=r"^gpus has more than 128 entries"):
        sample(gpus=[GPU] * (MAX_GPUS + 1))


# fault: serving/status/load.py: if each >= 0 else None →
# fault: serving/status/load.py: now.boot - before.boot < MIN_SECONDS: → now.boot <= before.boot:
def test_what_passes_the_network() -> None:
    before, now = sample(), sample(boot=54.0, network=[5000, 4000])
    load = host_load(before, now, gpus=True)
    assert (load.received_bytes_per_second, load.sent_bytes_per_second) == (1000, 500)
    for earlier, later in ((None, now), (now, before), (before, before), (before, sample(boot=54.0, network=None))):
        assert host_load(earlier, later, gpus=True).sent_bytes_per_second is None
    assert host_load(sample(network=[9000, 0]), now, gpus=True).received_bytes_per_second is None, "it began anew"
    soon = host_load(sample(boot=0.0, network=[0, 0]), sample(boot=5e-324, network=[1e18, 1e18]), gpus=True)
    assert soon.received_bytes_per_second is None, "1e18 bytes in no time are infinite"


def test_how_busy_a_host_is() -> None:
    before, now = sample(), sample(processors=[150, 500], gpu_error="no driver")
    load = host_load(before, now, gpus=True)
    assert (load.cpu_percent, load.memory_used_bytes, load.memory_total_bytes) == (50, 10, 40)
    assert load.error == "its GPUs cannot be read: no driver"
    assert host_load(before, now, gpus=False).error == "", "a CPU has no such driver"
    assert host_load(None, now, gpus=True).cpu_percent is None
    assert host_load(now, before, gpus=True).cpu_percent is None, "the host was started again"
