"""One node with a fake Ray and a fake vLLM: the real program in a process of its own, and what a test wants to know."""

from __future__ import annotations

import compileall
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.support.ports import free_port
from vllm_cluster.kernel.node.program import node_program
from vllm_cluster.kernel.plan.node_status import parse_status
from vllm_cluster.wire.status import NodeStatus

FAKES = Path(__file__).parent / "fakes"
# Looks that are more frequent take most of the processor time of a test, in the node, the fakes and here.
PACE = {
    "tick": 0.04,
    "group_backoff": 0.05,
    "group_backoff_most": 0.2,
    "group_stop": 0.5,
    "nodes": 0.05,
    "look": 0.05,
    "misses": 2,
    "serve_backoff": 0.05,
    "serve_backoff_most": 0.2,
    "serve_stop": 0.5,
    "serve_stop_hurry": 0.3,
    "health": 0.05,
    "health_dead": 0.4,
    "notice_loss": 1.0,
    "beat": 0.2,
    "movement": 0.05,
    "probe": 5.0,
    # Requests to an idle model only where a test is about them.
    "idle": 600.0,
    "hung": 900.0,
    "hung_end": 900.0,
}
# How a ready model is watched, a hundred times as fast.
WATCHED = {"idle": 0.15, "answer": 0.2, "hung": 0.6, "hung_end": 4.0}
KEY = "sk-canary-0123456789"
TOKEN = "ray-canary-0123456789"
HEAD, WORKER = "127.0.0.1", "127.0.0.2"


def lives(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def eventually(condition: Callable[[], Any], what: str, seconds: float = 120.0) -> Any:
    """The condition's value once it is true."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.02)
    return value


@cache
def _compiled() -> TemporaryDirectory[str]:
    """The node program with its bytecode: to compile it costs each node more than all else that it does here."""
    made = TemporaryDirectory(prefix="node-program-")
    for path, content in node_program().items():
        target = Path(made.name, path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    compileall.compile_dir(made.name, quiet=2)
    return made


class World:
    """The node program's files, the fakes, and the folders that a container would have."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fake, self.state, self.opt = folder / "fake", folder / "state", folder / "opt"
        self.port, self.gcs, self.roll = free_port(), free_port(), free_port()
        self.pace: dict[str, float] = dict(PACE)
        self.node: subprocess.Popen[bytes] | None = None
        self.worker: subprocess.Popen[bytes] | None = None
        self.fake2, self.state2 = folder / "fake2", folder / "state2"
        self.log = folder / "node.log"
        for made in (self.fake, self.state):
            made.mkdir()
        shutil.copytree(_compiled().name, self.opt)
        self._install_fakes()
        (folder / "key").write_text(KEY + "\n")
        (folder / "token").write_text(TOKEN)
        self.nodes({HEAD: 2, WORKER: 2})
        self.members({HEAD: 2, WORKER: 2})
        self.plan({})

    def _install_fakes(self) -> None:
        for name in ("ray", "vllm"):
            script = self.folder / "bin" / name
            script.parent.mkdir(exist_ok=True)
            script.write_text(f"#!{sys.executable} -S\n{(FAKES / name).read_text()}")
            script.chmod(0o755)
        shutil.copy(FAKES / "stray", self.fake / "stray")
        private, public = ((FAKES / name).read_text() for name in ("nodes.py", "ray_module.py"))
        for module, text in (
            ("ray/__init__.py", public),
            ("ray/util/__init__.py", public),
            ("ray/_private/__init__.py", ""),
            ("ray/_private/state.py", private),
            ("ray/_raylet.py", private),
        ):
            path = self.folder / "python" / module
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def start(self, role: str = "head", *ray: str, **more: str) -> None:
        """Start the node program."""
        head = ["--head", f"{HEAD}:{self.gcs}"] if role == "worker" else []
        # A worker of these tests is alone: no other program dials a head's, nor does a head answer one.
        me = ["--roll", f"{HEAD}:{self.roll}", "--name", role, "--address", HEAD, "--gpus=2"]
        self.node = self._program(self.log, role, *head, *me, "--", "ray", "start", *ray, "--block", **more)

    def start_without_ray(self, *, joins: bool = True) -> None:
        """Start a head and, where it `joins`, a worker that only the roll joins."""
        if not (self.node and self.node.poll() is None):
            self.node = self._program(self.log, "head", *self._roll("gpu1", HEAD))
        if joins:
            self.join()

    def join(self, gpus: int = 2) -> None:
        """Start a worker, with its own state and plans of vLLM: by itself that runs, without an API."""
        for made in (self.fake2, self.state2):
            made.mkdir(exist_ok=True)
        if not (self.fake2 / "plans.json").exists():
            shutil.copy(FAKES / "stray", self.fake2 / "stray")
            self._write(self.fake2 / "plans.json", '[{"loading": true}]')
        paths = {"FAKE": str(self.fake2), "VCLUSTER_STATE": str(self.state2)}
        self.worker = self._program(self.folder / "worker.log", "worker", *self._roll("gpu2", WORKER, gpus), **paths)

    def _roll(self, name: str, address: str, gpus: int = 2) -> list[str]:
        return ["--roll", f"{HEAD}:{self.roll}", "--name", name, "--address", address, f"--gpus={gpus}"]

    def _program(self, log: Path, *words: str, **more: str) -> subprocess.Popen[bytes]:
        environment = {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(self.folder / "python"),
            "FAKE": str(self.fake),
            "FAKE_PORT": str(self.port),
            "RAY_ADDRESS": f"{HEAD}:{self.gcs}",
            # The front asks no one by TLS, and its aiohttp reads all authorities of the machine as it is imported.
            "SSL_CERT_FILE": os.devnull,
            "RAY_AUTH_TOKEN_PATH": str(self.folder / "token"),
            "VCLUSTER_API_KEY_FILE": str(self.folder / "key"),
            "VCLUSTER_STATE": str(self.state),
            "VCLUSTER_PACE": json.dumps(self.pace),
            **more,
        }
        argv = [sys.executable, str(self.opt / "node.py"), *words]
        with log.open("ab") as file:
            return subprocess.Popen(argv, env=environment, stdout=file, stderr=subprocess.STDOUT)

    def stop(self) -> int:
        """End the node, as `docker stop` does."""
        assert self.node
        self.node.terminate()
        return self.node.wait(60)

    def close(self) -> None:
        """End what a failed test left."""
        for node in (self.node, self.worker):
            if node and node.poll() is None:
                node.send_signal(signal.SIGCONT)
                node.terminate()
                try:
                    node.wait(15)
                except subprocess.TimeoutExpired:
                    node.kill()
                    node.wait()
        # A node that was killed leaves what it had started; a container would have ended it.
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if str(self.folder).encode() in (process / "cmdline").read_bytes():
                    os.kill(int(process.name), signal.SIGKILL)

    # ---- what the world is like

    def nodes(self, gpus: Mapping[str, float], ids: Mapping[str, str] | None = None) -> None:
        """What Ray lists: addresses with their GPUs, all alive."""
        table = [
            {
                "NodeID": (ids or {}).get(address, f"id-{address}"),
                "NodeManagerAddress": address,
                "Alive": True,
                "Resources": {"GPU": count},
            }
            for address, count in gpus.items()
        ]
        table.append({"NodeID": "long-gone", "NodeManagerAddress": "9.9.9.9", "Alive": False, "Resources": {}})
        self._write(self.fake / "nodes.json", json.dumps(table))

    def members(self, gpus: Mapping[str, int]) -> None:
        """What the record of members has: addresses with their GPUs."""
        rows = [{"name": at, "address": at, "gpus": count, "leaving": False} for at, count in gpus.items()]
        self._write(self.state / "cluster.json", json.dumps({"v": 1, "members": rows}))

    def plan(self, *plans: Mapping[str, Any]) -> None:
        """What vLLM does, run by run; the last one holds for all that follow."""
        self._write(self.fake / "plans.json", json.dumps(plans))

    def want(self, generation: str | None, request: Mapping[str, Any] | None = None, **changed: Any) -> None:
        """Write what is to be served, None is nothing; `request` is who asks, and for the how manieth time."""
        self._write(self.state / "wanted.json", self.wanted(generation, request, **changed))

    def start_ready(self) -> Any:
        """Start the node program, and have it serve."""
        self.start()
        self.want("one")
        return self.phase("ready")

    def wanted(self, generation: str | None, request: Mapping[str, Any] | None = None, **changed: Any) -> str:
        """The text of what is to be served; `want` writes it."""
        rows = [self.placed(generation, **changed)] if generation else []
        return json.dumps({"v": 3, **(request or {}), "deployments": rows})

    def placed(self, generation: str, **changed: Any) -> dict[str, Any]:
        """A deployment and its replica, as a laptop writes them."""
        ranks = dict(changed.pop("ranks", {HEAD: 2, WORKER: 2}))
        argv = changed.pop("argv", ["vllm", "serve", "org/model"])
        leads = {"host": "gpu1", "address": HEAD, "gpus": ranks.pop(HEAD, 0), "argv": argv, "env": {"VLLM_CANARY": "1"}}
        others = [{"host": f"at {address}", "address": address, "gpus": count} for address, count in ranks.items()]
        at = {"host": changed.pop("host", "127.0.0.1"), "port": changed.pop("port", self.port)}
        if changed.get("backend") == "mp":
            at["backend"] = "mp"
            others = [{**other, "host": "gpu2", "argv": [*argv, "--headless"]} for other in others]
        return {
            "generation": generation,
            "deployment": {"name": "model", "model": "org/model", **changed},
            "replica": {"tp": 2, "pp": 2, **at, "parts": [leads, *others]},
        }

    @staticmethod
    def _write(path: Path, text: str) -> None:
        fresh = path.with_name(path.name + ".fresh")
        fresh.write_text(text)
        fresh.replace(path)

    # ---- what the node reports

    @property
    def status(self) -> NodeStatus | None:
        """status.json as vcluster reads it; that it can be read at any moment is part of the promise."""
        path = self.state / "status.json"
        return parse_status(path.read_bytes(), "gpu1") if path.exists() else None

    def ray(self, state: str, restarts: int = 0) -> Any:
        """Wait until Ray is in a state, after so many restarts or more."""

        def there() -> NodeStatus | None:
            status = self.status
            return status if status and status.group.state == state and status.group.restarts >= restarts else None

        return self.until(there, f"Ray {state}")

    def phase(self, phase: str, generation: str | None = None, attempt: int = 0, detail: str = "") -> Any:
        """Wait until serving is in a phase, and return what is reported about it."""

        def there() -> object:
            serve = self.status.serve if self.status else None
            fits = serve and serve.phase == phase and generation in (None, serve.generation)
            if phase == "importing" and not (self.attempts and lives(self.attempts[-1]["pid"])):
                return None  # not counted yet: ended now, its plan would be the next one's
            return serve if serve and fits and serve.attempt >= attempt and detail in serve.detail else None

        return self.until(there, phase)

    def runs(self, number: int) -> None:
        """Wait until vLLM runs for the n-th time."""
        self.until(lambda: len(self.attempts) >= number, f"run {number} of vLLM")

    def until(self, there: Callable[[], Any], what: str) -> Any:
        try:
            return eventually(there, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.status}\n{self.log.read_text()[-4000:]}") from None

    @property
    def attempts(self) -> list[dict[str, Any]]:
        """Every run of vLLM: its number, arguments and environment."""
        return self._records("vllm.attempts")

    @property
    def followers(self) -> list[dict[str, Any]]:
        """Every run of vLLM on the worker."""
        return self._records("vllm.attempts", self.fake2)

    @property
    def held(self) -> list[dict[str, Any]]:
        """Every placement group: who made it, its bundles, and how often vLLM had run by then."""
        return self._records("held")

    @property
    def completions(self) -> list[dict[str, Any]]:
        """Every request to the model."""
        return self._records("completions")

    def strays(self, of: str) -> list[int]:
        """The processes that were left behind and that live."""
        path = self.fake / f"{of}.strays"
        return [pid for pid in map(int, path.read_text().split() if path.exists() else ()) if lives(pid)]

    def _records(self, name: str, folder: Path | None = None) -> list[dict[str, Any]]:
        path = (folder or self.fake) / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
