"""P31, P48: nothing of the laptop's own configuration, and none of its secrets, reaches a host."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.batch_api import Api, answer, serving
from tests.support.canaries import BROKEN, KINDS, Laptop, laptop
from tests.support.figures import record
from tests.support.in_process import run
from tests.support.paths import FIXTURES
from tests.support.sim import carrier, lab, make, oracle
from tests.support.sim.world import World
from vllm_cluster.features.slurm import jobs
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.hosts.runtime import SYSTEM
from vllm_cluster.kernel.listeners import LOOPBACK
from vllm_cluster.kernel.transport.base import MAX_OUTPUT, Result
from vllm_cluster.kernel.transport.forward import LoopbackForward, SocketPipe

pytestmark = pytest.mark.promise("P31")

VERBS = (lab.do_plan, lab.do_up, lab.do_up, lab.do_serve, lab.do_status, lab.do_stop, lab.do_down)


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """All bytes that reach a host: commands, their input, and what goes over streams."""
    seen: list[bytes] = []
    run, opened, send = carrier.FakeTransport.run, carrier.FakeTransport.open_stream, carrier._Stream.sendall

    def recorded_run(
        self: carrier.FakeTransport, argv: list[str], deadline: Deadline, *, stdin: bytes = b"", most: int = MAX_OUTPUT
    ) -> Result:
        seen.extend([*(word.encode() for word in argv), stdin])
        return run(self, argv, deadline, stdin=stdin, most=most)

    def recorded_open(self: carrier.FakeTransport, argv: list[str], deadline: Deadline) -> object:
        seen.extend(word.encode() for word in argv)
        return opened(self, argv, deadline)

    def recorded_send(self: carrier._Stream, data: bytes) -> None:
        seen.append(bytes(data))
        send(self, data)

    monkeypatch.setattr(carrier.FakeTransport, "run", recorded_run)
    monkeypatch.setattr(carrier.FakeTransport, "open_stream", recorded_open)
    monkeypatch.setattr(carrier._Stream, "sendall", recorded_send)
    return seen


def live_there(made: Laptop, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)


def everything() -> Iterator[str]:
    """Every verb, on hosts that lack the image, so that it is pulled and built."""
    world, inventory = make.world((2, 2), present=False), make.inventory(2)
    with lab.inside(world):
        for verb in VERBS:
            outcome = lab.succeed(world, inventory, verb)
            yield from (call.what for call in outcome.script.calls)
        oracle.nothing_left(world)


def test_no_login_header_or_proxy_of_the_laptop_reaches_a_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wire: list[bytes]
) -> None:
    made = laptop(tmp_path, path=os.environ["PATH"])
    live_there(made, monkeypatch)
    calls = list(everything())
    assert any("docker pull" in call for call in calls), "nothing was pulled"
    assert any("/build" in call for call in calls), "nothing was built"
    assert made.found_in(wire) == []
    assert not made.record.exists(), f"a credential helper was run: {made.record.read_text()}"
    size = sum(map(len, wire)) / 1e6
    figure = f"0 of {len(made.secrets)} canaries in {len(calls)} calls ({size:.1f} MB); no credential helper was run"
    record("P31", "sim: config.json, netrc, proxies and caches full of canaries, every byte sent", figure, True)


# Each verb that reaches a host, from its command line on; those that end with a person or stay open are left out.
LINES = (
    "plan", "up --yes", "up --yes", "serve org/model --yes", "status", "status --history", "status --wait",
    "check", "check --deep", "check --facts", "logs", "logs --errors", "logs --only replica=1", "explain",
    "explain --bundle report.tgz", "explain org/model", "models", "models rm org/old --yes", "image ls",
    "image prune --yes", "image push", "pull org/model", "pull ./folder --as folder", "pull org/model --verify",
    "endpoint", "endpoint --key", "endpoint --rotate", "complete hello", "chat hello", "batch in.jsonl -o out.jsonl",
    "batch --list", "bench", "bench org/model", "dashboard --prometheus", "dashboard --prometheus monitoring",
    "exec gpu1 -- env", "exec --all -- env", "fit org/model", "rollback --yes",
    "serve --from line.sh --yes", "serve --from recipe.yaml --yes",
    "serve org/other --hosts gpu2 --backend mp --yes", "rollback 1 --yes", "rollback org/model --yes",
    "serve org/model --replicas 2 --yes", "serve org/model --replicas max --drain 10s --yes", "stop org/model --yes",
    "up --pull-image --yes", "slurm org/model --submit --login gpu1", "slurm job --from line.sh --submit --login gpu1",
    "slurm status 42 --login gpu1", "slurm logs 42 --login gpu1", "slurm endpoint 42 --login gpu1",
    "slurm explain 42 --login gpu1", "slurm stop 42 --yes --login gpu1", "stop --yes", "down --yes",
)  # fmt: skip
READY = (
    '{"job": "42", "model": "m", "node": "n1", "address": "10.0.0.1", "port": 20000, '
    '"attempt": 1, "since": 0, "start_seconds": 1}'
)
# What a login node answers to the scripts of a job; the last word of each is the mark of its sections.
SLURM = {
    jobs.SUBMIT: "42",
    jobs.LOOK: f"@ job\nJobState=RUNNING\n@ ready\n{READY}\n@ attempts\n1\n@ ends\n1 attempt=1 exit code 1\n",
    jobs.KEY: "key-of-a-job",
    jobs.LOGS: "@ attempt-1/rank-0.log\nOSError: [Errno 28] No space left on device\n",
    "42": "",
}
INVENTORY = f"""version: 1
cluster: lab
image: {make.IMAGE}
model_cache: /models
hosts:
  gpu1: {{address: 10.0.0.1}}
  gpu2: {{address: 10.0.0.2}}
"""


@contextmanager
def command_lines(world: World, wire: list[bytes], api: Api) -> Iterator[None]:
    """While this lasts the program's command lines run in the world; the API of the model is a made-up one."""

    def processes(argv: list[str], **given: Any) -> subprocess.CompletedProcess[Any]:
        wire.extend([*(word.encode() for word in argv), given.get("input") or b""])
        return lab._process(argv, **given)

    class Noted(SocketPipe):
        """A connection to the API that keeps what is sent."""

        def __init__(self) -> None:
            near = socket.create_connection((LOOPBACK, api.port))
            super().__init__(near)
            self._send = near.sendall
            self.sendall = self._note  # type: ignore[assignment]

        def _note(self, data: bytes, /) -> None:
            wire.append(bytes(data))
            self._send(data)

    def forward(_self: object, _remote: int, local_port: int = 0, *, remote_host: str = "") -> LoopbackForward:
        return LoopbackForward("gpu1", Noted, local_port)

    known = carrier.FakeTransport.run

    def answered(
        self: carrier.FakeTransport, argv: list[str], deadline: Deadline, *, stdin: bytes = b"", most: int = 0
    ) -> Result:
        """To the facts' script, also where the details are behind it; another one the made-up host does not have."""
        if stdin.startswith(carrier.FACTS) and stdin != carrier.FACTS:
            wire.append(stdin)
            return known(self, argv, deadline, stdin=carrier.FACTS)
        if argv[0] == "scancel" or (argv[2:3] and argv[2] in SLURM):
            wire.extend([*(word.encode() for word in argv), stdin])
            return Result(0, SLURM[argv[2]].replace("@", argv[-1]).encode(), b"")
        try:
            return known(self, argv, deadline, stdin=stdin)
        except AssertionError:
            return Result(127, b"", b"sh: not found")

    with pytest.MonkeyPatch.context() as patch, lab.inside(world):
        patch.setattr(carrier.FakeTransport, "forward", forward)
        patch.setattr(carrier.FakeTransport, "run", answered)
        before = {one.name: getattr(SYSTEM, one.name) for one in fields(SYSTEM)}
        changed = replace(world.runtime or SYSTEM, processes=processes)
        try:
            for name in before:
                object.__setattr__(SYSTEM, name, getattr(changed, name))
            yield
        finally:
            for name, value in before.items():
                object.__setattr__(SYSTEM, name, value)


# fault: features/slurm/jobs.py: self.ask("submit", SUBMIT, folder, stdin=script.encode()) → self.ask("submit", SUBMIT, folder, stdin=script.encode() + str(__import__("os").environ).encode())
# fault: features/pull/plan.py: host_token(inventory) → __import__("os").environ["HF_TOKEN"]
@pytest.mark.promise("P48")
@pytest.mark.parametrize("token", ["", "hf_token: env:GIVEN\n"], ids=["without a token", "with a token"])
def test_no_secret_of_the_laptop_reaches_a_host(
    token: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wire: list[bytes]
) -> None:
    """As far as the made-up hosts answer: what each verb sends before that is judged, and what it was given arrives."""
    made, given = laptop(tmp_path, path=os.environ["PATH"]), "canary-that-is-given"
    live_there(made, monkeypatch)
    monkeypatch.setenv("GIVEN", given)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert {kind for kind, names in KINDS.items() if any(name.startswith(names) for name in made.secrets)} == set(KINDS)
    work = tmp_path / "work"
    (work / "folder").mkdir(parents=True)
    (work / "inventory.yaml").write_text(INVENTORY + token)
    (work / "in.jsonl").write_text('{"prompt": "hello"}\n')
    (work / "folder" / "config.json").write_text('{"model_type": "llama"}')
    (work / "line.sh").write_text("HF_TOKEN=$HF_TOKEN vllm serve org/model --max-model-len 4096\n")
    (work / "recipe.yaml").write_bytes((FIXTURES / "recipe.yaml").read_bytes())
    world, sent = make.world((2, 2), present=False), dict[str, int]()
    with serving(Api(answer)) as api, command_lines(world, wire, api):
        for line in LINES:
            before = len(wire)
            done = run(*line.split(), cwd=work)
            sent[line] = len(wire) - before
            assert made.found_in(wire[before:]) == [], line
            assert done.returncode == 0 or not line.startswith(("serve", "rollback 1", "slurm", "stop")), done.stderr
    # Alone the hub is asked from here.
    assert [line for line, count in sent.items() if not count] == ["fit org/model"]
    assert any(given.encode() in piece for piece in wire) is bool(token), "what the inventory gives did not arrive"
    assert not made.record.exists(), f"a credential helper was run: {made.record.read_text()}"
    size = sum(map(len, wire)) / 1e6
    figure = f"0 of {len(made.secrets)} canaries of {len(KINDS)} kinds in {len(wire)} inputs ({size:.1f} MB)"
    attack = f"sim: {len(LINES)} command lines, every program's input and every connection"
    record("P48", f"{attack}, {'with' if token else 'without'} hf_token in the inventory", figure, True)


@pytest.mark.parametrize("config", [*BROKEN, b"{", b"\xff\xfe\x00"], ids=repr)
def test_a_broken_docker_configuration_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: object
) -> None:
    made = laptop(tmp_path, path=os.environ["PATH"], config=config if not isinstance(config, bytes) else {})
    if isinstance(config, bytes):
        (tmp_path / ".docker" / "config.json").write_bytes(config)
    live_there(made, monkeypatch)
    assert list(everything())
    assert not made.record.exists()
