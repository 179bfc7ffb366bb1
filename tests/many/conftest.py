"""How many hosts there are, and the key that all of them accept."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.depth import cases
from tests.support.sshd import keygen, require_sshd

# The full attack takes minutes; without it, what costs most runs on fewer hosts.
MOST = 256
SOME = cases(32, 32, MOST)
MEMORY_MB = 200
# Fewer than that many hosts need; macOS gives a process 256 unless it asks for more.
FEW_FILES = ("sh", "-c", 'ulimit -Sn 128; exec "$@"', "sh")


@pytest.fixture(scope="session")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's key."""
    require_sshd()
    return keygen(tmp_path_factory.mktemp("user") / "id_ed25519")
