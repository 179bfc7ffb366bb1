"""What several hosts share is one finding."""

from __future__ import annotations

from vllm_cluster.kernel.checks.finding import Finding, merged


def test_a_fix_on_each_host_is_printed_once() -> None:
    text = "Docker 26.1.5 does not restart containers with CDI devices"
    found = [Finding("cdi-restart", name, text, f"on {name}: upgrade Docker") for name in ("gpu1", "gpu2")]
    assert merged(found) == [Finding("cdi-restart", "gpu1, gpu2", text, "on gpu1, gpu2: upgrade Docker")]


def test_what_differs_stays_apart() -> None:
    found = [Finding("disk-full", name, "3 GiB free", f"ssh {name} docker image prune") for name in ("gpu1", "gpu2")]
    assert merged(found) == found
