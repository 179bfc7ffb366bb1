"""Commands: what goes in, what comes out, and when they end."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.carriers import Client
from tests.support.sshd import Sshd
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import TimedOut, UsageError
from vllm_cluster.kernel.transport import Kind
from vllm_cluster.kernel.transport.base import MAX_OUTPUT, Target, Transport

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=60)
NASTY = st.sampled_from(
    [
        "",
        "-",
        "--",
        "-rf",
        "a b",
        "a\nb",
        "$HOME",
        "`id`",
        "$(id)",
        "'",
        '"',
        "\\",
        "\\'",
        "*",
        "~",
        "#",
        "!x",
        "a;b",
        "é",
        "💥",
    ]
)


def soon() -> Deadline:
    return Deadline.after(20)


@pytest.mark.parametrize("code", [0, 1, 3, 124, 127, 137, 254, 255])
def test_exit_codes_arrive(host: Transport, code: int) -> None:
    result = host.run(["sh", "-c", f"echo out; echo err >&2; exit {code}"], soon())
    assert (result.returncode, result.stdout, result.stderr) == (code, b"out\n", b"err\n")


def test_a_killed_command_has_an_exit_code(host: Transport) -> None:
    assert host.run(["sh", "-c", "kill -9 $$"], soon()).returncode == 128 + 9


def test_a_missing_command_is_127(host: Transport) -> None:
    result = host.run(["no-such-command", "x"], soon())
    assert result.returncode == 127
    assert b"no-such-command" in result.stderr


def test_bytes_arrive_as_they_are(host: Transport) -> None:
    data = bytes(range(256)) * 300
    assert host.run(["cat"], soon(), stdin=data).stdout == data
    assert host.run(["sh", "-c", "cat >&2"], soon(), stdin=data).stderr == data
    assert host.run(["cat"], soon()).stdout == b""


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=st.lists(TEXT | NASTY, min_size=1, max_size=40))
def test_arguments_arrive_as_they_are(host: Transport, words: list[str]) -> None:
    result = host.run(["printf", "%s\\0", *words], soon())
    assert result.returncode == 0
    assert result.stdout.split(b"\0")[:-1] == [word.encode() for word in words]


def test_arguments_that_are_not_utf8_arrive_too(host: Transport) -> None:
    word = os.fsdecode(b"caf\xe9")
    assert host.run(["printf", "%s", word], soon()).stdout == b"caf\xe9"


@pytest.mark.parametrize("argv", [["echo", "a\0b"], ["echo", "\ud800"], []])
def test_what_no_command_line_can_carry_is_refused(host: Transport, argv: list[str]) -> None:
    before = host.round_trips
    with pytest.raises(UsageError):
        host.run(argv, soon())
    with pytest.raises(UsageError):
        host.open_stream(argv, soon())
    assert host.round_trips == before


def test_64_mb_go_into_a_command_and_no_more_than_is_kept_comes_back(host: Transport) -> None:
    data = os.urandom(1 << 20) * 64
    digest = hashlib.sha256(data).hexdigest()
    result = host.run(["sh", "-c", "tee /dev/stderr | sha256sum"], Deadline.after(60), stdin=data)
    assert result.text.split()[0] == digest
    assert result.stderr == data[:MAX_OUTPUT]
    assert host.run(["cat"], Deadline.after(60), stdin=data).stdout == data[:MAX_OUTPUT]


def test_a_command_may_leave_its_input_unread(host: Transport) -> None:
    assert host.run(["echo", "done"], soon(), stdin=bytes(8 << 20)).stdout == b"done\n"


def test_a_deadline_ends_both_sides(host: Transport, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    started = time.monotonic()
    with pytest.raises(TimedOut, match="sleep 4321"):
        host.run(["sh", "-c", f"sleep 4321 & echo $$ $! > {pids}; wait; : sleep 4321"], Deadline.after(1))
    assert time.monotonic() - started < 3
    gone_by = time.monotonic() + 8
    for pid in pids.read_text().split():
        while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]:
            assert time.monotonic() < gone_by, f"{pid} outlived its deadline"
            time.sleep(0.05)


def test_a_command_that_ignores_the_gentle_signal_is_killed(
    client: Client, shared_server: Sshd, connect: Callable[[Target, Kind], Transport], tmp_path: Path
) -> None:
    client.add("h", shared_server)
    host, mark = connect(client.target("h"), "fabric"), tmp_path / "pid"
    with pytest.raises(TimedOut):
        host.run(["sh", "-c", f"trap '' TERM; echo $$ > {mark}; while :; do sleep 0.1; done"], Deadline.after(0.7))
    pid, gone_by = int(mark.read_text()), time.monotonic() + 8
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < gone_by
        time.sleep(0.05)


def test_round_trips_are_counted(host: Transport) -> None:
    before = host.round_trips
    host.run(["true"], soon())
    host.open_stream(["true"], soon()).close()
    assert host.round_trips == before + 2


def test_a_passed_deadline_starts_nothing_for_long(host: Transport, tmp_path: Path) -> None:
    with pytest.raises(TimedOut):
        host.run(["sleep", "5"], Deadline.after(0))
