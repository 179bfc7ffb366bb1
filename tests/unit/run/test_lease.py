"""Who holds the lease is said, or asked again in the moment in which nobody has signed."""

from __future__ import annotations

import fcntl
import threading
from pathlib import Path

import pytest

from vllm_cluster.core.errors import Locked
from vllm_cluster.run import lease
from vllm_cluster.run.fleet import Link
from vllm_cluster.run.lease import Lease
from vllm_cluster.transport.base import Target
from vllm_cluster.transport.local import LocalTransport


@pytest.fixture
def taken(tmp_path: Path) -> Lease:
    """A lease on a file that somebody has locked, and has not signed."""
    made = Lease(Link("gpu1", LocalTransport(Target("gpu1", "gpu1"))), "lab", "up")
    made._file = str(tmp_path / "lock")
    return made


def test_who_has_not_signed_yet_is_asked_again(taken: Lease) -> None:
    file = Path(taken._file)
    with file.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        threading.Timer(0.3, lambda: file.write_text("ann@laptop (vcluster up) since now\n")).start()
        with pytest.raises(Locked, match="is being changed by ann@laptop"):
            taken.acquire()


def test_who_never_signs_is_waited_for_in_vain(taken: Lease, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "UNCLEAR_SECONDS", 0.3)
    with Path(taken._file).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(Locked, match="somebody who does not say who"):
            taken.acquire()


def test_what_was_just_let_go_is_taken(taken: Lease) -> None:
    with Path(taken._file).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        threading.Timer(0.3, held.close).start()
        taken.acquire()
    taken.release()
