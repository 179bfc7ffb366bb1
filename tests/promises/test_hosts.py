"""P2, P7, P9, P20, P26: hosts that are as they should be, too full, an hour off, or differ in their image."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from tests.support.attack import attack
from tests.support.breaks import (
    FAST,
    HOSTS,
    IMAGE,
    broken,
    everything,
    root,
    settle,
    small_disk,
    something_to_do,
    with_nodes,
)
from tests.support.controller import judge, race
from tests.support.hosts import Sandbox
from vcluster_sandbox import names
from vllm_cluster.kernel.checks.host import CLOCK_TOLERANCE

pytestmark = [pytest.mark.e2e, pytest.mark.promise, pytest.mark.deep]

Stand = dict[str, set[str]]


@pytest.mark.cluster("up", leaves="empty")
def test_a_neighbour_with_our_names(sandbox: Sandbox, empty: Stand) -> None:
    """What others call `vcluster-…` is theirs: only the label shows what is the cluster's."""
    made = ["vcluster-sandbox2", "my-vcluster-sandbox", "vcluster-sandbox-probe.old"]
    make = "; ".join(f"docker create --name {name} --label io.vcluster.cluster=sandbox2 {IMAGE}" for name in made)
    undo = f"docker rm -f -v {' '.join(made)}; docker volume rm vcluster-sandbox2-state"
    with (
        broken(sandbox, "gpu2", f"{make}; docker volume create vcluster-sandbox2-state", undo),
        attack("P20", "containers and volumes of others with names like those of vcluster") as measured,
    ):
        sandbox.vcluster("down", "--yes").ok()
        left = everything(sandbox)["gpu2"] - empty["gpu2"]
        assert left == {f"container {name}" for name in made} | {"volume vcluster-sandbox2-state"}
        measured.figure = "down left all 4 of them and removed all of its own"


# Docker is killed while it makes labelled volumes, and started again; prints those that came out without their label.
# Eight at a time wait for the one file in which it keeps labels, so that some have a folder and nothing else.
KILLED_WHILE_IT_MAKES_VOLUMES = """
for i in $(seq 8); do
  (n=0; while docker volume create --label made probe-$i-$n >/dev/null 2>&1; do n=$((n+1)); done) &
done
until [ $(ls {data}/docker/volumes | grep -c probe-) -gt 20 ]; do :; done
kill -9 $(cat /run/docker.pid)
wait
engine start {data} >/dev/null 2>&1
until docker version >/dev/null 2>&1; do :; done
docker volume inspect --format '{{{{if not .Labels}}}}{{{{.Driver}}}} {{{{.Labels}}}} {{{{.Options}}}}{{{{end}}}}' \
  $(docker volume ls -q --filter name=probe-) | sed '/^$/d'
docker volume rm $(docker volume ls -q --filter name=probe-) >/dev/null
"""
MOST_KILLS = 25


@pytest.mark.cluster("empty")
def test_volumes_that_docker_had_no_time_to_label(sandbox: Sandbox, empty: Stand) -> None:
    """What an engine leaves that dies while a volume is made; one with something in it is a person's."""
    blank = "docker volume create vcluster-sandbox-state; docker volume create vcluster-sandbox-secrets-0123456789ab"
    data = names.Sandbox(sandbox.folder).data("gpu2")
    theirs = f"{data}/docker/volumes/vcluster-sandbox-state/_data/theirs"
    with attack("P6", "our volumes that Docker had not labelled yet when it died") as measured:
        left, kills = list[str](), 0
        while not left and kills < MOST_KILLS:
            left = root(sandbox, "gpu2", KILLED_WHILE_IT_MAKES_VOLUMES.format(data=data)).splitlines()
            kills += 1
        assert left, f"Docker was killed {MOST_KILLS} times, and all its volumes have their labels"
        look = "docker volume inspect --format '{{.Driver}} {{.Labels}} {{.Options}}' by-hand"
        by_hand = root(sandbox, "gpu2", f"docker volume create by-hand; {look}; docker volume rm by-hand")
        assert {*left, "by-hand"} == set(by_hand.splitlines())
        root(sandbox, "gpu2", blank)
        sandbox.vcluster("up", "--yes").ok()
        settle(sandbox, with_nodes(empty), 10)
        sandbox.vcluster("down", "--yes").ok()
        root(sandbox, "gpu2", blank)
        sandbox.vcluster("down", "--yes").ok()
        settle(sandbox, empty, 10)
        with broken(
            sandbox,
            "gpu2",
            f"docker volume create vcluster-sandbox-state; echo precious >{theirs}",
            "docker volume rm vcluster-sandbox-state",
        ):
            refused = sandbox.vcluster("up")
            assert refused.code == 1
            assert (
                "gpu2: create: volume vcluster-sandbox-state exists but does not belong to this cluster" in refused.err
            )
            sandbox.vcluster("down", "--yes").ok()
            assert root(sandbox, "gpu2", f"cat {theirs}") == "precious\n"
        settle(sandbox, empty, 10)
        measured.figure = (
            f"seen after {kills} kill{'s' * (kills > 1)} of Docker; up converges and down leaves none; "
            "a volume with a file in it is refused and stays"
        )


@pytest.mark.cluster("empty")
def test_too_little_room_for_an_image(sandbox: Sandbox, empty: Stand) -> None:
    other = sandbox.rewrite(Path("pull.yaml"), replace=[("vllm-cpu:0.32.0", "vllm-cpu:9.9.9")])
    with small_disk(sandbox, "", "3g"), attack("P7", "3 GB of room on one host, and an image to be pulled") as measured:
        refused = sandbox.vcluster("up", inventory=other)
        assert refused.code == 3, refused.err
        assert re.search(r"gpu2: .*3\.\d GB", refused.err), refused.err
        assert "gpu1: " not in refused.err.replace("gpu1: warning", "")
        measured.figure = (
            f"preflight names the host and its room after {measured.seconds:.1f} s, exit 3; nothing pulled"
        )
    settle(sandbox, empty, 1)


@pytest.mark.cluster("empty")
@pytest.mark.parametrize("folder", ["/containers", "/volumes"])
def test_the_disk_is_full_in_the_middle(sandbox: Sandbox, empty: Stand, folder: str) -> None:
    filler = f"{names.Sandbox(sandbox.folder).data('gpu2')}/docker{folder}/filler"
    with (
        small_disk(sandbox, folder, "64m"),
        attack("P7", f"no space left in Docker's {folder[1:]} while a node is made") as measured,
    ):
        with broken(sandbox, "gpu2", f"dd if=/dev/zero of={filler} 2>/dev/null || true", f"rm {filler}"):
            failed = sandbox.vcluster("up")
            assert failed.code == 1, failed.err
            assert re.search("gpu2: .*no space left on device", failed.err), failed.err
        began = time.monotonic()
        sandbox.vcluster("up", "--yes").ok()
        took = time.monotonic() - began
        settle(sandbox, with_nodes(empty), 10)
        sandbox.vcluster("down", "--yes").ok()
        settle(sandbox, empty, 10)
        measured.figure = f"named with its host, exit 1; after freeing, up converged in {took:.1f} s"


@pytest.mark.cluster("up")
def test_a_clock_an_hour_off(sandbox: Sandbox) -> None:
    with (
        broken(sandbox, "gpu1", FAST, "rm /usr/local/bin/date"),
        attack("P9", "the head's clock is an hour ahead") as measured,
    ):
        said = sandbox.vcluster("up", "--json").ok()
        warned = [event for event in said.events() if event.get("code") == "clock-skew"]
        assert [event["event"] for event in warned] == ["warning"], warned
        ahead = re.search(r"its clock is \+(\d+) s from", warned[0]["message"])
        # An answer that took a second longer to come than another's shifts what is measured by that second.
        assert ahead and abs(int(ahead[1]) - 3600) <= CLOCK_TOLERANCE, warned
        with something_to_do(sandbox, 1.5):
            judge(race(sandbox))
        text = warned[0]["message"].partition(";")[0]
        measured.figure = f"warned ({text}), up continues; of two up one got the lease"


@pytest.mark.cluster("empty")
def test_one_name_for_two_images(sandbox: Sandbox, empty: Stand) -> None:
    tag = "sandbox/other:1"
    sandbox.docker("gpu1", "tag", IMAGE, tag)
    root(sandbox, "gpu2", f"tar -c -C /etc hostname | docker import - {tag}")
    inventory = sandbox.rewrite(Path("other-image.yaml"), replace=[(IMAGE, tag)])
    try:
        with attack("P26", "one tag that means another image on one host") as measured:
            done = sandbox.vcluster("up", "--yes", inventory=inventory).ok()
            assert re.search(rf"gpu2: warning: {tag} is sha256:\w+ here and sha256:\w+ on gpu1", done.err), done.err
            label = '{{index .Config.Labels "io.vcluster.base-image"}}'
            bases = {sandbox.docker(host, "inspect", "vcluster-sandbox", "--format", label) for host in HOSTS}
            assert len(bases) == 1
            sandbox.vcluster("down", "--yes", inventory=inventory).ok()
            settle(sandbox, empty, 1)
            measured.figure = "the odd host is reported, and runs the head's image; its name is left"
    finally:
        for host in HOSTS:
            sandbox.docker(host, "rmi", tag)
