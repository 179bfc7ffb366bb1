"""Many hosts behind one real sshd with OpenSSH's own limits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.many.cluster import Cluster, Played
from tests.many.conftest import FEW_FILES, MOST, SOME
from tests.many.driven import drive
from tests.support.figures import record
from tests.support.sshd import Sshd
from vllm_cluster.kernel.transport import Kind

pytestmark = pytest.mark.alone

LIMITS = ("MaxStartups 10:30:100", "MaxSessions 10")


@pytest.fixture
def bastion(key: Path, tmp_path: Path) -> Iterator[Sshd]:
    """A jump host as OpenSSH comes."""
    server = Sshd(tmp_path / "bastion", key, options=LIMITS).start()
    yield server
    server.stop()


@pytest.mark.promise("P22")
@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("fabric", SOME),
        pytest.param("openssh", SOME, marks=pytest.mark.deep),
        pytest.param("fabric", MOST, marks=pytest.mark.deep),
    ],
)
def test_hosts_behind_a_bastion_are_all_reached(
    kind: Kind, count: int, bastion: Sshd, key: Path, tmp_path: Path
) -> None:
    cluster = Cluster(
        tmp_path / "laptop",
        [Played(n) for n in range(count)],
        key,
        ssh={"transport": kind, "jump": "bastion"},
        lines=["Host bastion", "HostName 127.0.0.1", f"Port {bastion.port}"],
        known=bastion.known_line(),
    )
    with cluster.played(up=True):
        run = drive(cluster, "status", prefix=FEW_FILES)
    log = (bastion.folder / "log").read_text()
    logins = log.count("Accepted publickey")
    passed = run.code == 0 and logins == 1 and "MaxStartups" not in log
    record("P22", f"{count} hosts behind one bastion, {kind}", f"0 failures, {logins} login, {run.figure}", passed)
    assert passed, (run.code, logins, run.err[-2000:])
