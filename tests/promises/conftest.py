from __future__ import annotations

import pytest

from tests.e2e.conftest import Sandbox, pytest_collection_modifyitems, sandbox
from tests.promises.hosts import Normal, stands

__all__ = ["pytest_collection_modifyitems", "sandbox"]


@pytest.fixture(scope="session")
def empty(sandbox: Sandbox) -> dict[str, set[str]]:
    """What stands on the hosts without any cluster."""
    sandbox.vcluster("down", "--wait", "30").ok()
    return stands(sandbox)


@pytest.fixture(scope="session")
def normal(sandbox: Sandbox, empty: dict[str, set[str]]) -> Normal:
    """How long an `up` on empty hosts takes that nobody attacks."""
    sandbox.vcluster("up").ok()  # makes the engine image where it is not there yet
    found = Normal(sandbox)
    found.seconds = found.measure()
    return found
