"""Ready is asked by what the model is, and watched by its tokens."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.logs import explained
from tests.support.node.world import HEAD, WATCHED, WORKER, World, eventually, lives
from vllm_cluster.serving.node.engine_watch import short_steps

pytestmark = pytest.mark.slow


KINDS = [
    (["generate"], "/v1/completions"),
    (["generate"], "/v1/chat/completions"),
    (["embed", "token_embed"], "/v1/embeddings"),
    (["classify"], "/score"),
    (["classify", "token_classify"], "/classify"),
    (["token_embed"], "/pooling"),
    (["transcription"], "/v1/audio/transcriptions"),
]


def named(path: str) -> str:
    """The generation of the model that answers there."""
    return path.strip("/").replace("/", "-")


def asked(world: World, name: str) -> list[str]:
    """The paths that the next of the planned models is asked for until it is ready."""
    count, end = len(world.completions), f"all lines of {name} are out"
    (world.fake / "loaded").unlink(missing_ok=True)
    world.want(name)
    # vLLM loads for long after these lines: here the API would open before the node program has read them.
    world.until(lambda: end in world.log.read_text(), "the lines are read")
    (world.fake / "loaded").touch()
    world.phase("ready", name)
    return [one["path"] for one in world.completions[count:]]


# fault: serving/node/readiness.py: except NotServed as error: → except ZeroDivisionError as error:
@pytest.mark.promise("P28")
@pytest.mark.parametrize("logged", [True, False])
def test_a_model_is_asked_for_what_it_is(world: World, logged: bool) -> None:
    """One node serves a model of each kind in turn."""
    plans = []
    for tasks, path in KINDS:
        line = f"(APIServer pid=1) INFO 11-21 02:40:35 [entry.py:136] Supported tasks: {tasks}\n"
        lines = [*([line] if logged else []), f"all lines of {named(path)} are out\n"]
        plans.append({"lines": lines, "paths": [path], "loading": True})
    world.plan(*plans)
    world.start()
    for _, path in KINDS:
        found = asked(world, named(path))
        assert found[-2:] == [path, path]
        if logged and path not in ("/v1/chat/completions", "/classify"):
            assert len(found) == 2


@pytest.mark.promise("P28")
def test_a_model_that_answers_nothing_known_is_not_ready(world: World) -> None:
    world.plan({"paths": []})
    world.start()
    world.want("one")
    what = world.phase("failed").first_failure.summary
    assert "it answers no kind of request that vcluster knows: a completion ended with HTTP 404" in what


# fault: serving/node/engine_watch.py: if quiet > pace.hung_end: → if quiet > pace.hung_end * 1e6:
@pytest.mark.promise("P38")
@pytest.mark.parametrize("plan", [{"metrics": False}, {"metrics": True, "flags": ["--no-enable-chunked-prefill"]}])
def test_an_engine_whose_steps_are_not_seen_is_hung_and_then_started_again(world: World, plan: dict[str, Any]) -> None:
    world.pace |= WATCHED
    world.plan(plan, {})
    world.start()
    world.want("one", argv=["vllm", "serve", "org/model", *plan.get("flags", [])])
    world.phase("ready")
    (world.fake / "hangs").touch()
    assert world.phase("hung").detail.startswith("no token for ")
    eventually(lambda: not lives(world.attempts[0]["pid"]), "the engine that hangs is ended")
    (world.fake / "hangs").unlink()
    assert "no token for 4 s, though /health returns 200" in world.phase("ready", attempt=2).failure.summary


# fault: serving/node/engine_watch.py: self._moved.get(engine) == moved → self._moved.get(engine) != moved
# fault: serving/node/engine_watch.py: if not now: → if now is None and 1 / 0:
@pytest.mark.promise("P38")
@pytest.mark.parametrize("metrics", [True, "now and then"])
def test_an_engine_that_makes_no_step_is_started_again_at_once(world: World, metrics: bool | str) -> None:
    world.pace |= WATCHED | {"hung": 600.0, "hung_end": 600.0}
    world.plan({"metrics": metrics}, {})
    world.start_ready()
    (world.fake / "hangs").touch()
    eventually(lambda: not lives(world.attempts[0]["pid"]), "the engine that hangs is ended")
    (world.fake / "hangs").unlink()
    why = world.phase("ready", attempt=2).failure.summary
    assert "the engine has made no step for" in why
    assert "and a request for one token got no answer in 0.2 s, though /health returns 200" in why
    assert (named := explained(f"{why}\n").symptom)
    assert named.failure.slug == "engine-hung"


@pytest.mark.promise("P38")
def test_of_several_engines_each_is_looked_at_alone(world: World) -> None:
    world.pace |= WATCHED | {"hung": 600.0, "hung_end": 600.0}
    world.plan({"engines": 2}, {})
    world.start_ready()
    (world.fake / "hangs-1").touch()
    eventually(lambda: len(world.attempts) == 2, "it is started again")
    assert "engine 1 has made no step for" in world.phase("ready", attempt=2).failure.summary


# fault: serving/node/engine_watch.py: counts != before[engine] → counts.tokens != before[engine].tokens
@pytest.mark.promise("P38")
def test_an_engine_that_reads_a_long_prompt_is_left_alone(world: World) -> None:
    world.pace |= WATCHED
    world.start_ready()
    (world.fake / "hangs").touch()  # no token comes, but steps are made
    began, asked = time.monotonic(), len(world.completions)
    while time.monotonic() - began < WATCHED["hung_end"] + 1:
        with (world.fake / "steps").open("ab") as file:
            file.write(b"x")
        time.sleep(0.02)
    assert (world.phase("ready").attempt, len(world.attempts)) == (1, 1)
    assert len(world.completions) <= asked + 1


# fault: serving/node/engine_watch.py: if sure and not self._compiles(): → if sure:
@pytest.mark.promise("P38")
def test_an_engine_that_waits_for_a_compiler_is_left_alone(world: World) -> None:
    world.pace |= WATCHED | {"hung": 600.0, "hung_end": 600.0}
    world.plan({"compiler": True}, {})
    world.start_ready()
    (world.fake / "hangs").touch()
    count = len(world.completions)
    eventually(lambda: len(world.completions) > count + 2, "it is asked again and again")
    assert len(world.attempts) == 1


@pytest.mark.promise("P38")
def test_an_engine_that_was_only_slow_is_ready_again(world: World) -> None:
    world.pace |= WATCHED | {"hung_end": 600.0}
    world.plan({"metrics": False})
    ready = world.start_ready()
    (world.fake / "hangs").touch()
    world.phase("hung")
    (world.fake / "hangs").unlink()
    again = world.phase("ready")
    assert (again.attempt, again.ready_at, len(world.attempts)) == (1, ready.ready_at, 1)


@pytest.mark.parametrize(
    ("flags", "short"),
    [
        ([], True),
        (["--max-num-batched-tokens=8192"], True),
        (["--max-num-batched-tokens", "131072"], False),
        (["--max-num-batched-tokens=many"], False),
        (["--no-enable-chunked-prefill"], False),
    ],
)
def test_steps_are_short_unless_flags_make_them_long(flags: list[str], short: bool) -> None:
    assert short_steps(["vllm", "serve", "org/model", *flags]) is short


@pytest.mark.promise("P38")
def test_a_busy_engine_is_not_asked_and_an_idle_one_is(world: World) -> None:
    # It is not ended while this test itself gets no processor to make tokens with.
    world.pace |= WATCHED | {"hung_end": 600.0}
    world.start_ready()
    eventually(lambda: len(world.completions) > 4, "an idle engine is asked")
    (world.fake / "hangs").touch()  # what is asked gets no answer, and yet there are tokens

    def counted() -> bool:
        with (world.fake / "busy").open("ab") as file:
            file.write(b"x")
        serve = world.status and world.status.serve
        return bool(serve and serve.phase == "ready" and (serve.token_age_seconds or 9) < 0.5)

    began = time.monotonic()
    while time.monotonic() - began < 3 * WATCHED["hung"]:
        eventually(counted, "the tokens are counted")
    assert len(world.attempts) == 1


@pytest.mark.promise("P37")
def test_a_start_without_progress_is_ended_with_what_did_not_move(world: World) -> None:
    world.pace["still"] = 3.0  # longer than a busy machine takes to start the program and to read its line
    world.plan({"lines": ["INFO Starting to load model org/model...\n"], "loading": True, "stubborn": True})
    world.start(HF_HUB_OFFLINE="1")
    world.want("one")
    what = world.phase("failed").first_failure.summary
    assert "while loading: nothing has moved for 3 s: no new line in the log" in what
    assert not lives(world.attempts[0]["pid"])


@pytest.mark.promise("P37")
def test_a_start_that_moves_has_no_limit(world: World) -> None:
    world.pace["still"] = 4.0
    world.plan({"loading": True})
    world.start(HF_HOME=str(world.folder / "models"))
    world.want("one")
    world.phase("importing")
    blobs = world.folder / "models" / "hub" / "models--org--model" / "blobs"
    blobs.mkdir(parents=True)
    for number in range(60):
        (blobs / str(number)).write_bytes(os.urandom(2 << 20))
        time.sleep(0.1)  # the bytes come slowly: for longer than it may be without movement
        assert world.status
        assert world.status.serve
        assert world.status.serve.phase in ("importing", "downloading")
    assert world.phase("downloading", detail=" MB/s").detail.startswith("0.1 GB, ")
    (world.fake / "loaded").touch()
    ready = world.phase("ready")
    assert [phase for phase, _ in ready.phases if phase != "waiting"] == ["importing", "downloading", "probing"]


# fault: serving/node/serve_state.py: if len(self.starts) > pace.restarts: → if len(self.starts) > 1_000_000:
@pytest.mark.promise("P37")
def test_restarts_have_a_budget(world: World) -> None:
    world.pace["restarts"] = 3
    world.plan({"lines": ["RuntimeError: the first cause\n"]}, {"lines": ["error: the second\n"], "exit": 1})
    world.start_ready()
    os.kill(world.attempts[0]["pid"], signal.SIGKILL)
    failed = world.phase("failed")
    assert failed.detail == "started 4 times within 60 min: no further attempts"
    assert failed.first_failure.summary == "vLLM ended with exit code 137: RuntimeError: the first cause"
    assert len(world.attempts) == 4
    # Neither another container nor time starts it again; a new request does.
    assert world.stop() == 0
    world.start()
    world.ray("up")
    assert world.phase("failed").detail == failed.detail
    world.plan({})
    world.want("two")
    world.phase("ready", generation="two")


# fault: serving/node/replica_controller.py: wrong = self._held(course, nodes) → pass
@pytest.mark.promise("P27")
def test_the_next_start_waits_until_ray_has_its_gpus_back(world: World) -> None:
    free = world.fake / "free.json"
    free.write_text(json.dumps({f"id-{HEAD}": {"GPU": 2.0}, f"id-{WORKER}": {"GPU": 2.0}}))
    world.start_ready()
    free.write_text(json.dumps({f"id-{HEAD}": {"GPU": 2.0}, f"id-{WORKER}": {"CPU": 1.0}}))
    os.kill(world.attempts[0]["pid"], signal.SIGKILL)
    world.phase("waiting", detail=f"2 GPUs of {WORKER} are not free yet")
    assert len(world.attempts) == 1
    free.write_text(json.dumps({f"id-{HEAD}": {"GPU": 2.0}, f"id-{WORKER}": {"GPU": 2.0}}))
    world.phase("ready", attempt=2)


@pytest.mark.promise("P38")
def test_a_broken_request_is_reported_and_the_last_good_one_is_served(world: World) -> None:
    """What a power cut leaves of a file that was not synced: its length, in NULs."""
    world.start_ready()
    (world.state / "wanted.json").write_bytes(bytes(512))
    eventually(lambda: world.status and world.status.error, "told that it cannot be read")
    assert lives(world.attempts[0]["pid"])
    assert world.stop() == 0
    world.start()
    world.phase("ready", generation="one", attempt=1)
    assert len(world.attempts) == 2
    assert world.status
    assert "wanted.json cannot be read" in str(world.status.error)
    world.want("two")
    world.phase("ready", generation="two")
    assert world.status.error is None


# fault: serving/node/supervisor.py: and now - self._written_at < self._pace.beat →
@pytest.mark.promise("P38")
def test_the_status_is_written_again_and_again(world: World) -> None:
    world.start()
    world.ray("up")
    seen = [world.status]

    def written_again() -> bool:
        seen.append(world.status)
        last, now = seen[-2:]
        return bool(last and now and last.updated < now.updated and now == replace(last, updated=now.updated))

    # What has changed is written at once, and does not count as a beat.
    eventually(written_again, "the next beat")
    assert world.status
    assert world.status.beat == world.pace["beat"]


# fault: serving/node/files.py: if now - _reported.get(path, -REPORT_SECONDS) >= REPORT_SECONDS: → if now:
@pytest.mark.promise("P38")
def test_a_full_disk_fills_no_log(world: World) -> None:
    world.start()
    world.ray("up")
    Path(world.state / "status.json.new").mkdir()
    world.want("one")
    eventually(lambda: world.completions, "it is served though nobody can be told")
    eventually(lambda: "cannot write" in world.log.read_text(), "told")
    assert world.log.read_text().count("cannot write") == 1
