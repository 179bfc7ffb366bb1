"""A pytest plugin: the sandbox, made once for all tests on real hosts, and what is on it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from tests.support.breaks import Normal, stands
from tests.support.hosts import Sandbox
from tests.support.paths import SANDBOX, VCLUSTER


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test pays for building the sandbox, which takes minutes on a new machine."""
    for item in items:
        if item.get_closest_marker("e2e"):
            item.add_marker(pytest.mark.timeout(2400))


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """Two hosts with two logical GPUs each; left running when VCLUSTER_KEEP_SANDBOX is set."""
    argv = [str(VCLUSTER), "sandbox", "up", "--dir", str(SANDBOX)]
    subprocess.run(argv, check=True, timeout=2400)
    found = Sandbox(SANDBOX)
    found.vcluster("down", "--yes", "--wait", "30").ok()
    yield found
    if not os.environ.get("VCLUSTER_KEEP_SANDBOX"):
        subprocess.run([VCLUSTER, "sandbox", "down", "--dir", str(SANDBOX)], check=True, timeout=300)


@pytest.fixture(scope="session")
def empty(sandbox: Sandbox) -> dict[str, set[str]]:
    """What stands on the hosts without any cluster."""
    sandbox.vcluster("down", "--yes", "--wait", "30").ok()
    return stands(sandbox)


@pytest.fixture(scope="session")
def normal(sandbox: Sandbox, empty: dict[str, set[str]]) -> Normal:
    """How long an `up` on empty hosts takes that nobody attacks."""
    sandbox.vcluster("up").ok()  # makes the engine image where it is not there yet
    found = Normal(sandbox)
    found.seconds = found.measure()
    return found
