"""Hosts whose every answer is an attack on the terminal and on the memory of who reads it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.many.cluster import Cluster, Played
from tests.many.driven import Run, drive
from tests.support.figures import record
from vllm_cluster.kernel.transport import Kind

pytestmark = [pytest.mark.alone, pytest.mark.deep]

# gpu000 is the head and well; the others send 100 MB in a log, a file and an error, 20 MB in facts, or a little there,
# or have a container of such a name.
KINDS = ("well", "log", "status", "error", "facts", "answer", "name")
# Of which the interpreter and what it imports take two thirds: 64 MB with Fabric, 44 with OpenSSH.
MEMORY_MB = 100
# What rich and we write ourselves: colours, the cursor's line and whether it shows, and the line cleared.
OURS = re.compile(r"\x1b\[(?:[0-9;]*m|[0-9]*[AGK]|\?25[hl])")
STEERS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


# fault: kernel/facts/docker_objects.py: quoted_labels(printable(text)) → quoted_labels(text)
# fault: kernel/transport/base.py: MAX_OUTPUT = 1 << 20 → MAX_OUTPUT = 8 << 20
@pytest.mark.promise("P23")
@pytest.mark.parametrize(
    ("way", "kind"),
    [
        ("status", "fabric"),
        ("status --json", "openssh"),
        ("status, terminal", "fabric"),
        ("down, terminal", "openssh"),
        ("plan", "fabric"),
        ("check", "openssh"),
        ("check --facts gpu005, terminal", "fabric"),
    ],
)
def test_output_of_hosts_is_only_text_and_bounded(way: str, kind: Kind, key: Path, tmp_path: Path) -> None:
    hosts = [Played(number, said) for number, said in enumerate(KINDS)]
    cluster = Cluster(tmp_path / "laptop", hosts, key, ssh={"transport": kind})
    verb, _, _ = way.partition(",")
    with cluster.played(up=True):
        run = drive(cluster, *verb.split(), terminal="terminal" in way)
    passed = steered(run) == [] and run.rss_mb < MEMORY_MB and "canary" in run.out + run.err
    record("P23", f"100 MB of escapes in log, status, error and facts: {way}, {kind}", run.figure, passed)
    assert steered(run) == []
    assert run.rss_mb < MEMORY_MB
    assert "[blink]canary" in run.out + run.err, (run.out[-500:], run.err[-500:])
    assert "bug" not in run.out + run.err
    if "--json" in way:
        assert [row["host"] for row in json.loads(run.out)["hosts"]] == [host.name for host in hosts]


def steered(run: Run) -> list[str]:
    """What would steer a terminal, and is not written by vcluster."""
    return STEERS.findall(OURS.sub("", run.out + run.err))
