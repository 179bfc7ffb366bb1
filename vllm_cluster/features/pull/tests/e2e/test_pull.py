"""A model reaches every host, also with faults meanwhile: real hosts, the image's huggingface_hub, a hub here."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.figures import record
from tests.support.hosts import Run, Sandbox
from tests.support.models.repositories import PullHub, blob
from tests.support.pulled import (
    CONTAINER,
    FILES,
    HOSTS,
    MODEL,
    ROOT,
    SIZE,
    contents,
    expected,
    folder_contents,
    has,
    hash_of,
    tiny_model,
    write_files,
)
from tests.support.pulls import forget, hub_for, repository, weights
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.cluster("up"), pytest.mark.promise("P44")]

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture
def hub(sandbox: Sandbox) -> Iterator[PullHub]:
    forget(sandbox, MODEL)
    with hub_for(sandbox, {MODEL: repository(FILES)}) as made:
        yield made
    sandbox.vcluster("pull", "--cancel").ok()
    forget(sandbox, MODEL)


def pull(sandbox: Sandbox, hub: PullHub, *more: str) -> Run:
    """Run the verb."""
    return sandbox.vcluster("pull", MODEL, *more, HF_ENDPOINT=hub.url)


def test_a_model_is_downloaded_once_and_then_left_alone(sandbox: Sandbox, hub: PullHub) -> None:
    events = sandbox.vcluster("pull", MODEL, "--json", HF_ENDPOINT=hub.url).ok().events()
    assert expected(sandbox, hub) and hub.sent == SIZE
    assert events[-1]["message"].startswith(f"Pulled {MODEL} to gpu1, gpu2")
    again = pull(sandbox, hub).ok()
    assert "Nothing was changed" in again.err and hub.sent == SIZE
    # The inventory's token went to the hub, from the host that downloads, and stays nowhere.
    assert {token for _, path, token in hub.asked if "/resolve/" in path} == {"Bearer hf_canary0123456789canary"}


@pytest.mark.deep
def test_what_cannot_be_had_is_reported_and_nothing_is_touched(sandbox: Sandbox, hub: PullHub) -> None:
    hub.repositories[MODEL].gated = True
    gated = pull(sandbox, hub)
    assert gated.code == 3 and f"{MODEL} is gated" in gated.err and f"open {hub.url}/{MODEL}" in gated.err
    port = hub.url.rpartition(":")[2]
    rule = ("OUTPUT", "-p", "tcp", "--dport", port, "-j", "REJECT")
    hub.repositories[MODEL].gated = False
    sandbox.on("gpu1", "iptables", "-I", *rule, root=True)
    try:
        cut_off = pull(sandbox, hub)
        assert cut_off.code == 4 and "--via HOST" in cut_off.err
        pull(sandbox, hub, "--via", "gpu2").ok()
    finally:
        sandbox.on("gpu1", "iptables", "-D", *rule, root=True)
    held = expected(sandbox, hub) and hub.sent == SIZE
    record("P44", "no internet but on one host", "exit 4 without --via, all hosts whole with it", held)
    assert held


@pytest.mark.deep
def test_what_is_damaged_is_reported_and_only_that_is_repaired(sandbox: Sandbox, hub: PullHub) -> None:
    pull(sandbox, hub).ok()
    place = f"{ROOT}/blobs/{blob(FILES[FIRST])}"
    sandbox.on("gpu2", "sh", "-c", f"printf x | dd of={place} bs=1 seek=5000000 conv=notrunc", root=True)
    sent = hub.sent
    found = pull(sandbox, hub, "--verify").ok()
    assert f"gpu2: warning: {FIRST}: content differs" in found.err and hub.sent == sent
    assert expected(sandbox, hub)
    sandbox.on("gpu1", "sh", "-c", f"rm {ROOT}/blobs/{blob(FILES[SECOND])}", root=True)
    sandbox.on("gpu2", "sh", "-c", f"printf x | dd of={place} bs=1 seek=7000000 conv=notrunc", root=True)
    both = pull(sandbox, hub, "--verify").ok()
    assert f"gpu1: warning: {SECOND}: missing" in both.err and f"gpu2: warning: {FIRST}: content differs" in both.err
    # The source, gpu1, gets its own from the hub: no host has all of it.
    held = expected(sandbox, hub) and hub.sent == sent + len(FILES[SECOND])
    figure = "each named by host and file, and only it brought again"
    record("P44", "a shard deleted, a byte flipped", figure, held)
    assert held


@pytest.mark.deep
@pytest.mark.parametrize("host", ["gpu1", "gpu2"])
def test_a_part_that_is_killed_continues(sandbox: Sandbox, hub: PullHub, host: str) -> None:
    hub.rate = 3e6
    running = sandbox.by(sandbox.inventory)
    running.environment["HF_ENDPOINT"] = hub.url
    process = running.start("pull", MODEL)
    until(lambda: has(sandbox, host, SIZE // 3))
    sandbox.on(host, "pkill", "-9", "-f", "/opt/vcluster-pull/main.py", root=True)
    _, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    held = expected(sandbox, hub) and hub.sent < SIZE + (8 << 20)
    record("P44", f"kill -9 of the part on {host}", f"{(hub.sent - SIZE) / 1e6:.1f} MB downloaded again", held)
    assert held


@pytest.mark.deep
def test_ctrl_c_leaves_it_running_and_another_person_looks_on(sandbox: Sandbox, hub: PullHub) -> None:
    hub.rate = 1.5e6
    first = sandbox.by(sandbox.inventory)
    first.environment["HF_ENDPOINT"] = hub.url
    process = first.start("pull", MODEL)
    until(lambda: has(sandbox, "gpu2", 1 << 20))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "continues on the hosts" in err
    detached = pull(sandbox, hub, "--detach").ok()
    assert "is already being pulled" in detached.err
    other = sandbox.vcluster("pull", "lab/other", HF_ENDPOINT=hub.url)
    assert other.code == 75 and f"{MODEL} is being pulled" in other.err
    two = [first.start("pull", MODEL) for _ in range(2)]
    for one in two:
        _, err = one.communicate(timeout=200)
        assert one.returncode == 0, err
    held = expected(sandbox, hub) and hub.sent == SIZE
    record("P44", "Ctrl-C, then two people at once", "it continues, both see its end, downloaded once", held)
    assert held


@pytest.mark.deep
def test_a_folder_of_this_machine_and_one_of_a_host_are_spread_and_served(sandbox: Sandbox, tmp_path: Path) -> None:
    folder, files = tmp_path / "mine", {**tiny_model(sandbox), "model.extra": weights(24 << 20)}
    write_files(folder, files)
    right = {name: hash_of(content) for name, content in files.items()}
    try:
        # The laptop is killed in the middle: what arrived is not sent again, and the others had it while it arrived.
        process = sandbox.by(sandbox.inventory).start("pull", str(folder))
        until(lambda: has(sandbox, "gpu1", 1 << 20))
        process.kill()
        process.communicate(timeout=60)
        sandbox.vcluster("pull", str(folder)).ok()
        assert all(folder_contents(sandbox, host, "/models/mine") == right for host in HOSTS)
        sandbox.on("gpu2", "sh", "-c", "mkdir -p /data && cp -r /models/mine /data/theirs", root=True)
        sandbox.vcluster("pull", "gpu2:/data/theirs").ok()
        assert all(folder_contents(sandbox, host, "/models/theirs") == right for host in HOSTS)
        served = sandbox.vcluster("serve", "./mine", "--yes", "--", "--dtype", "float32").ok()
        answer = sandbox.vcluster("complete", "Hello", "--max-tokens", "4").ok()
        held = "/models/mine is as it was pulled on every host: serving offline" in served.err and bool(
            answer.out.strip()
        )
        record(
            "P44", "a folder of the laptop, killed once; a folder of a host", "the same everywhere, and served", held
        )
        assert held
    finally:
        sandbox.vcluster("stop", "--yes").ok()
        for host in HOSTS:
            sandbox.on(host, "rm", "-rf", "/models/mine", "/models/theirs", "/data/theirs", root=True)


@pytest.mark.deep
def test_a_model_that_serve_pulls_is_served_with_the_hub_gone(sandbox: Sandbox) -> None:
    files = tiny_model(sandbox)
    served = "lab/served"
    forget(sandbox, served)
    operator = sandbox.by(sandbox.inventory)
    manifests = "ls /models/hub/models--lab--served/.vcluster/ 2>/dev/null | grep -c '[.]json$' || true"
    try:
        with hub_for(sandbox, {served: repository(files)}) as hub:
            operator.environment["HF_ENDPOINT"] = hub.url
            process = operator.start("serve", served, "--pull", "--", "--dtype", "float32")
            until(lambda: [sandbox.on(host, "sh", "-c", manifests, root=True).strip() for host in HOSTS] == ["1", "1"])
        _, err = process.communicate(timeout=600)
        assert process.returncode == 0, err
        answer = sandbox.vcluster("complete", "Hello", "--max-tokens", "4").ok()
        held = f"{served} is as it was pulled on every host: serving offline" in err and bool(answer.out.strip())
        record("P44", "serve pulls, and the hub is gone before vLLM starts", "it starts offline and answers", held)
        assert held
    finally:
        sandbox.vcluster("stop", "--yes").ok()
        forget(sandbox, served)


@pytest.mark.deep
def test_a_hub_that_is_gone_is_not_needed_for_what_a_host_has(sandbox: Sandbox, hub: PullHub) -> None:
    pull(sandbox, hub).ok()
    nowhere = "http://127.0.0.1:1"
    whole = sandbox.vcluster("pull", MODEL, HF_ENDPOINT=nowhere).ok()
    assert "the files are those of the manifest on gpu1" in whole.err and "Nothing was changed" in whole.err
    forget(sandbox, MODEL, ["gpu1"])
    spread = sandbox.vcluster("pull", MODEL, HF_HUB_OFFLINE="1").ok()
    assert "HF_HUB_OFFLINE is set here" in spread.err and "gpu2: has all, and sends it" in spread.err
    assert sandbox.vcluster("pull", "lab/other", HF_ENDPOINT=nowhere).code == 4
    held = expected(sandbox, hub) and hub.sent == SIZE
    record("P44", "the hub cannot be reached", "hosts that have it suffice; else exit 4", held)
    assert held


@pytest.mark.deep
def test_a_branch_that_moved_brings_what_is_new(sandbox: Sandbox, hub: PullHub) -> None:
    pull(sandbox, hub).ok()
    before = hub.repositories[MODEL].refs["main"]
    hub.repositories[MODEL].commit({**FILES, SECOND: weights(12 << 20, 9)})
    pull(sandbox, hub).ok()
    held = expected(sandbox, hub) and hub.sent == SIZE + (12 << 20)
    for host in ("gpu1", "gpu2"):
        assert contents(sandbox, host, before)[SECOND] == hash_of(FILES[SECOND])
    record("P44", "main moved between two pulls", "only the new shard is brought; the old commit stays whole", held)
    assert held


@pytest.mark.deep
def test_a_full_disk_is_reported_and_the_rerun_continues(sandbox: Sandbox, hub: PullHub) -> None:
    """The disk fills while it runs: a small file system where the blobs go, which the look before cannot see."""
    sandbox.on("gpu2", "sh", "-c", f"mkdir -p {ROOT} && mount -t tmpfs -o size=8m tmpfs {ROOT}", root=True)
    try:
        failed = pull(sandbox, hub)
    finally:
        sandbox.on("gpu2", "umount", ROOT, root=True)
    assert failed.code == 1 and "gpu2: pull: " in failed.err and "No space left on device" in failed.err
    assert sandbox.docker("gpu2", "ps", "-aq", "--filter", f"name={CONTAINER}") == ""
    pull(sandbox, hub).ok()
    held = expected(sandbox, hub) and hub.sent == SIZE
    record("P44", "a disk fills in the middle", "host and reason named; the rerun downloads nothing twice", held)
    assert held


@pytest.mark.deep
def test_a_pull_that_is_left_is_stopped_and_leaves_no_container(sandbox: Sandbox, hub: PullHub) -> None:
    hub.rate = 1e6
    pull(sandbox, hub, "--detach").ok()
    until(lambda: has(sandbox, "gpu1", 1 << 20))
    stopped = sandbox.vcluster("pull", "--cancel").ok()
    assert f"Stopped the pull of {MODEL}" in stopped.err
    hub.rate = 0.0
    pull(sandbox, hub).ok()
    held = expected(sandbox, hub) and hub.sent < SIZE + (8 << 20)
    record("P44", "stopped, then pulled again", f"{(hub.sent - SIZE) / 1e6:.1f} MB downloaded again", held)
    assert held
