#!/usr/bin/env python3
"""Runs in every container under its init: keeps this node's part running and, on the head, a model served.

Standard library only and Python 3.10, because it runs in any image that the user chose.
One loop looks at everything five times a second and alone decides, so nothing needs a lock. Threads do only what
blocks, reading a child's lines and asking the API, and leave what they saw in a field for the loop to find.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import logging
import os
import resource
import shutil
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from vllm_cluster.serving.node.attempt import connect_error
from vllm_cluster.serving.node.backends import backend
from vllm_cluster.serving.node.files import keep_compiled, write_whole
from vllm_cluster.serving.node.head_roll import HeadRoll, Me, roll_key
from vllm_cluster.serving.node.members import HeadMembers
from vllm_cluster.serving.node.parse_argv import Place, place
from vllm_cluster.serving.node.parts import PartRunner
from vllm_cluster.serving.node.process import (
    NODE_TOKEN,
    Child,
    descendants,
    end,
    log_line,
    missing_secrets,
    secret_environment,
    secret_files,
)
from vllm_cluster.serving.node.replica_key import write_replica_key
from vllm_cluster.serving.node.replicas import Replicas
from vllm_cluster.serving.node.request_check import Standby, check, serve_checks
from vllm_cluster.serving.node.start import Parts
from vllm_cluster.serving.node.timing import Timing
from vllm_cluster.serving.node.worker_roll import WorkerRoll
from vllm_cluster.wire.reading import RefusedDocument, read
from vllm_cluster.wire.status import GroupNode, GroupTable

PR_SET_CHILD_SUBREAPER = 36
ERROR_LINES = 12
# After a write that failed, the next try.
UNWRITTEN_SECONDS = 1.0
# 256 nodes, and as many that are dead, take 80 KiB.
MAX_MEMBERS_LINE = 1 << 20
# EX_CONFIG: only another container can help, and `vcluster up` makes one.
NO_SECRETS = 78


def state_folder() -> Path:
    """Where requests come in and the status goes out."""
    return Path(os.environ.get("VCLUSTER_STATE", "/var/lib/vcluster"))


class Supervisor:
    """What joins the nodes, on this host; on the head also the list of them, and what is served."""

    def __init__(
        self,
        me: Me,
        command: Sequence[str],
        head: Place | None,
        pace: Timing,
        roll: HeadRoll | WorkerRoll,
        *,
        key: str = "",
    ) -> None:
        self.stopping = threading.Event()
        self._role = "head" if isinstance(roll, HeadRoll) else "worker"
        self._command, self._head, self._pace, self._roll = command, head, pace, roll
        self._runner = PartRunner(state_folder(), pace, self.stopping, self._reap, key)
        self._group: Child | None = None
        self._group_state, self._group_error, self._restarts, self._failures = "waiting", "", 0, 0
        self._running = False
        self._due = self._next_look = 0.0
        self._misses: dict[str, int] = {}
        self._silent = 0
        self._watch: Child | None = None
        self._watch_due = 0.0
        self._checker = Standby(state_folder())
        self._nodes: Sequence[GroupNode] | None = None
        self._nodes_at = 0.0
        self._version = backend.version()
        self._written: dict[str, object] = {}
        self._written_at = 0.0
        self._serving: Replicas | None = None
        if isinstance(roll, HeadRoll):
            parts = Parts(me.address, self._runner, roll)
            self._serving = Replicas(state_folder(), pace, parts, self._reap, self.publish, key_file=key or None)

    def run(self) -> int:
        """Keep everything up until a stop; a bug ends this program and the container, and Docker starts it again."""
        try:
            while not self.stopping.is_set():
                if self._command:
                    self._keep_group()
                else:
                    self._join_by_roll()
                if self._serving:
                    if self._command:
                        self._keep_watch()
                    self._serving.tick(self._nodes)
                    self._checker.keep(due=self._nodes is not None and self._serving.settled)
                if isinstance(self._roll, WorkerRoll):
                    self._runner.keep(self._roll.orders())
                    self._roll.report(self._runner.reports())
                self._reap()
                self.publish()
                self.stopping.wait(self._pace.tick)
        finally:
            self.stopping.set()
            if self._serving:
                self._serving.close()
            self._runner.close()
            # After that: its beats have others end their parts.
            self._roll.close()
            end(descendants, lambda: self._pace.group_stop, self._reap)
            self._group_state, self._group_error, self._nodes = "down", "the node stops", None
            self.publish()
        return 0

    def publish(self) -> None:
        """Write status.json when something is new, and at each beat: its age shows whether this program lives."""
        group = {
            "state": self._group_state,
            "restarts": self._restarts,
            "failures": self._failures,
            "error": self._group_error or None,
            "version": self._version,
            "nodes": [asdict(node) for node in self._nodes or ()],
            "by": "ray" if self._command else "mp",
        }
        serving = self._serving
        rows = serving.status() if serving else []
        status = {"v": 1, "role": self._role, "beat": self._pace.beat, "group": group, **_served(rows)}
        status |= {"error": serving.error if serving else None, "roll": self._roll.status()}
        content = json.loads(json.dumps(status))  # a copy, of what can change under it
        now = time.monotonic()
        if content == self._written and now - self._written_at < self._pace.beat:
            return
        self._written, self._written_at = content, now
        beat = _served(serving.beat(rows)) if serving else {}
        if not write_whole(state_folder() / "status.json", {**content, **beat, "updated": time.time()}):
            self._written_at = now - self._pace.beat + UNWRITTEN_SECONDS

    # ---- the group

    def _join_by_roll(self) -> None:
        """Where nothing else joins the nodes, the roll does."""
        error = str(self._roll.status()["error"])
        here = isinstance(self._roll, HeadRoll)
        self._group_state, self._group_error = "up" if here or not error else "waiting", error
        self._nodes = self._roll.members() if isinstance(self._roll, HeadRoll) else None

    def _keep_group(self) -> None:
        if self._group is None:
            self._start_group()
        elif trouble := self._trouble(self._group):
            self._end_group(self._group, trouble)

    def _start_group(self) -> None:
        now = time.monotonic()
        if now < self._due:
            return
        if self._role == "worker" and self._head and (error := connect_error(*self._head)):
            self._group_state = "waiting"
            self._group_error = f"{self._head[0]}:{self._head[1]}: {error.strerror or error}"
            self._due = now + self._pace.group_backoff
            return
        if logs := backend.earlier_logs(self._command):
            # The last ones are kept, to show what happened.
            for old in sorted(Path(logs[0]).glob(logs[1]))[:-1]:
                shutil.rmtree(old, ignore_errors=True)
        self._group_state, self._running = "starting", False
        self._misses.clear()
        self._group = Child("ray", self._command, os.environ, self._see_group)

    def _see_group(self, line: str) -> None:
        self._running = self._running or backend.RUNNING in line

    def _trouble(self, group: Child) -> str | None:
        """What is wrong with Ray, if anything."""
        now, lasted = time.monotonic(), time.monotonic() - group.began
        if (code := group.code()) is not None:
            return f"ray start ended with exit code {code}{signal_words(code)}"
        if not self._running:
            return f"ray start has not come up in {lasted:.0f} s" if lasted > self._pace.group_start else None
        if self._group_state != "up":
            self._group_state, self._group_error = "up", ""
        if lasted > self._pace.group_steady:
            self._failures = 0
        if now < self._next_look:
            return None
        self._next_look = now + self._pace.look
        return self._look()

    def _look(self) -> str | None:
        """Whether Ray's processes live: `ray start --block` continues when they end with code 0 or by SIGTERM.

        Nor does it see that the head is another one. Only a refusal counts, since then no process listens: a head
        that does not answer may come back, and Ray waits for it.
        """
        for what, where in (
            ("the head's Ray", self._head),
            ("the raylet", backend.own_place(self._command)),
        ):
            error = connect_error(*where) if where else None
            refused = isinstance(error, ConnectionRefusedError)
            self._misses[what] = self._misses.get(what, 0) + 1 if refused else 0
            if where and self._misses[what] >= self._pace.misses:
                return f"{what} has ended: no process listens at {where[0]}:{where[1]}"
            if where and where == self._head:
                self._silent = self._silent + 1 if error else 0
                silent = self._silent >= self._pace.misses
                self._group_error = f"{where[0]}:{where[1]}: {error.strerror or error}" if error and silent else ""
        return None

    def _end_group(self, group: Child, trouble: str) -> None:
        """Clear all that this Ray has left: the next one refuses to start beside any of it."""
        log_line("node", trouble)
        group.read_rest()
        self._group_state = "down"
        self._group_error = "\n".join([trouble, *list(group.tail)[-ERROR_LINES:]])
        if self._serving:
            self._serving.group_ended(f"Ray ended on the head: {trouble}")
        self._nodes = None
        self.publish()
        end(self._of_group, lambda: self._pace.group_stop, self._reap)
        group.code()
        self._group = self._watch = None
        self._restarts += 1
        # A worker whose head has gone has not failed: it waits for the head's port, not for longer and longer.
        self._failures = (
            1 if self._role == "worker" and self._head and connect_error(*self._head) else self._failures + 1
        )
        pause = min(self._pace.group_backoff_most, self._pace.group_backoff * 2.0 ** min(self._failures - 1, 16))
        self._due = time.monotonic() + pause

    def _of_group(self) -> list[int]:
        """What runs below this program, but for parts that no group joins, and the front."""
        parts = self._runner.pids | (self._serving.front_pids if self._serving else set())
        return [pid for pid in descendants() if pid not in parts]

    # ---- its members

    def _keep_watch(self) -> None:
        now = time.monotonic()
        if self._watch is None:
            if self._group_state == "up" and now >= self._watch_due:
                every = self._pace.nodes
                argv = [sys.executable, __file__, "members", f"--every={every}"]
                self._nodes_at = now
                self._watch = Child("nodes", argv, os.environ, self._see_nodes, quiet=True, max_line=MAX_MEMBERS_LINE)
        elif self._watch.code() is not None or now - self._nodes_at > self._pace.nodes_stale:
            end(self._watch.alive, lambda: 0.5, self._reap)
            self._watch.read_rest()
            log_line("nodes", f"ended: {' | '.join(list(self._watch.tail)[-3:])[:2000]}")
            self._watch.code()
            self._watch, self._nodes, self._watch_due = None, None, now + self._pace.group_backoff

    def _see_nodes(self, line: str) -> None:
        if line.startswith('{"nodes"'):
            with suppress(RefusedDocument):  # a line that is cut must not end the thread that reads the next one
                self._nodes, self._nodes_at = read(GroupTable, line.encode(), "nodes").nodes, time.monotonic()

    def _reap(self) -> None:
        """Orphans come to this process; those that a thread waits for are left to it."""
        serving = self._serving.children if self._serving else ()
        children = (self._group, self._watch, self._checker.child, *serving, *self._runner.children)
        known = {child.pid for child in children if child}
        try:
            while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if found.si_pid in known:
                    return
                os.waitpid(found.si_pid, 0)
        except ChildProcessError:
            return


def _served(rows: list[dict[str, object]]) -> dict[str, object]:
    """The replicas in the status: the first one, and where there are several, all."""
    return {"serve": rows[0] if rows else None, "replicas": rows if len(rows) > 1 else []}


def signal_words(code: int) -> str:
    """The signal that an exit code encodes: a crash in native code may have printed nothing else."""
    number = -code if code < 0 else code - 128
    return f" ({signal.Signals(number).name})" if number in {one.value for one in signal.Signals} else ""


def main(argv: Sequence[str]) -> int:
    """The commands of this program."""
    parser = argparse.ArgumentParser(prog="node.py", description="Keep Ray and vLLM running on this host.")
    commands = parser.add_subparsers(dest="command", required=True)
    for role in ("head", "worker"):
        command = commands.add_parser(role)
        command.add_argument("argv", nargs="*", help="-- the command that joins the nodes; none: the head's list does")
        command.add_argument("--roll", required=True, type=place, help="host:port where the head lists the nodes")
        command.add_argument("--name", required=True, help="this host, as the inventory names it")
        command.add_argument("--address", required=True)
        command.add_argument("--gpus", required=True, type=int)
        if role == "worker":
            command.add_argument("--head", help="host:port of the head, for what joins the nodes")
    commands.add_parser("members").add_argument("--every", type=float, default=1.0)
    commands.add_parser("status")
    commands.add_parser("hold-gpus").add_argument("idle")
    commands.add_parser("checker")
    commands.add_parser("check")
    given = parser.parse_args(argv)
    if given.command == "members":
        return backend.print_members(given.every)
    if given.command == "hold-gpus":
        return backend.hold_gpus(json.loads(given.idle))
    if given.command in ("checker", "check"):
        return serve_checks() if given.command == "checker" else check(state_folder())
    if given.command == "status":
        sys.stdout.write((state_folder() / "status.json").read_text() + "\n")
        return 0
    worker = given.command == "worker"
    head = (place(given.head) if given.head else None) if worker else backend.head_place(given.argv)
    return supervise(given.command, given.argv, head, given.roll, Me(given.name, given.address, given.gpus))


def supervise(role: str, command: Sequence[str], head: Place | None, at: Place, me: Me) -> int:
    """Be the node until a signal stops it."""
    logging.raiseExceptions = False  # a full disk must not fill the container's log with tracebacks
    # Some engines give a container 1,024 open files: a head of 64 nodes, its model and its watchers need more.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # Orphans of Ray and vLLM become children of this process: else none could find them.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if gone := missing_secrets():
        log_line("node", f"secret files are not there: {', '.join(gone)}; run vcluster up")
        return NO_SECRETS
    # Not in the container's own environment, which docker inspect shows.
    os.environ.update(secret_environment())
    keep_compiled(state_folder(), os.environ.get("VCLUSTER_COMPILED", "image"))
    pace = Timing(**json.loads(os.environ.get("VCLUSTER_PACE", "{}")))
    token = next(path for name, path in secret_files().items() if name in (NODE_TOKEN, backend.TOKEN_PATH))
    roll: HeadRoll | WorkerRoll
    if role == "head":
        roll = HeadRoll(at, roll_key(token), me, pace, HeadMembers(state_folder()))
    else:
        roll = WorkerRoll(at, roll_key(token), me, pace)
    node = Supervisor(me, command, head, pace, roll, key=write_replica_key(token))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: node.stopping.set())
    log_line("node", f"{role}: {' '.join(command)}")
    return node.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
