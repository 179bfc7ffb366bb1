"""Plans and hosts of a pull for tests, and the program of a host as it is."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from tests.support.hosts import Sandbox
from tests.support.models.repositories import PullHub, Repository, blob, pull_hub
from tests.support.paths import ROOT
from vllm_cluster.kernel.hosts.program import read_message, source
from vllm_cluster.wire.pull import ChainHost, HostPlan, ModelFile

MODEL = "lab/model"
T = TypeVar("T")
FEED = "from vllm_cluster.kernel.spread.feed import main; main()"


def weights(size: int, seed: int = 1) -> bytes:
    """Bytes that do not repeat."""
    return random.Random(seed).randbytes(size)


def model_files(size: int = 3 << 20) -> dict[str, bytes]:
    """A model of two shards, with what lies beside them."""
    shards = {f"model-0000{number}-of-00002.safetensors": weights(size, number) for number in (1, 2)}
    index = {"weight_map": {f"layer{number}": name for number, name in enumerate(shards)}}
    small = {"config.json": b'{"model_type": "llama"}', "tokenizer.json": b"{}", "empty.txt": b""}
    return {**shards, **small, "model.safetensors.index.json": json.dumps(index).encode()}


def repository(files: Mapping[str, bytes], *, gated: bool = False) -> Repository:
    """A repository with one commit."""
    made = Repository(gated=gated)
    made.commit(files)
    return made


def plan_of(hub: PullHub, cache: Path, me: str = "a", hosts: Sequence[tuple[str, str, int]] = ()) -> HostPlan:
    """The plan for all files of the model at `main`."""
    repo = hub.repositories[MODEL]
    commit = repo.refs["main"]
    return HostPlan(
        id="1",
        key="5a" * 32,
        model=MODEL,
        commit=commit,
        reference="main",
        endpoint=hub.url,
        cache=str(cache),
        folder="hub/models--lab--model",
        kind="hub",
        me=me,
        hosts=tuple(ChainHost(*row) for row in hosts or [("a", "127.0.0.1", 0)]),
        files=tuple(ModelFile(path, len(content), blob(content)) for path, content in repo.files[commit].items()),
    )


def snapshot(plan: HostPlan) -> Path:
    """Where vLLM reads the model."""
    return Path(plan.cache) / plan.folder / "snapshots" / plan.commit


def contents(plan: HostPlan) -> dict[str, bytes]:
    """What vLLM would read."""
    there = snapshot(plan)
    return {str(path.relative_to(there)): path.read_bytes() for path in there.rglob("*") if path.is_file()}


class Part:
    """One host's part: the program as it runs in the container."""

    def __init__(self, folder: Path, plan: HostPlan, token: str = "") -> None:
        self.folder, self.plan = folder, plan
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "vcluster-plan.json").write_text(json.dumps(asdict(plan)))
        if token:
            (folder / "vcluster-token").write_text(token)
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        """Start it, as Docker does again after a kill."""
        environment = {**os.environ, "VCLUSTER_PULL": str(self.folder), "PYTHONPATH": str(ROOT)}
        argv = [sys.executable, "-m", "vllm_cluster.kernel.spread.main"]
        self.process = subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return self.process

    def status(self) -> dict[str, Any]:
        """What it wrote last."""
        try:
            found: dict[str, Any] = json.loads((self.folder / "vcluster-status.json").read_text())
        except (OSError, ValueError):
            return {}
        return found

    def end(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.wait(10)


class Sending:
    """The program that takes the files, as `hosts/program` runs it; it ends with its input."""

    host = "a"

    def __init__(self, part: Part) -> None:
        environment = {**os.environ, "VCLUSTER_PULL": str(part.folder), "PYTHONPATH": str(ROOT)}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([sys.executable, "-c", FEED], env=environment, stdin=pipe, stdout=pipe)

    def send(self, row: dict[str, Any]) -> None:
        self.send_bytes(json.dumps(row).encode() + b"\n")

    def send_bytes(self, data: bytes) -> None:
        stream = cast(IO[bytes], self.process.stdin)
        stream.write(data)
        stream.flush()

    def next(self, _deadline: object) -> dict[str, Any]:
        row: dict[str, Any] = json.loads(cast(IO[bytes], self.process.stdout).readline())
        return row

    def read(self, kind: type[T], deadline: object) -> T:
        """The next row as the laptop reads it."""
        return read_message(kind, self.host, "feed", self.next(deadline))

    def __enter__(self) -> Sending:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate(timeout=30)


def ask_program(program: str, *messages: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Run a program by its module with these lines as its input; the rows that it prints."""
    text = "".join(json.dumps(message) + "\n" for message in messages)
    where, _, name = program.rpartition(".")
    argv = [sys.executable, "-c", source(where, name)]
    done = subprocess.run(argv, input=text, capture_output=True, text=True, check=True, timeout=60)
    return [json.loads(line) for line in done.stdout.splitlines()]


def gateway(sandbox: Sandbox) -> str:
    """This machine's own address on the sandbox's network."""
    form = "{{range .NetworkSettings.Networks}}{{.Gateway}}{{end}}"
    argv = ["docker", "inspect", "--format", form, sandbox.container("gpu1")]
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


@contextmanager
def hub_for(sandbox: Sandbox, repositories: Mapping[str, Repository], **settings: Any) -> Iterator[PullHub]:
    """A hub on the sandbox's network."""
    with pull_hub(gateway(sandbox), repositories=dict(repositories), **settings) as made:
        yield made


def forget(sandbox: Sandbox, model: str, hosts: Sequence[str] = ("gpu1", "gpu2")) -> None:
    """Remove a model from the hosts."""
    folder = f"/models/hub/models--{model.replace('/', '--')}"
    for host in hosts:
        sandbox.on(host, "rm", "-rf", folder, root=True)
