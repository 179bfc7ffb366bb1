"""What is collected of a host's logs: nothing of the kernel's that is older than the container."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.clock import Clock
from tests.support.sim import make
from vllm_cluster.features.logs import action as logs_action
from vllm_cluster.features.logs import host as log_host
from vllm_cluster.features.logs.host import ContainerFeed
from vllm_cluster.features.logs.lines import Line, LogRequest
from vllm_cluster.features.logs.merge import MAX_KEPT_SECONDS, LogMerge
from vllm_cluster.kernel.docker.parse import container
from vllm_cluster.kernel.errors import CommandFailed
from vllm_cluster.kernel.hosts.runtime import SYSTEM, Runtime
from vllm_cluster.kernel.transport.base import Result
from vllm_cluster.serving.explain.logs import collect

KERNEL = b"""[Sat Nov 21 01:59:59 2026] Out of memory: Killed process 1 (of another time)
[Sat Nov 21 02:00:01 2026] Out of memory: Killed process 2 (ray::RayWorkerW)
"""
STATE = {"Status": "exited", "ExitCode": 137, "OOMKilled": True, "Error": ""}
TIMES = {"StartedAt": "2026-11-21T02:00:00.5Z", "FinishedAt": "2026-11-21T02:00:02Z"}


def collected(run: Callable[..., Result]) -> dict[str, bytes]:
    """The logs by name of a host whose container has ended."""
    docker = SimpleNamespace(
        container_info=lambda _: container({"Id": "1", "State": {**STATE, **TIMES}}),
        read_file=lambda *_: None,
        read_end=lambda *_: None,
        logs=lambda *_, **__: "",
    )
    host = SimpleNamespace(name="gpu1", docker=docker, runtime=SYSTEM, transport=SimpleNamespace(run=run))
    return {log.name: b"".join(part for _, part in log.parts) for log in collect(cast(Any, host), "lab")}


# fault: serving/explain/logs.py: " [vllm" in line[:50] → " [vllm] " in line[:50]
def test_what_replicas_print_is_collected_once() -> None:
    """It is in serve.log and serve-1.log too."""
    node, *of_vllm = (f"2026-11-21T02:00:01Z [{who}] x\n" for who in ("node", "vllm", "vllm_1"))
    docker = SimpleNamespace(
        container_info=lambda _: container({"Id": "1", "State": {**STATE, **TIMES}}),
        read_file=lambda *_: None,
        read_end=lambda _, path, *__: b"x\n" if path.endswith("serve.log") else None,
        logs=lambda *_, **__: "".join([node, *of_vllm]),
    )
    transport = SimpleNamespace(run=lambda *_, **__: Result(0, b"", b""))
    host = SimpleNamespace(name="gpu1", docker=docker, runtime=SYSTEM, transport=transport)
    found = {log.name: b"".join(part for _, part in log.parts) for log in collect(cast(Any, host), "lab")}
    assert found["docker.log"] == node.encode()


# fault: serving/explain/logs.py: if (parse_time(line) or 0.0) >= since).encode() → if since >= 0).encode()
def test_the_kernel_s_lines_of_before_are_left() -> None:
    parts = collected(lambda *_, **__: Result(0, KERNEL, b""))
    assert parts["dmesg"] == KERNEL.splitlines(keepends=True)[1]


# fault: serving/explain/logs.py: 'LC_ALL=C TZ=UTC dmesg → 'TZ=UTC dmesg
def test_the_kernel_s_lines_of_a_host_in_german_are_read(tmp_path: Path) -> None:
    """dmesg prints days and months in the language of the host."""
    tool = tmp_path / "dmesg"
    english, german = "[Sat Nov 21 02:00:01 2026] Killed process 2", "[Sa Nov 21 02:00:01 2026] Killed process 2"
    tool.write_text(f'#!/bin/sh\n[ "$LC_ALL" = C ] && echo "{english}" || echo "{german}"\n')
    tool.chmod(0o755)

    def run(argv: list[str], *_: object, **__: object) -> Result:
        german_host = {"PATH": f"{tmp_path}:/usr/bin:/bin", "LANG": "de_DE.UTF-8"}
        done = subprocess.run(argv, env=german_host, capture_output=True, check=False)
        return Result(done.returncode, done.stdout, done.stderr)

    assert collected(run)["dmesg"] == f"{english}\n".encode()


@pytest.mark.parametrize(
    ("text", "poll"),
    [
        (b'INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK', True),
        (b'INFO:     127.0.0.1:1 - "GET /metrics HTTP/1.1" 200 OK', True),
        (b'INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 503 Service Unavailable', False),
        (b'INFO:     127.0.0.1:1 - "GET /healthy HTTP/1.1" 200 OK', False),
        (b'INFO:     127.0.0.1:1 - "POST /v1/completions HTTP/1.1" 200 OK', False),
    ],
)
@pytest.mark.parametrize("asked", [False, True])
def test_polls_of_the_api_that_went_well_are_left_out(text: bytes, poll: bool, asked: bool) -> None:
    node = SimpleNamespace(host="gpu1")
    feed = ContainerFeed(cast(Any, node), LogRequest(("gpu1",), polls=asked), cast(Any, None), lambda *_: False)
    shown = feed._chosen([(b"2026-11-21T02:00:00.000000000Z", b"[vllm] " + text)], 0)
    assert [line.text.encode() for line in shown] == ([] if poll and not asked else [text])


JOIN = "(Worker pid=12) INFO world_size=2 rank=1 local_rank=0 distributed_init_method=tcp://10.0.0.1:29501"
PRINTED = [JOIN, "(Worker_TP1 pid=12) old", "(APIServer pid=9) api", "(Worker_TP1 pid=12) new", "raw"]


# fault: features/logs/host.py: (rank != asked or stamps(stamp) < self._after) → rank != asked
# fault: features/logs/host.py: self._after, since = self._after or since or 0, None → self._after = self._after or since or 0
@pytest.mark.parametrize(
    ("asked", "since", "shown"),
    [
        (None, None, [(1, JOIN), (1, PRINTED[1]), (None, PRINTED[2]), (1, PRINTED[3]), (None, "raw")]),
        (1, None, [(1, JOIN), (1, PRINTED[1]), (1, PRINTED[3])]),
        (1, 60.0, [(1, PRINTED[3])]),
        (0, None, []),
    ],
)
def test_a_rank_without_ray_is_read_from_the_log_that_it_shares(
    asked: int | None, since: float | None, shown: list[tuple[int | None, str]]
) -> None:
    """Which process a rank is has been printed before the lines that are asked for."""
    now = SYSTEM.clock.time()
    stamps = [datetime.fromtimestamp(now + ago, UTC).isoformat()[:19] for ago in (-120, -90, -30, -20, -10)]
    lines = [f"{at}.000000000Z [vllm] {text}\n".encode() for at, text in zip(stamps, PRINTED, strict=True)]

    def log(*_: object, since: int | None, **__: object) -> Any:
        sent = lines if since is None else lines[2:]
        return nullcontext(iter([b"".join(b"\1\0\0\0" + len(line).to_bytes(4, "big") + line for line in sent)]))

    connection = SimpleNamespace(docker=SimpleNamespace(streams=SimpleNamespace(log=log)), runtime=SYSTEM)
    node = SimpleNamespace(host="gpu1", name="vcluster-lab", connection=connection)
    found: list[Line] = []
    merge = SimpleNamespace(put=lambda _, more, *_seen: found.extend(more))
    request = LogRequest(("gpu1",), rank=asked, since=since)
    ContainerFeed(cast(Any, node), request, cast(Any, merge), lambda *_: False).read(0, None, lambda: None)
    assert [(line.rank, line.text) for line in found] == shown


# fault: features/logs/host.py: self._merge.put(self, lines, seen) → self._merge.put(self, lines)
# fault: features/logs/host.py: self._stamps(fresh[-1][0]) - offset if fresh → self._stamps(fresh[-1][0]) if fresh
def test_how_far_a_log_was_read_is_known_where_no_line_of_it_is_asked_for() -> None:
    line = b"2026-11-21T02:00:00.000000000Z [vllm] x\n"
    pieces = [b"\1\0\0\0" + len(line).to_bytes(4, "big") + line]
    streams = SimpleNamespace(log=lambda *_, **__: nullcontext(iter(pieces)))
    connection = SimpleNamespace(docker=SimpleNamespace(streams=streams), runtime=SYSTEM)
    node = SimpleNamespace(host="gpu1", name="vcluster-lab", connection=connection)
    found: list[tuple[object, ...]] = []
    merge = SimpleNamespace(put=lambda _, *what: found.append(what))
    request = LogRequest(("gpu1",), grep="needle")
    ContainerFeed(cast(Any, node), request, cast(Any, merge), lambda *_: False).read(7, None, lambda: None)
    assert found == [([], int(datetime(2026, 11, 21, 2, tzinfo=UTC).timestamp()) * 10**9 - 7)]


# fault: features/logs/action.py: with merge.waits(log): → if True:
# fault: features/logs/action.py: patience[0].left() → SETTLE_SECONDS
# fault: features/logs/action.py: SETTLE_SECONDS = 45.0 → SETTLE_SECONDS = 60.0
def test_a_head_that_waits_for_the_files_of_workers_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers never begin to send them: it is they for which the lines of the others waited."""
    clock, names = Clock(), ("gpu1", "gpu2", "gpu3")
    fleet = SimpleNamespace(connections=dict.fromkeys(names), addresses={f"10.0.0.{at}": f"gpu{at}" for at in (2, 3)})
    monkeypatch.setattr(logs_action, "Fleet", lambda *_: nullcontext(fleet))
    runtime = Runtime(clock, background=lambda *_: cast(Any, None))
    made: dict[str, Any] = {}

    def logs(_inventory: object, _at: object, _asked: object, *, merge: LogMerge, covered: Any, **_: object) -> Any:
        name = names[len(made)]
        merge.add(name, name)

        def wait(seconds: float) -> None:
            for _ in range(int(seconds)):
                merge.take(0)
                clock.sleep(1)

        settled = SimpleNamespace(is_set=lambda: False, wait=wait, set=lambda: None)
        made[name] = SimpleNamespace(settled=settled, ranks_read=False, covered=covered, run=None, stop=lambda: None)
        return made[name]

    monkeypatch.setattr(logs_action, "HostLogs", logs)
    inventory = make.inventory(3)
    with logs_action._reading(inventory, LogRequest(names), lambda _: None, runtime) as (merge, _):
        for worker in (2, 3):
            assert not made["gpu1"].covered("gpu1", f"10.0.0.{worker}")
        assert sorted(merge.passed_over()) == ["gpu2", "gpu3"]
    assert clock.now == logs_action.SETTLE_SECONDS < MAX_KEPT_SECONDS


OF_BOTH = [
    "[vllm_0] (Worker pid=12) INFO world_size=2 rank=0 local_rank=0 distributed_init_method=tcp://10.0.0.1:29501",
    "[vllm_1] (Worker pid=31) INFO world_size=2 rank=0 local_rank=0 distributed_init_method=tcp://10.0.0.1:29502",
    *("[vllm_0] (APIServer pid=9) api", "[vllm_1] (APIServer pid=29) api", "[vllm_] raw", "[node] node"),
]


# fault: features/logs/lines.py: self.replica is None or → replica is None or
# fault: features/logs/lines.py: if self.rank is not None or self.replica is not None: → if self.rank is not None:
@pytest.mark.parametrize(
    ("asked", "rank", "lines", "shown"),
    [
        (None, None, OF_BOTH, [(0, 0), (1, 0), (0, None), (1, None), (None, None), (None, None)]),
        (1, None, OF_BOTH, [(1, 0), (1, None)]),
        (0, None, OF_BOTH, [(0, 0), (0, None)]),
        (0, 0, OF_BOTH, [(0, 0)]),
        (2, None, OF_BOTH, []),
        (0, None, ["[vllm] of the only one"], [(None, None)]),
        (1, None, ["[vllm] of the only one"], []),
    ],
)
def test_a_line_of_vllm_is_of_a_replica(
    asked: int | None, rank: int | None, lines: list[str], shown: list[tuple[int | None, int | None]]
) -> None:
    request = LogRequest(("gpu1",), rank=rank, replica=asked)
    feed = ContainerFeed(cast(Any, SimpleNamespace(host="gpu1")), request, cast(Any, None), lambda *_: False)
    found = feed._chosen([(b"2026-11-21T02:00:00.000000000Z", line.encode()) for line in lines], 0)
    assert [(line.replica, line.rank) for line in found] == shown


# fault: features/logs/host.py: (state := self._ended()) → (state := "")
# fault: features/logs/action.py: if not any(one.ended for one in hosts): → if hosts:
@pytest.mark.parametrize(("rank", "lines"), [(None, ["the last words"]), (0, [])])
def test_what_docker_has_of_a_node_that_ended_is_shown(
    monkeypatch: pytest.MonkeyPatch, rank: int | None, lines: list[str]
) -> None:
    """Its container runs no program that reads the files of its ranks; why it ended is in its own log."""
    line = b"2026-11-21T02:00:01.000000000Z [node] the last words\n"
    frame = b"\x01\0\0\0" + len(line).to_bytes(4, "big") + line

    def exec_(*_: object, **__: object) -> Any:
        raise CommandFailed("gpu1", "exec: container is not running", exit_code=1, stderr="")

    streams = SimpleNamespace(exec=exec_, log=lambda *_, **__: nullcontext(iter([frame])), clock_offset=lambda: 0)
    docker = SimpleNamespace(
        container_info=lambda _: container({"Id": "1", "State": {**STATE, **TIMES}}), streams=streams
    )
    host = SimpleNamespace(name="gpu1", docker=docker, runtime=SYSTEM)
    fleet = SimpleNamespace(connections={"gpu1": host}, addresses={})
    monkeypatch.setattr(logs_action, "Fleet", lambda *_: nullcontext(fleet))
    monkeypatch.setattr(log_host, "open_node", lambda *_: None)
    shown: list[str] = []
    events: list[str] = []
    found = logs_action.show_logs(
        make.inventory(1),
        LogRequest(("gpu1",), rank=rank),
        lambda event: events.append(event.text),
        lambda lines: shown.extend(line.text for line in lines),
    )
    assert (found, shown) == (bool(lines), lines)
    assert events == ["the node is exited: files that its ranks wrote are read once it runs again: vcluster up"]
