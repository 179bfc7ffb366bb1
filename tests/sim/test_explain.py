"""What the hosts have written is collected and explained, and packed without a secret."""

from __future__ import annotations

import base64
import json
import re
import stat
import tarfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.sim import lab, life, make
from tests.support.sim.world import World
from vllm_cluster.features.explain import bundle, verb
from vllm_cluster.kernel import assess, debug_log
from vllm_cluster.kernel.errors import CommandFailed, NodesNotJoined, Unreachable, UsageError, VclusterError
from vllm_cluster.kernel.events import Emit
from vllm_cluster.kernel.explain.scan import LogSource
from vllm_cluster.kernel.hosts import reach
from vllm_cluster.kernel.hosts.runtime import Runtime
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.node.handle import NodeHandle, NodeState
from vllm_cluster.kernel.shell_line import Pasted
from vllm_cluster.kernel.terminal.session import Session
from vllm_cluster.serving.cluster.up import began
from vllm_cluster.serving.explain import explain
from vllm_cluster.serving.explain.logs import sources
from vllm_cluster.serving.explain.render import show_explained
from vllm_cluster.wire.status import Phase, ServeFailure

SHM = "RuntimeError: Insufficient space in /dev/shm for shared-memory allocation: 160 MiB required, 0 MiB free.\n"
CANARY = "hf-canary/+ 0123456789 wxyz"
INSIDE = base64.b64encode(b"a" + CANARY.encode() + b"bc").decode()
FORMS = (CANARY, quote(CANARY, safe=""), base64.b64encode(CANARY.encode()).decode().rstrip("="), INSIDE[4:-4])


EXPLAIN = lab.verb(explain.of_cluster)


def packed(path: Path) -> dict[str, str]:
    """The files of a bundle."""
    with tarfile.open(path) as tar:
        streams = {member.name.removeprefix("vcluster-bundle/"): tar.extractfile(member) for member in tar}
        return {name: stream.read().decode() for name, stream in streams.items() if stream}


@pytest.fixture
def up() -> tuple[World, Inventory]:
    """Two hosts with their nodes."""
    world, inventory = make.world((2, 2)), make.inventory(2)
    with lab.inside(world):
        assert lab.run(world, inventory, lab.do_up).error is None
    return world, inventory


def test_a_cluster_that_is_well_and_one_that_is_not_up(up: tuple[World, Inventory]) -> None:
    world, inventory = up
    with lab.inside(world):
        well = lab.run(world, inventory, EXPLAIN).value
        assert (well.verdict.result, well.failures) == ("healthy", {})
        lab.run(world, inventory, lab.do_down)
        assert lab.run(world, inventory, EXPLAIN).value.verdict.logs == 0


def test_the_log_of_one_host_names_the_cause_though_another_is_gone(up: tuple[World, Inventory]) -> None:
    world, inventory = up
    box = world.machines["gpu1"].box("vcluster-lab")
    assert box
    box.log = f"[vllm] (Worker_TP0 pid=7) ERROR 11-21 02:00:00 [x.py:1] {SHM}"
    box.life["nodes"].popitem()  # gpu2's: what a cluster that works shows, it has survived
    world.machines["gpu2"].reachable = False
    with lab.inside(world):
        world.clock.sleep(1)
        found = lab.run(world, inventory, EXPLAIN).value
    assert found.verdict.cause.failure.slug == "shm-small"
    assert found.verdict.cause.places[0].source == "gpu1:docker.log"
    assert isinstance(found.failures["gpu2"], Unreachable)


# fault: serving/explain/explain.py: if not isinstance(error, SILENT)} → if False}
def test_a_docker_that_does_not_run_is_the_cause_though_the_head_has_only_lost_a_rank(
    up: tuple[World, Inventory],
) -> None:
    world, inventory = up
    box = world.machines["gpu1"].box("vcluster-lab")
    assert box
    box.log = "[vllm] (EngineCore pid=7) ERROR 11-21 02:00:00 [x.py:1] RayWorkerProc rank=[1] died unexpectedly.\n"
    box.life["nodes"].popitem()  # gpu2's
    world.machines["gpu2"].docker = "stopped"
    with lab.inside(world):
        world.clock.sleep(1)
        found = lab.run(world, inventory, EXPLAIN).value
    assert (found.verdict.result, found.verdict.cause.failure.slug) == ("explained", "docker-stopped")
    assert found.verdict.cause.places[0].host == "gpu2"


def test_up_reports_the_cause_when_a_node_ends(up: tuple[World, Inventory]) -> None:
    world, inventory = up
    box = world.machines["gpu2"].box("vcluster-lab")
    assert box

    def ended(current: Inventory, emit: Emit, runtime: Runtime) -> Any:
        box.state, box.exit_code, box.log = "exited", 127, "[node] worker: ray start\nsh: 1: ray: not found\n"
        # Of another day: it is not a cause of what happens now, though it is certain and has a time.
        world.machines["gpu2"].volumes["vcluster-lab-state"].files["serve.log"] = (
            f"INFO 01-01 00:00:00 [x] {SHM}".encode()
        )
        box.started = world.host_time(world.machines["gpu2"])
        with reach.connect_all(current, emit, runtime=runtime) as fleet:
            since = began(assess.assess(current, fleet, emit).facts)
            box.started += 1
            raise explain.add_cause(NodesNotJoined("gpu2", "Ray does not count its GPUs"), fleet, current, since=since)

    with lab.inside(world):
        error = lab.run(world, inventory, ended).error
    assert isinstance(error, NodesNotJoined)
    cause = "cause (ray-missing): the image has no Ray: vLLM's own have had none since 0.18"
    assert error.message.splitlines()[1] == cause
    assert error.hint is not None
    assert error.hint.startswith("vcluster up adds a pinned Ray")


ENDS = "[2026-11-21 02:00:00,000 W 7 7] (gcs_server) Reporting worker exit, connection error code 2. End of file.\n"


# fault: serving/explain/explain.py: , since=since →
@pytest.mark.promise("P41")
@pytest.mark.parametrize("log", ["sh: 1: ray: not found\n", ENDS, "Frob: error\n"])
def test_lines_from_before_the_attempt_are_not_evidence(up: tuple[World, Inventory], log: str) -> None:
    """Ray writes the second line whenever vLLM is stopped or replaced in the ordinary way."""
    world, inventory = up
    box = world.machines["gpu2"].box("vcluster-lab")
    assert box

    def fails(current: Inventory, emit: Emit, runtime: Runtime) -> Any:
        box.log = log
        with reach.connect_all(current, emit, runtime=runtime) as fleet:
            runtime.clock.sleep(420)
            since = began(assess.assess(current, fleet, emit).facts)
            raise explain.add_cause(NodesNotJoined("gpu1", "Ray does not count its GPUs"), fleet, current, since=since)

    with lab.inside(world):
        error = lab.run(world, inventory, fails).error
    assert isinstance(error, NodesNotJoined)
    assert error.message == "gpu1: Ray does not count its GPUs"
    assert error.hint == "vcluster explain --bundle report.tar.gz"


def test_a_cause_in_the_error_itself_gets_no_second_one(up: tuple[World, Inventory]) -> None:
    world, inventory = up
    box = world.machines["gpu2"].box("vcluster-lab")
    assert box

    def fails(error: VclusterError) -> Any:
        def run(current: Inventory, emit: Emit, runtime: Runtime) -> Any:
            box.log = SHM
            with reach.connect_all(current, emit, runtime=runtime) as fleet:
                since = began(assess.assess(current, fleet, emit).facts)
                box.started = since["gpu2"] + 1
                raise explain.add_cause(error, fleet, current, since=since)

        return run

    with lab.inside(world):
        own = CommandFailed("gpu2", "the pull failed: no such manifest", exit_code=1, stderr="")
        plain: Any = lab.run(world, inventory, fails(own)).error
        named = CommandFailed("gpu2", "docker: Error response: exec format error", exit_code=1, stderr="")
        error: Any = lab.run(world, inventory, fails(named)).error
    assert plain.message == "gpu2: the pull failed: no such manifest"
    assert "cause (wrong-processor)" in error.message
    assert "shm-small" not in error.message


def test_no_secret_is_in_a_bundle(up: tuple[World, Inventory], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, _ = up
    monkeypatch.setenv("CANARY", CANARY)
    inventory = make.inventory(2, hf_token="env:CANARY", environment={"AWS_SECRET_ACCESS_KEY": CANARY})
    path = tmp_path / "report.tar.gz"
    secrets = [CANARY]
    with lab.inside(world):
        assert lab.run(world, inventory, lab.do_up).error is None
        for machine in world.machines.values():
            box = machine.box("vcluster-lab")
            assert box
            secrets += [content.decode() for volume in machine.volumes.values() for content in secret_files(volume)]
            box.log = f"at 10.0.0.1 on gpu1: {' | '.join(FORMS[:3])} {INSIDE} {' '.join(secrets)}\n{SHM}"
        files, failures = lab.run(world, inventory, lab.verb(bundle.bundle, path)).value
    assert len(secrets) >= 4
    assert failures == {}
    found = packed(path)
    assert {*files} == {*found}
    whole = json.dumps(found)
    for secret in (*FORMS, *secrets):
        assert secret not in whole
    assert "Insufficient space in /dev/shm" in found["gpu1/logs/docker.log"]
    assert json.loads(found["explain.json"])["failure"] == "shm-small"
    environment = json.loads(found["gpu1/inspect.json"])["Config"]["Env"]
    assert {entry.split("=", 1)[1] for entry in environment} == {"[redacted]"}
    assert json.loads(found["inventory.json"])["environment"] == {"AWS_SECRET_ACCESS_KEY": "[redacted]"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def secret_files(volume: Any) -> list[bytes]:
    """What a volume of secrets holds."""
    return [content for name, content in volume.files.items() if any(k in name for k in ("token-", "key-"))]


def test_a_host_that_is_gone_is_reported_and_stops_nothing(up: tuple[World, Inventory], tmp_path: Path) -> None:
    world, inventory = up
    world.machines["gpu2"].reachable = False
    path = tmp_path / "report.tar.gz"

    do_bundle = lab.verb(bundle.bundle, path)

    with lab.inside(world):
        run = lab.run(world, inventory, do_bundle)
        assert [*run.value[1]] == ["gpu2"]
        found = packed(path)
        assert [*json.loads(found["unreachable.json"])] == ["gpu2"]
        assert "gpu1/inspect.json" in found
        again = lab.run(world, inventory, do_bundle).error
    assert isinstance(again, UsageError)


@pytest.mark.promise("P13")
def test_the_debug_log_has_every_call_and_no_secret(tmp_path: Path) -> None:
    world, inventory = make.world((2, 2)), make.inventory(2)
    path = debug_log.to_file(tmp_path, "up", "key")
    assert path
    with lab.inside(world):
        assert lab.run(world, inventory, lab.do_up).error is None
    debug_log.close()
    lines = path.read_text().splitlines()
    created = [line for line in lines if "POST" in line and "/containers/create?name=vcluster-lab " in line]
    assert [line.split()[2] for line in created] == ["gpu1", "gpu2"]
    assert all(" -> " in line for line in lines)
    kept = {
        name: file for host in world.machines.values() for v in host.volumes.values() for name, file in v.files.items()
    }
    secrets = [file.decode().strip() for name, file in kept.items() if name.startswith(("api-key-", "ray-token-"))]
    assert len(secrets) >= 2
    assert not [line for line in lines for secret in secrets if secret in line]


# fault: kernel/explain/failures.toml: needle = "the head has lost" → needle = "the head lost"
# fault: serving/explain/explain.py: (*read_of, *ended) → read_of
# fault: serving/explain/explain.py: ended = [] if works else → ended = [] if not works else
# fault: serving/explain/explain.py: if one.phase == "stopping": → if False:
# fault: serving/explain/explain.py: if last and (one.ready_at is None or last.time >= one.ready_at) else → if last else
@pytest.mark.parametrize(
    ("what", "slug"),
    [
        ("engine 1 has made no step for 26 s, and a request for one token got no answer in 18 s", "engine-hung"),
        ("no token for 120 s, though /health returns 200", "engine-hung"),
        ("process 468 (Worker_TP1), 9 of vLLM has been stopped by a signal for 10 s on gpu2", "process-stopped"),
        ("the head has lost gpu2 (10.0.0.2)", "node-lost"),
    ],
)
def test_a_hang_that_the_node_program_ended_is_a_symptom(
    up: tuple[World, Inventory], monkeypatch: pytest.MonkeyPatch, what: str, slug: str
) -> None:
    """It is in no log of vLLM; where the model answers again, it is in the restarts."""
    world, inventory = up
    read = NodeHandle.state
    phase: Phase = "backoff"
    older = "vLLM ended with exit code 1 on gpu2: A worker died or was killed while executing a task"

    def hung(node: NodeHandle) -> NodeState:
        state = read(node)
        if not (state.status and state.status.serve):
            return state
        serve = state.status.serve
        ready = serve.since
        failure = ServeFailure(ready + 1, what, ()) if phase == "backoff" else ServeFailure(ready - 1, older, ())
        detail = what if phase == "stopping" else ""
        serve = replace(serve, phase=phase, failure=failure, detail=detail, ready_at=ready)
        return replace(state, status=replace(state.status, serve=serve))

    with lab.inside(world):
        assert lab.run(world, inventory, lab.do_serve).error is None
        monkeypatch.setattr(NodeHandle, "state", hung)
        found = lab.run(world, inventory, EXPLAIN).value.verdict
        phase = "stopping"
        ends = lab.run(world, inventory, EXPLAIN).value.verdict
        phase = "ready"
        again = lab.run(world, inventory, EXPLAIN).value.verdict
        phase = "hung"
        hangs = lab.run(world, inventory, EXPLAIN).value.verdict
    assert (found.result, found.symptom.failure.slug) == ("symptom", slug)
    assert found.symptom.places[0].source == "gpu1:status of org/model"
    if slug == "node-lost":
        assert "vcluster exec gpu2 --ssh -- docker ps -a" in found.symptom.failure.fix
    # While it ends, the failure that is written down is an older one.
    assert (ends.result, ends.symptom.failure.slug) == ("symptom", slug)
    assert (again.result, again.symptom) == ("healthy", None)
    # What it has survived is not why it hangs.
    assert hangs.symptom is None


# fault: serving/explain/explain.py: together=True, hosts=hosts) → together=True)
# fault: serving/explain/explain.py: words = {"CLUSTER": inventory.cluster, → words = {"CLUSTER": "",
# fault: serving/explain/explain.py: if where and where["rank"]: → if False:
# fault: serving/explain/explain.py: **({"HOST": where["host"]} if where else {})} → }
def test_a_killed_rank_is_named_with_its_host(up: tuple[World, Inventory], capsys: pytest.CaptureFixture[str]) -> None:
    """By vLLM's log on the head, where Ray names the address alone."""
    world, inventory = up
    head = world.machines["gpu1"].box("vcluster-lab")
    assert head
    with lab.inside(world):
        lab.succeed(world, inventory, lab.do_serve)
        words = "RayWorkerProc rank=[3] died unexpectedly, shutting down executor."
        lost = "A worker died or was killed while executing a task. Worker IP address: 10.0.0.2 Worker port: 10003"
        head.log += f"[vllm] (EngineCore pid=7) ERROR 11-21 02:00:00 [x.py:1] {words}\n[vllm] (raylet) {lost}\n"
        life.fail(world, world.machines["gpu1"], head, 0, f"vLLM ended with exit code 0: {words}")
        world.clock.sleep(0.1)
        found = lab.run(world, inventory, EXPLAIN).value
    show_explained(found.verdict, Pasted, color="never")
    shown = capsys.readouterr().out
    assert "ranks:   rank 3 ended on gpu2\n" in shown
    assert [line.removeprefix("look:").strip() for line in shown.splitlines() if line.startswith("look:")] == [
        "vcluster exec gpu2 --ssh -- dmesg -T",
        "look there for Out of memory and Xid",
        "vcluster exec gpu2 --ssh -- docker inspect -f '{{json .State}}' vcluster-lab",
        "vcluster logs gpu2 --only rank=3",
    ]


@pytest.mark.promise("P41")
def test_a_request_that_was_rolled_back_is_explained_first(
    up: tuple[World, Inventory], capsys: pytest.CaptureFixture[str]
) -> None:
    """The model before it is served again: all that works has survived, but what was asked about has failed."""
    world, inventory = up
    with lab.inside(world):
        assert lab.run(world, inventory, lab.do_serve).error is None
        failed = lab.run(world, inventory, partial(lab.do_serve, model="no/such"))
        assert failed.error is not None
        found = lab.run(world, inventory, EXPLAIN).value
    show_explained(found.verdict, Pasted, color="never", request=found.request)
    first, *more = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"The last request that failed \(\d\d:\d\d \S+, no/such\): no such model", first)
    assert any("gpu1:request no/such:1: OSError: no such model" in " ".join(line.split()) for line in more), more
    assert any(line.startswith("fix:") for line in more)


# fault: serving/explain/explain.py: verdict=_placed(found.verdict, inventory)) → verdict=found.verdict)
def test_where_to_look_for_a_request_that_was_rolled_back_has_its_host(
    up: tuple[World, Inventory], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lines had HOST and CLUSTER in the place of names that the line above them has."""
    world, inventory = up
    died = "vLLM ended with exit code 1 on gpu2: Worker proc VllmWorker-1 died unexpectedly, shutting down executor."
    monkeypatch.setattr(life, "_FAILURE", {"time": 1.0, "summary": died, "lines": [died]})
    with lab.inside(world):
        lab.succeed(world, inventory, lab.do_serve)
        assert lab.run(world, inventory, partial(lab.do_serve, model="no/such")).error is not None
        found = lab.succeed(world, inventory, EXPLAIN).value
    assert found.request
    assert found.verdict.symptom.failure.fix.split("\n")[2:] == [
        "vcluster exec gpu2 --ssh -- docker inspect -f '{{json .State}}' vcluster-lab",
        "vcluster logs gpu2 --only rank=1",
    ]


# fault: serving/explain/explain.py: if not status.up and ( → if False and (
# fault: serving/explain/explain.py: if read.result in QUIET else None → if False else None
# fault: features/explain/verb.py: ("nothing", "unfinished", "cluster-not-up") → ("nothing", "unfinished")
@pytest.mark.parametrize("what", ["not joined", "no answer", "fewer GPUs"])
def test_a_cluster_that_is_not_whole_is_not_healthy(
    up: tuple[World, Inventory], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    """What `status` shows is the answer, with its remedy and its exit code."""
    world, inventory = up
    box = world.machines["gpu1"].box("vcluster-lab")
    assert box
    with lab.inside(world):
        lab.succeed(world, inventory, lab.do_serve)
        row = next(row for row in box.life["nodes"].values() if row["address"] == "10.0.0.2")
        if what == "not joined":
            row["alive"] = False
        elif what == "no answer":
            world.machines["gpu2"].reachable = False
        else:
            row["gpus"] = 1
        world.clock.sleep(1)
        status = lab.run(world, inventory, lab.do_status).value
        found = lab.run(world, inventory, EXPLAIN).value
    assert not status.up
    (row_of,) = [host for host in status.hosts if host.problem]
    assert (found.verdict.result, found.verdict.symptom.failure.slug) == ("symptom", "cluster-not-up")
    assert found.verdict.symptom.failure.fix == (row_of.fix or "vcluster status\nvcluster check")
    first, second = (place.text for place in found.verdict.symptom.places)
    assert (first, second) == (status.summary, f"gpu2: {row_of.problem}")
    monkeypatch.setattr(explain, "of_cluster", lambda *_, **__: found)
    monkeypatch.setattr(Session, "load", lambda _: inventory)
    with pytest.raises(SystemExit) as end:
        verb.explain()
    assert end.value.code == (4 if what == "no answer" else 1)
    assert "Healthy" not in capsys.readouterr().out


# fault: serving/explain/explain.py: if stopped := [host for host in status.hosts if host.state in ( → if stopped := [host for host in status.hosts if host.state not in (
@pytest.mark.parametrize("raised", ["", "ERROR 11-21 02:00:00 [core.py:1] FrobError: no frob\n"])
def test_a_node_that_does_not_run_is_named_before_what_others_write_of_it(
    up: tuple[World, Inventory], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], raised: str
) -> None:
    """Its container's own end is known, and who ended it is not."""
    world, inventory = up
    lost = "[2026-11-21 02:00:00,000 C 31 31] node gpu2 marked dead because the detector has missed too many heartbeats"
    lines = [(1, f"{raised or lost}\n".encode())]
    read = sources
    monkeypatch.setattr(
        explain, "sources", lambda *of, **words: [*read(*of, **words), LogSource("gpu1:ray.log", lines, "gpu1")]
    )
    with lab.inside(world):
        lab.succeed(world, inventory, lab.do_serve)
        box, head = world.machines["gpu2"].box("vcluster-lab"), world.machines["gpu1"].box("vcluster-lab")
        assert box and head
        box.state, box.exit_code = "exited", 137
        world.clock.sleep(60)
        found = lab.run(world, inventory, EXPLAIN).value
    show_explained(found.verdict, Pasted, color="never")
    first, second, *more = capsys.readouterr().out.splitlines()
    assert first.endswith("the container of a node does not run (vcluster explain node-stopped)")
    assert second.split()[:6] == ["status:1:", "gpu2:", "the", "node", "is", "stopped:"]
    assert "look:    vcluster up" in more
    assert not any("docker inspect" in line for line in more)
    if raised:
        assert any("FrobError: no frob" in line for line in more)
    else:
        assert any(line.startswith("also:") and "Ray has lost a host" in line for line in more)


# fault: serving/explain/explain.py: for name in lost if isinstance(failures.get(name), SILENT) → for name in lost if name in ()
def test_a_host_that_is_off_is_the_cause_of_what_the_others_write(
    up: tuple[World, Inventory], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What its ranks leave in the logs of others is a symptom at most, and names no host that one can look at."""
    world, inventory = up
    lines = [(1, b"ERROR 11-27 10:00:00 [multiproc_executor.py:1] RPC call to execute_model timed out\n")]
    monkeypatch.setattr(explain, "sources", lambda *_, **__: [LogSource("gpu1:serve.log", lines, "gpu1")])
    with lab.inside(world):
        lab.succeed(world, inventory, lab.do_serve)
        box = world.machines["gpu1"].box("vcluster-lab")
        assert box
        box.life["nodes"].popitem()
        world.machines["gpu2"].reachable = False
        world.clock.sleep(1)
        found = lab.run(world, inventory, EXPLAIN).value
    assert (found.verdict.result, found.verdict.cause.failure.slug) == ("explained", "host-unreachable")
    show_explained(found.verdict, Pasted, color="never")
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("The host is off, or its network is")
    assert second.split() == ["ssh:1:", "gpu2:", "no", "answer"]


# fault: serving/explain/explain.py: if inventory.head_name in states else _without_head(inventory, states) → if True else ()
# fault: serving/explain/explain.py: return () if calm else (inventory.head_name,) → return (inventory.head_name,)
@pytest.mark.parametrize("gone", [True, False])
def test_a_head_whose_host_is_off_is_the_cause_too(up: tuple[World, Inventory], gone: bool) -> None:
    """Where the other nodes still have their head, only the way from here to it is broken."""
    world, inventory = up
    world.machines["gpu1"].reachable = False
    box, worker = world.machines["gpu1"].box("vcluster-lab"), world.machines["gpu2"].box("vcluster-lab")
    assert box and worker
    worker.log = "get_mempolicy: Operation not permitted\nerror: frob\n"
    if gone:
        box.state = "exited"
    with lab.inside(world):
        world.clock.sleep(60)
        found = lab.run(world, inventory, EXPLAIN).value
    if not gone:
        assert found.verdict.cause is None
        return
    assert (found.verdict.result, found.verdict.cause.failure.slug) == ("explained", "host-unreachable")
    (place,) = found.verdict.cause.places
    assert (place.source, place.host, place.text) == ("ssh", "gpu1", found.failures["gpu1"].message)
