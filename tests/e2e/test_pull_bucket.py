"""A model in an S3 bucket comes to every host, however a part of it ends: real hosts, boto3 here, a server of moto."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from datetime import timedelta

import pytest

from tests.support.buckets import Bucket, bucket
from tests.support.figures import record
from tests.support.hosts import Run, Sandbox
from tests.support.pulled import CONTAINER, FILES, HOSTS, SIZE, folder_contents, has, hash_of
from tests.support.pulls import gateway, weights
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.deep, pytest.mark.cluster("up"), pytest.mark.promise("P44")]

SHARD = "model-00002-of-00002.safetensors"
SOURCE, FOLDER = "s3://lab/mine", "/models/mine"


@pytest.fixture
def lab(sandbox: Sandbox) -> Iterator[Bucket]:
    """A bucket that only the head and this machine reach."""
    remove(sandbox)
    with bucket(gateway(sandbox), FILES) as made:
        rule = ("OUTPUT", "-p", "tcp", "--dport", made.url.rpartition(":")[2], "-j", "REJECT")
        sandbox.on("gpu2", "iptables", "-I", *rule, root=True)
        try:
            yield made
        finally:
            sandbox.on("gpu2", "iptables", "-D", *rule, root=True)
            sandbox.vcluster("pull", "--cancel").ok()
            remove(sandbox)


def remove(sandbox: Sandbox) -> None:
    """Remove the folder from the hosts."""
    for host in HOSTS:
        sandbox.on(host, "rm", "-rf", FOLDER, root=True)


def operator(sandbox: Sandbox, lab: Bucket) -> Sandbox:
    """A laptop that may use the bucket."""
    made = sandbox.by(sandbox.inventory)
    made.environment.update(lab.environment)
    return made


def pull(sandbox: Sandbox, lab: Bucket, *more: str) -> Run:
    """Run the verb."""
    return operator(sandbox, lab).vcluster("pull", SOURCE, *more)


def start(sandbox: Sandbox, lab: Bucket, *more: str) -> subprocess.Popen[str]:
    """Start the verb."""
    return operator(sandbox, lab).start("pull", SOURCE, *more)


def same(sandbox: Sandbox, files: dict[str, bytes]) -> bool:
    """Whether both hosts have these files and nothing of the pull is left."""
    right = {name: hash_of(content) for name, content in files.items()}
    for host in HOSTS:
        assert folder_contents(sandbox, host, FOLDER) == right
        assert sandbox.docker(host, "ps", "-aq", "--filter", f"name={CONTAINER}") == ""
        assert sandbox.on(host, "find", FOLDER, "-name", "*vcluster-partial", root=True) == ""
    return True


def test_what_cannot_be_had_is_reported_and_nothing_is_touched(sandbox: Sandbox, lab: Bucket) -> None:
    cut_off = pull(sandbox, lab, "--via", "gpu2")
    assert cut_off.code == 4 and f"gpu2: pull: cannot reach {lab.url}" in cut_off.err
    lab.refused = True
    refused = pull(sandbox, lab)
    assert refused.code == 3 and f"gpu1: pull: {lab.url} answers 403 AccessDenied" in refused.err
    nothing = operator(sandbox, lab).vcluster("pull", "s3://lab/nothing")
    assert nothing.code == 3 and "has no objects" in nothing.err
    for host in HOSTS:
        sandbox.on(host, "test", "!", "-e", FOLDER, root=True)


def test_one_host_downloads_all_get_it_meanwhile_and_ctrl_c_and_kills_lose_nothing(
    sandbox: Sandbox, lab: Bucket
) -> None:
    lab.rate = 1.5e6
    process = start(sandbox, lab)
    until(lambda: has(sandbox, "gpu2", 1 << 20))
    # From here on hardly a byte comes: it must not end before it is killed.
    lab.rate = 5e4
    key = lab.environment["AWS_SECRET_ACCESS_KEY"]
    for host, holds in zip(HOSTS, ("vcluster-token", ""), strict=True):
        there = sandbox.docker(host, "exec", CONTAINER, "sh", "-c", "grep -rl X-Amz-Signature /tmp || true").split()
        assert there == ([f"/tmp/{holds}"] if holds else [])
        seen = sandbox.docker(host, "inspect", CONTAINER) + sandbox.on(host, "ps", "auxww", root=True)
        assert "X-Amz" not in seen and key not in seen
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "continues on the hosts" in err
    for host in HOSTS:
        sandbox.on(host, "pkill", "-9", "-f", "/opt/vcluster-pull/main.py", root=True)
    lab.rate = 0.0
    pull(sandbox, lab).ok()
    again = pull(sandbox, lab).ok()
    assert "Nothing was changed" in again.err
    sandbox.vcluster("pull", "./mine", "--verify").ok()
    held = same(sandbox, FILES) and lab.sent < SIZE + (16 << 20)
    more = f"{(lab.sent - SIZE) / 1e6:.1f} MB downloaded again"
    record("P44", "a bucket; Ctrl-C, and both parts killed", f"the same everywhere, {more}", held)
    assert held


def test_an_object_that_changes_or_an_address_that_expires_is_reported_and_the_rerun_completes(
    sandbox: Sandbox, lab: Bucket
) -> None:
    lab.rate = 1.5e6
    process = start(sandbox, lab)
    until(lambda: has(sandbox, "gpu2", 1 << 20))
    # Each answer that has begun is cut, and what follows is refused.
    lab.older = timedelta(days=8)
    lab.cut = 1
    _, err = process.communicate(timeout=200)
    assert process.returncode == 1 and "the credentials of this pull have expired: run the same command again" in err
    lab.older, lab.cut, lab.rate = timedelta(), 0, 0.0
    pull(sandbox, lab).ok()
    assert same(sandbox, FILES) and lab.sent < SIZE + (16 << 20)
    # It was trained again: one object has another content of the same size.
    before, fresh = lab.sent, {**FILES, SHARD: weights(len(FILES[SHARD]), 9)}
    lab.put({SHARD: fresh[SHARD]})
    pull(sandbox, lab).ok()
    # One byte is asked for before the download.
    held = same(sandbox, fresh) and lab.sent == before + len(FILES[SHARD]) + 1
    record(
        "P44", "a bucket; an address expires, an object is replaced", "named; the rerun brings what is missing", held
    )
    assert held
