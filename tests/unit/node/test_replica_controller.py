"""What the head's program does with a request, with all that vLLM and Ray may do meanwhile."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

import pytest

from tests.support.node.world import HEAD, KEY, TOKEN, WORKER, World, eventually, lives
from vllm_cluster.kernel.plan.spec import NO_SECRETS
from vllm_cluster.serving.node.replica_key import replica_key
from vllm_cluster.wire.order import read_order
from vllm_cluster.wire.parts import REPLACING, Replacing

pytestmark = pytest.mark.slow

LOADING = [
    "(EngineCore pid=1) INFO Starting to load model org/model...\n",
    "(Worker pid=2) Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:01<00:01,  1.00s/it]\r",
    "(Worker pid=2) Loading safetensors checkpoint shards: 100% Completed | 2/2 [00:02<00:00,  1.00s/it]\n",
]
# As vLLM prints it: the cause far above, and the same failure again from each process that it reaches.
UNKNOWN_MODEL = [
    "(EngineCore pid=1) INFO Initializing a V1 LLM engine (v0.32.0)\n",
    "(Engine pid=1) ERROR 11-20 23:28:13 [core.py:1] OSError: no/such is not a local folder and is not a valid model\n",
    *(f"(APIServer pid=1) Traceback line {number}\n" for number in range(60)),
    "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above.\n",
]


def test_serves_what_is_wanted(world: World) -> None:
    world.plan({"lines": LOADING, "loading": True})
    world.start()
    world.want("one")
    loading = world.phase("loading", detail="shards 2/2")
    assert (loading.progress, loading.gpus, loading.ready_at) == ((2, 2), (4, 4), None)
    (world.fake / "loaded").touch()
    ready = world.phase("ready")
    assert (ready.generation, ready.model, ready.name, ready.attempt) == ("one", "org/model", "model", 1)
    assert ready.seconds_to_ready > 0
    assert ready.first_failure is None
    # Two real completions, because the second pipeline stage may die of the first; with the key that no client has.
    key = replica_key(world.folder / "token")
    body = {"model": "model", "prompt": "Hello", "max_tokens": 1, "temperature": 0}
    assert world.completions == [{"path": "/v1/completions", "body": body, "key": f"Bearer {key}"}] * 2
    assert "Starting to load model" in (world.state / "serve.log").read_text()


def test_vllm_gets_what_was_requested_without_the_key(world: World) -> None:
    world.start()
    world.want("one", argv=["vllm", "serve", "a b", "--x=$HOME", "--safetensors-load-strategy=eager"])
    world.phase("ready")
    (run,) = world.attempts
    *argv, host, port = run["argv"]
    assert argv == ["serve", "a b", "--x=$HOME", "--safetensors-load-strategy=eager"]
    assert (host, port.partition("=")[0]) == ("--host=127.0.0.1", "--port")
    assert run["environ"]["VLLM_CANARY"] == "1"
    assert run["environ"]["PYTHONPATH"].split(os.pathsep)[0] == str(world.opt)
    assert KEY not in json.dumps(run)
    assert (world.state / "status.json").stat().st_mode & 0o777 == 0o644


def test_waits_for_exactly_the_wanted_gpus(world: World) -> None:
    """Looked at each time that Ray lists other nodes."""
    listed: list[tuple[dict[str, float], str]] = [
        ({HEAD: 2}, "GPUs 2/4: 127.0.0.2 is missing"),
        ({HEAD: 2, WORKER: 1}, "GPUs 3/4: 127.0.0.2 has 1 GPUs instead of 2"),
        ({HEAD: 2, WORKER: 2, "10.9.9.9": 2}, "GPUs 4/4: 10.9.9.9 is not of this cluster"),
    ]
    world.nodes(listed[0][0])
    world.start()
    world.want("one")
    assert world.phase("waiting", detail="GPUs").detail in (listed[0][1], "GPUs 0/4: Ray does not answer yet")
    for nodes, detail in listed:
        world.nodes(nodes)
        world.phase("waiting", detail=detail)
        assert world.attempts == []
    world.nodes({HEAD: 2, WORKER: 2})
    world.phase("ready")


def test_what_never_was_ready_is_not_tried_again(world: World) -> None:
    world.plan({"lines": UNKNOWN_MODEL, "exit": 0}, {"lines": UNKNOWN_MODEL, "exit": 1}, {})
    world.start()
    for code in (0, 1):
        world.want(f"ends-with-{code}")
        failed = world.phase("failed", f"ends-with-{code}")
        cause = "OSError: no/such is not a local folder and is not a valid model"
        assert failed.detail == failed.first_failure.summary == f"vLLM ended with exit code {code}: {cause}"
        assert failed.first_failure.lines[0].endswith(f"[core.py:1] {cause}")
        assert len(failed.first_failure.lines) == 41
        assert len(world.attempts) == code + 1
    world.want("two")
    assert world.phase("ready").first_failure is None


# fault: serving/node/attempt.py: |WARNING|\braise [A-Za-z]") → |WARNING")
def test_a_cause_may_take_several_lines(world: World) -> None:
    lines = [
        '(Worker pid=2) ERROR 11-29 06:01:03 [core.py:9]     raise RuntimeError(f"NCCL error: {error_str}")\n',
        "pydantic_core.ValidationError: 1 validation error for ModelConfig\n",
        "  Value error, too long\n",
        "end\n",
    ]
    world.plan({"lines": lines, "exit": 1})
    world.start()
    world.want("one")
    what = "vLLM ended with exit code 1: pydantic_core.ValidationError: 1 validation error for ModelConfig"
    assert world.phase("failed").first_failure.summary == f"{what} Value error, too long"


def test_a_program_that_is_not_there_is_reported(world: World) -> None:
    world.start()
    (world.folder / "bin" / "vllm").unlink()
    world.want("one")
    failed = world.phase("failed").first_failure
    assert (failed.summary, failed.lines[-1]) == ("vLLM ended with exit code 127", "vllm: No such file or directory")


# fault: serving/node/readiness.py: self._api.ask(question, self._name, self._pace.probe) → pass
def test_healthy_is_not_ready(world: World) -> None:
    wrong = {"die": "KeyError: 'the engine'", "error": "HTTP 500", "empty": "no token"}
    world.plan(*({"completion": completion, "stray": True} for completion in wrong))
    world.start()
    for completion, what in wrong.items():
        world.want(completion)
        failed = world.phase("failed", completion)
        assert what in failed.first_failure.summary
        assert (failed.ready_at, failed.seconds_to_ready) == (None, None)
        assert not any(lives(run["pid"]) for run in world.attempts)
        assert world.strays("vllm") == []


def test_what_once_was_ready_comes_back(world: World) -> None:
    world.plan({"lines": ["RuntimeError: the first cause\n"]}, {"lines": ["error: the second\n"], "exit": 1}, {})
    world.start_ready()
    os.kill(world.attempts[0]["pid"], signal.SIGKILL)
    again = world.phase("ready", attempt=3)
    assert again.first_failure.summary == "vLLM ended with exit code 137: RuntimeError: the first cause"
    assert again.failure.summary == "vLLM ended with exit code 1: error: the second"


# fault: serving/node/replica_controller.py: return self._members.gpus or ( → return (
def test_a_host_that_joins_or_leaves_is_counted_without_a_restart(world: World) -> None:
    third = "127.0.0.3"

    known = {HEAD: 2, WORKER: 2}
    world.start_ready()
    known[third] = 2
    rows = [{"name": at, "address": at, "gpus": count, "leaving": False} for at, count in known.items()]
    rows.append({"name": "gone", "address": "127.0.0.4", "gpus": 2, "leaving": True})
    (world.state / "cluster.json").write_text(json.dumps({"v": 1, "members": rows}))
    world.nodes(known)
    eventually(lambda: world.phase("ready").gpus == (6, 6), "six GPUs are counted")
    assert len(world.attempts) == 1
    os.kill(world.attempts[0]["pid"], signal.SIGKILL)
    world.phase("ready", attempt=2)
    # Half written, and not there yet: what was read before holds.
    (world.state / "cluster.json").write_text('{"v": 1, "members": [{"addr')
    os.kill(world.attempts[1]["pid"], signal.SIGKILL)
    assert world.phase("ready", attempt=3).gpus == (6, 6)
    (world.state / "cluster.json").unlink()
    os.kill(world.attempts[2]["pid"], signal.SIGKILL)
    assert world.phase("ready", attempt=4).gpus == (6, 6)
    rows = [row for row in rows if row["address"] != third]
    (world.state / "cluster.json").write_text(json.dumps({"v": 1, "members": rows}))
    os.kill(world.attempts[3]["pid"], signal.SIGKILL)
    world.phase("waiting", detail="GPUs 4/4: 127.0.0.3 is not of this cluster")


def test_a_server_that_answers_no_more_is_started_again(world: World) -> None:
    world.start_ready()
    (world.fake / "sick").touch()
    eventually(lambda: not lives(world.attempts[0]["pid"]), "the sick server is ended")
    (world.fake / "sick").unlink()
    assert "/health has not answered 200" in world.phase("ready", attempt=2).failure.summary


def test_a_node_lost_while_loading_is_waited_for(world: World) -> None:
    world.plan({"loading": True}, {})
    world.start()
    world.want("one")
    world.runs(1)
    world.nodes({HEAD: 2})
    waiting = world.phase("waiting", detail="127.0.0.2 is missing")
    assert "Ray has lost 127.0.0.2" in waiting.failure.summary
    world.nodes({HEAD: 2, WORKER: 2})
    world.phase("ready", attempt=2)


def test_a_node_that_died_and_came_back_between_two_looks_is_lost(world: World) -> None:
    world.plan({"loading": True}, {})
    world.start()
    world.want("one")
    world.runs(1)
    world.nodes({HEAD: 2, WORKER: 2}, ids={WORKER: "another"})
    assert "Ray has lost 127.0.0.2" in world.phase("ready", attempt=2).failure.summary


def test_vllm_may_die_before_ray_knows_why(world: World) -> None:
    world.pace["notice_loss"] = 120.0  # as long as the loss below may take to be noticed
    world.plan({"lines": ["RayWorkerProc rank=[1] died unexpectedly, shutting down executor.\n"], "exit": 0}, {})
    world.start()
    world.want("one")
    world.phase("backoff", detail="was a node lost?")
    world.nodes({HEAD: 2})
    world.phase("waiting", detail="127.0.0.2 is missing")
    world.nodes({HEAD: 2, WORKER: 2})
    world.phase("ready", attempt=2)


def test_a_rank_that_died_of_itself_is_not_tried_again(world: World) -> None:
    world.pace["notice_loss"] = 0.2
    world.plan({"lines": ["RayWorkerProc rank=[1] died unexpectedly, shutting down executor.\n"], "exit": 0})
    world.start()
    world.want("one")
    assert "died unexpectedly" in world.phase("failed").first_failure.lines[0]
    assert len(world.attempts) == 1


def test_nodes_that_are_always_lost_are_given_up(world: World) -> None:
    world.pace["restarts"] = 1
    world.plan({"loading": True})
    world.start()
    world.want("one")
    for attempt in (1, 2):
        world.runs(attempt)
        world.nodes({HEAD: 2, WORKER: 2}, ids={WORKER: f"id-{attempt}"})
    failed = world.phase("failed")
    assert failed.detail == "started 2 times within 60 min: no further attempts"
    assert failed.first_failure.summary == f"Ray has lost {WORKER}"


# fault: serving/node/members.py: found.run == self._known → False
# fault: serving/node/serve_state.py: del self.starts[-1:] → pass
# fault: serving/node/replica_controller.py: planned = self._members.replaced_by(start.members) → planned = ""
def test_a_node_that_up_makes_again_is_not_a_failure_of_the_model(world: World) -> None:
    """It takes nothing of the budget; what is lost after that run takes of it."""
    world.pace["restarts"] = 1
    by = "ann@laptop"
    world.start()
    world.want("one")
    world.phase("ready", attempt=1)
    for attempt, run in enumerate(("a" * 16, "b" * 16), 2):
        (world.state / REPLACING).write_bytes(Replacing(run, by, (WORKER,)).document)
        world.nodes({HEAD: 2})
        waiting = world.phase("waiting")
        assert waiting.failure is waiting.first_failure is None
        world.nodes({HEAD: 2, WORKER: 2}, ids={WORKER: f"id-{attempt}"})
        world.phase("ready", attempt=attempt)
    assert f"{by} makes the node of {WORKER} again by vcluster up" in (world.state / "results.jsonl").read_text()
    world.nodes({HEAD: 2, WORKER: 2}, ids={WORKER: "lost"})
    assert world.phase("ready", attempt=4).failure.summary == f"Ray has lost {WORKER}"


def test_another_request_ends_the_one_before(world: World) -> None:
    world.plan({"stubborn": True, "stray": True})
    world.start_ready()
    world.plan({})
    world.want("two")
    world.phase("ready", generation="two")
    first, second = world.attempts
    assert not lives(first["pid"])
    assert world.strays("vllm") == []
    world.want(None)
    eventually(lambda: world.status and world.status.serve is None, "nothing is served")
    assert not lives(second["pid"])
    assert not (world.state / "serve.json").exists()


# fault: serving/node/kept_order.py: if order.epoch <= accepted.epoch and accepted.epoch > 0: → if order.epoch < 0:
@pytest.mark.promise("P34")
def test_a_request_older_than_the_accepted_one_is_put_back(world: World) -> None:
    """The writer of `late` slept since it read the file, and another one was served meanwhile."""
    requests = {}
    for epoch, name in ((4, "accepted"), (4, "late"), (5, "next")):
        world.want(name)
        requests[name] = {**json.loads((world.state / "wanted.json").read_text()), "epoch": epoch}
    file = world.state / "wanted.json"
    file.write_text(json.dumps(requests["accepted"]))
    world.start()
    world.phase("ready", generation="accepted")
    file.write_text(json.dumps(requests["late"]))
    accepted = read_order(json.dumps(requests["accepted"]).encode())
    eventually(lambda: read_order(file.read_bytes()) == accepted, "the late request is replaced")
    world.want("uncounted")
    eventually(lambda: read_order(file.read_bytes()) == accepted, "one that does not count is replaced")
    assert lives(world.attempts[0]["pid"])
    file.write_text(json.dumps(requests["next"]))
    world.phase("ready", generation="next")


def test_half_a_request_changes_nothing(world: World) -> None:
    world.start_ready()
    # Never there as a whole: the node would begin it at once.
    whole = world.wanted("two")
    for half in ("", whole[: len(whole) // 2], '{"v": 1, "serve": {"generation": "x"}}', '{"v": 1, "serve": []}', "[]"):
        # Not whole at once, as an archive is unpacked; the old request may have been put back before.
        (world.state / "wanted.json").write_text(half)
        eventually(lambda: world.status and world.status.error, f"told that {half!r} cannot be read")
        assert lives(world.attempts[0]["pid"])
        (world.state / "wanted.json").write_text(json.dumps({"v": 6, "deployments": []}))
        eventually(lambda: world.status and "another version" in str(world.status.error), "told of the other version")
    (world.state / "wanted.json").write_text(whole)
    world.phase("ready", generation="two")
    assert world.status and world.status.error is None


# fault: serving/node/kept_order.py: or self._accepted.exists() →
def test_a_request_that_is_gone_for_a_moment_changes_nothing(world: World) -> None:
    """Docker removes a file before it writes it again."""
    world.start_ready()
    (world.state / "wanted.json").unlink()
    eventually(lambda: world.status and world.status.error, "told that it cannot be read")
    assert world.phase("ready", generation="one", attempt=1)
    assert lives(world.attempts[0]["pid"])
    world.want("one")
    eventually(lambda: world.status and world.status.error is None, "read again")
    assert len(world.attempts) == 1


# fault: serving/node/front_keeper.py: if connect_error(*at) is None: → if not at:
def test_another_server_on_the_port_does_not_count_as_ready(world: World) -> None:
    world.start()
    with socket.create_server(("127.0.0.1", world.port)):
        world.want("one")
        assert f"port {world.port} of 127.0.0.1 is taken" in world.phase("failed").first_failure.summary
    assert world.attempts == []


def test_the_next_container_knows_what_this_one_learned(world: World) -> None:
    world.start_ready()
    assert world.stop() == 0
    assert not lives(world.attempts[0]["pid"])
    world.plan({}, {"lines": ["ValueError: not this time\n"], "exit": 1}, {})
    world.start()
    again = world.phase("ready", attempt=2)
    assert again.first_failure.lines[0] == "ValueError: not this time"
    world.plan({"exit": 1})
    world.want("two", rollback=False)
    world.phase("failed", generation="two")
    runs = len(world.attempts)
    assert world.stop() == 0
    world.start()
    world.ray("up")
    assert world.phase("failed", generation="two").first_failure
    assert len(world.attempts) == runs


# fault: serving/node/process.py: line = line.replace(secret, "***") → pass
def test_no_log_holds_a_secret_or_an_endless_line(world: World) -> None:
    world.plan(
        {"lines": [f"key={KEY} token={TOKEN}\n", "x" * 300_000 + "\n", "\x1b[31mred\x1b[0m\n", "no end of line"]}
    )
    world.start_ready()
    assert world.stop() == 0
    for path in (world.log, world.state / "serve.log"):
        text = path.read_text()
        assert "key=*** token=***" in text
        assert KEY not in text
        assert TOKEN not in text
        assert max(map(len, text.splitlines())) < 16_500
        assert "\x1b" not in text
        assert "no end of line" in text


def test_a_full_disk_is_outlived(world: World) -> None:
    world.start()
    world.ray("up")
    # A folder is where the new file goes: every write fails, as on a full disk, for root too.
    blocked = Path(world.state / "status.json.new")
    blocked.mkdir()
    world.want("one")
    eventually(lambda: "cannot write" in world.log.read_text(), "told")
    blocked.rmdir()
    world.phase("ready")


@pytest.mark.promise("P13")
def test_secret_variables_reach_ray_and_vllm_and_nothing_else(world: World) -> None:
    """From files, as the container's own environment would show in docker inspect; a log that repeats one is masked."""
    value = "s3-canary+/=0123456789"
    file = world.folder / "env-AWS_SECRET_ACCESS_KEY-1a"
    file.write_text(value)
    world.plan({"lines": [f"INFO signing with {value}\n"]})
    world.start(VCLUSTER_SECRET_ENVIRONMENT=json.dumps({"AWS_SECRET_ACCESS_KEY": str(file)}))
    world.want("one")
    world.phase("ready")
    (attempt,) = world.attempts
    assert attempt["environ"]["AWS_SECRET_ACCESS_KEY"] == value
    assert f"AWS_SECRET_ACCESS_KEY={value}" in (world.fake / "ray.environ").read_text()
    assert world.node
    assert value.encode() not in Path(f"/proc/{world.node.pid}/environ").read_bytes()
    logs = world.log.read_text() + (world.state / "serve.log").read_text() + (world.state / "status.json").read_text()
    assert "signing with ***" in logs
    assert value not in logs


@pytest.mark.parametrize("gone", ["token", "env-A-1"])
def test_without_the_file_of_a_secret_it_ends_and_names_it(world: World, gone: str) -> None:
    paths = {"A": str(world.folder / "env-A-1")}
    (world.folder / "env-A-1").write_text("value")
    (world.folder / gone).unlink()
    world.start("worker", VCLUSTER_SECRET_ENVIRONMENT=json.dumps(paths))
    assert world.node
    assert world.node.wait(90) == NO_SECRETS
    assert f"secret files are not there: {world.folder / gone}; run vcluster up" in world.log.read_text()
