"""Secrets by reference: what is found, and that errors never quote it."""

from __future__ import annotations

import os
import sys
import time
import traceback
from pathlib import Path

import pytest

from vllm_cluster.kernel.errors import InventoryError
from vllm_cluster.kernel.inventory.model import SecretRef
from vllm_cluster.kernel.inventory.secrets import COMMAND_SECONDS, read_secret

TOKEN = "canary-7f3a"


def _read(reference: str, base: Path, **environ: str) -> str:
    ref = SecretRef.model_validate(reference)
    return read_secret(ref, base=base, environ={"PATH": os.environ["PATH"], **environ})


def test_from_the_environment(tmp_path: Path) -> None:
    assert _read("env:HF", tmp_path, HF=TOKEN) == TOKEN


def test_from_a_file_beside_the_inventory_or_in_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    (tmp_path / "home" / "token").write_text(f"{TOKEN}-home\r\n")
    assert _read("file:token", tmp_path) == TOKEN
    assert _read("file:~/token", tmp_path) == f"{TOKEN}-home"


def test_from_a_command_without_a_shell(tmp_path: Path) -> None:
    assert _read(f"cmd:printf '%s\\n' '{TOKEN} $HOME;x'", tmp_path) == f"{TOKEN} $HOME;x"
    assert _read("cmd:pwd", tmp_path) == str(tmp_path)


def test_a_command_gets_no_standard_input(tmp_path: Path) -> None:
    with pytest.raises(InventoryError, match=r"^cmd:cat: is empty$"):
        _read("cmd:cat", tmp_path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "is empty"),
        ("\n", "is empty"),
        (f"{TOKEN}\n{TOKEN}\n", "gives more than one line"),
        (f"{TOKEN}\0", "gives more than one line, or unprintable"),
        (f" {TOKEN}\n", "has spaces around the token"),
        (TOKEN * 10_000, "gives far more than a token"),
    ],
)
def test_what_no_token_can_be(content: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(content)
    with pytest.raises(InventoryError, match=f"^file:token: {reason}") as caught:
        _read("file:token", tmp_path)
    assert TOKEN not in "".join(traceback.format_exception(caught.value))


def test_bytes_that_do_not_decode_are_refused(tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(TOKEN.encode() + b"\xff")
    with pytest.raises(InventoryError, match=r"^file:token: gives bytes that are not text$") as caught:
        _read("file:token", tmp_path)
    assert TOKEN not in "".join(traceback.format_exception(caught.value))


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InventoryError, match=r"^env:HF: this variable is not set$"):
        _read("env:HF", tmp_path)
    with pytest.raises(InventoryError, match=r"^file:no: cannot be read: No such file or directory$"):
        _read("file:no", tmp_path)
    with pytest.raises(InventoryError, match=r"^cmd:no-such-tool-here x: the command cannot be started: No such file"):
        _read("cmd:no-such-tool-here x", tmp_path)


# fault: kernel/inventory/secrets.py: if path.exists() and not path.is_file(): → if not path:
def test_a_pipe_without_a_writer_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InventoryError, match=r"^file:pipe: is not a plain file$"):
        _read("file:pipe", tmp_path)


# fault: kernel/inventory/secrets.py: failed with exit code {process.returncode → failed: {bytes(found)!r
def test_a_failing_command_is_reported_and_its_output_is_not(tmp_path: Path) -> None:
    script = tmp_path / "tool"
    script.write_text(f"import sys\nprint({TOKEN!r})\nsys.exit(3)\n")
    with pytest.raises(InventoryError, match=r"the command failed with exit code 3$") as caught:
        _read(f"cmd:{sys.executable} tool", tmp_path)
    assert TOKEN not in "".join(traceback.format_exception(caught.value))


def test_a_command_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm_cluster.kernel.inventory.secrets.COMMAND_SECONDS", 0.2)
    script = tmp_path / "tool"
    script.write_text(f"import time\nprint({TOKEN!r}, flush=True)\ntime.sleep(60)\n")
    with pytest.raises(InventoryError, match=r"the command gave no answer in 0 s$") as caught:
        _read(f"cmd:{sys.executable} tool", tmp_path)
    assert TOKEN not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "command",
    [
        f"yes {TOKEN}",
        # The program that prints is no longer of the command, and goes with its pipe.
        f"sh -c 'yes {TOKEN} & yes {TOKEN}'",
    ],
)
def test_a_command_that_prints_without_end_is_ended_at_once(command: str, tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(InventoryError, match=r": gives far more than a token$") as caught:
        _read(f"cmd:{command}", tmp_path)
    assert time.monotonic() - began < COMMAND_SECONDS / 3
    assert TOKEN not in "".join(traceback.format_exception(caught.value)).replace(command, "")


def test_a_silent_program_that_a_command_leaves_behind_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vllm_cluster.kernel.inventory.secrets.COMMAND_SECONDS", 0.5)
    began = time.monotonic()
    with pytest.raises(InventoryError, match=r"the command gave no answer in 0 s$"):
        _read(f"cmd:sh -c 'sleep 20 & echo {TOKEN}'", tmp_path)
    assert time.monotonic() - began < 10
