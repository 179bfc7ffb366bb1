"""The debug log keeps every call, in lines of its own, without secrets, and never gets in the way."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import pytest

from vllm_cluster.kernel import debug_log
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import ConnectionLost, TimedOut
from vllm_cluster.kernel.transport.base import Result, Target
from vllm_cluster.kernel.transport.carrier import MAX_REASON, Carrier

TOKEN = "hf_abcdefghijklmnopqrstuvwxyz"


class Canned(Carrier):
    """Answers a command as a test sets it."""

    kind = "fabric"

    def __init__(self, answer: Result | Exception) -> None:
        super().__init__(Target("gpu1", "gpu1"))
        self.answer = answer

    def _run(self, argv: object, deadline: Deadline, stdin: bytes, most: int) -> Result:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def _connect(self, deadline: Deadline) -> None: ...

    def _open_stream(self, argv: object, deadline: Deadline) -> NoReturn:
        raise AssertionError("no test opens one")

    def _forward(self, remote_port: int, local_port: int, remote_host: str) -> NoReturn:
        raise AssertionError("no test forwards one")


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    yield
    debug_log.close()


def run(tmp_path: Path, answer: Result | Exception, *argv: str) -> list[str]:
    """The lines that a command leaves."""
    path = debug_log.to_file(tmp_path, "up", "key")
    assert path
    with suppress(ConnectionLost):
        Canned(answer).run(argv, Deadline.after(1), stdin=TOKEN.encode())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    return path.read_text().splitlines()


# fault: kernel/debug_log.py: : %s -> %s", host, carrier, milliseconds, call.what, call.result → ", host, carrier, milliseconds
def test_a_call_is_one_line_with_its_result_and_without_its_input(tmp_path: Path) -> None:
    [line] = run(tmp_path, Result(0, b"12345", b""), "docker", "info")
    assert " gpu1 fabric " in line
    assert line.endswith(f"ms: run docker info ({len(TOKEN)} bytes in) -> exit 0, 5 bytes out")


def test_a_failure_gives_its_reason_for_any_output_of_a_host(tmp_path: Path) -> None:
    [line] = run(tmp_path, Result(1, b"", b"no\n\x1b[2Jsuch thing"), "ls")
    assert line.endswith(r"exit 1, 0 bytes out: no\n\x1b[2Jsuch thing")
    [line] = run(tmp_path / "lost", ConnectionLost("gpu1", "gone"), "ls")
    assert line.endswith("-> ConnectionLost: gpu1: gone")


def test_a_secret_in_an_argument_is_redacted(tmp_path: Path) -> None:
    [line] = run(tmp_path, Result(0, b"", b""), "env", f"HF_TOKEN={TOKEN}")
    assert TOKEN not in line
    assert "[redacted]" in line


# fault: kernel/debug_log.py: printable(redact(super().format(record))) → printable(redact(super().format(record)[:MAX_LINE]))
@pytest.mark.parametrize("before", range(debug_log.MAX_LINE - 100, debug_log.MAX_LINE, 3))
def test_a_secret_at_the_end_of_a_line_that_is_cut_is_redacted(before: int, tmp_path: Path) -> None:
    [line] = run(tmp_path, Result(0, b"", b""), "echo", "x" * before, TOKEN, "y" * 100)
    assert len(line) == debug_log.MAX_LINE
    assert "hf_" not in line


# fault: kernel/text.py: near = redact(text[-most - _SHAPE :]).strip() → near = redact(text[-most:]).strip()
# fault: kernel/text.py: return _CUT.sub("", near[-most:], count=1) → return near[-most:]
@pytest.mark.parametrize("after", range(MAX_REASON - 60, MAX_REASON, 4))
@pytest.mark.parametrize(("name", "secret"), [("", TOKEN), ("password: ", "Zq8wPz31" * 3), ("", "Zq8wPz31" * 3)])
def test_no_part_of_a_secret_is_left_where_a_reason_is_cut(name: str, secret: str, after: int, tmp_path: Path) -> None:
    """One has its shape from the word before it; of one without a shape the bundle knows the whole, and no part."""
    words = "x " * 9000 + name + secret + " y" * (after // 2)
    [line] = run(tmp_path, Result(1, b"", words.encode()), "ls")
    if name or secret == TOKEN:
        assert secret not in line
    assert secret in line or not any(secret[at : at + 4] in line for at in range(len(secret) - 4))


def test_a_full_log_goes_with_the_one_that_followed_it(tmp_path: Path) -> None:
    folder = tmp_path / debug_log.FOLDER
    folder.mkdir()
    names = [f"20260101T0000{number:02}-up-other-1.log" for number in range(debug_log.MAX_FILES + 1)]
    for name in (*names, *(f"{name}.1" for name in names), "20250101T000000-up-other-1.log.1"):
        (folder / name).write_text("")
    (folder / "notes.txt").write_text("")
    mine = debug_log.to_file(tmp_path, "up", "key")
    assert mine
    # Two more than are kept, and one whose log is gone.
    left = {name for kept in names[2:] for name in (kept, f"{kept}.1")}
    assert {path.name for path in folder.iterdir()} == {*left, mine.name, "notes.txt"}


def test_the_last_runs_are_kept_and_found_by_their_inventory(tmp_path: Path) -> None:
    folder = tmp_path / debug_log.FOLDER
    folder.mkdir()
    for number in range(debug_log.MAX_FILES + 5):
        (folder / f"20260101T0000{number:02}-up-other-1.log").write_text("")
    mine = debug_log.to_file(tmp_path, "up", "key")
    assert len(debug_log.kept(tmp_path)) == debug_log.MAX_FILES
    assert debug_log.kept(tmp_path, "key") == [mine]


# fault: kernel/debug_log.py: str(path.resolve()) if path else os.getpid() → ""
# fault: kernel/debug_log.py: str(path.resolve()) if path else os.getpid() → str(path)
# fault: kernel/debug_log.py: if path else os.getpid() → if path else ""
def test_the_runs_of_another_site_are_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cluster has the same name, and its hosts have, too: another ssh_config alone leads elsewhere."""
    (tmp_path / "link").symlink_to(tmp_path / "a.yaml")
    a, link, b = (debug_log.inventory_key("lab", tmp_path / name) for name in ("a.yaml", "link", "b.yaml"))
    assert a == link != b
    assert a != debug_log.inventory_key("other", tmp_path / "a.yaml")
    # Of two on standard input nothing else differs.
    first = debug_log.inventory_key("lab", None)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert first != debug_log.inventory_key("lab", None)


def test_a_place_that_cannot_be_written_changes_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert debug_log.to_file(tmp_path / "file", "up", "key") is None
    with debug_log.logged("gpu1", "docker", "GET /info"):
        pass
    # Standard error is closed while it is streamed: nothing is printed about that, and the call continues.
    debug_log.to_stderr()
    with debug_log.logged("gpu1", "docker", "GET /version") as call:
        call.result = "200"
    assert "GET /version -> 200" in capfd.readouterr().err


# fault: kernel/transport/carrier.py: if result.returncode in ENDED_BY_TIMEOUT and not deadline.left(): → if False:
# fault: kernel/transport/carrier.py: in ENDED_BY_TIMEOUT and not deadline.left(): → in ENDED_BY_TIMEOUT:
@pytest.mark.parametrize("code", [124, 137])
def test_what_the_host_has_ended_at_the_deadline_did_not_end_in_time(code: int) -> None:
    """The exit code may be here before the wait is over; in time it is the command's own."""
    ended = Canned(Result(code, b"", b""))
    assert ended.run(["true"], Deadline.after(60)).returncode == code
    with pytest.raises(TimedOut, match="`sleep 4` did not end in"):
        ended.run(["sleep", "4"], Deadline.after(0))
