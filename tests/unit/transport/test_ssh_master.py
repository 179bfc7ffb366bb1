"""The folder of ssh's socket."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.transport import ssh_master


# fault: kernel/transport/ssh_master.py: if theirs is None and len( → if len(
# fault: kernel/transport/ssh_master.py: folder.rmdir() → pass
def test_the_socket_is_not_where_others_may_put_one_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a TMPDIR without the sticky bit another user renamed its folder, and got every command."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    monkeypatch.setattr(ssh_master, "MAX_SOCKET_PATH", 500)
    folder = ssh_master._private_folder()
    assert (folder.parent, list(shared.iterdir())) == (Path("/tmp").resolve(), [])
    folder.rmdir()
    shared.chmod(0o1777)
    folder = ssh_master._private_folder()
    assert (folder.parent, folder.stat().st_mode & 0o777) == (shared.resolve(), 0o700)


# fault: kernel/transport/ssh_master.py: if theirs: → if False:
def test_without_a_folder_for_the_socket_the_one_of_others_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_master, "changed_by_others", lambda _: tmp_path)
    with pytest.raises(UsageError, match=f"other users may change what is in {tmp_path}") as refused:
        ssh_master._private_folder()
    assert "export TMPDIR=FOLDER" in (refused.value.hint or "")
