"""A pytest plugin: the sandbox, made once for all tests on real hosts, in the state that each test needs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.support.breaks import Normal, everything
from tests.support.hosts import Sandbox
from tests.support.paths import SANDBOX, VCLUSTER
from tests.support.states import LEFT, STATES, Keeper, Need, ordered

# By reference in the inventory of all tests, so that there is something to leak.
HF_TOKEN = "hf_canary0123456789canary"
KEEPER = pytest.StashKey[Keeper]()


def need(item: pytest.Item) -> Need:
    """The state that a test needs and leaves, by its marker; without one it makes its own."""
    marker = item.get_closest_marker("cluster")
    state = str(marker.args[0]) if marker else "own"
    found = Need(state, str(marker.kwargs.get("leaves", state)) if marker else "own")
    if found.state not in STATES or found.leaves not in LEFT:
        raise pytest.UsageError(f"{item.nodeid}: there is no state {found}; see tests/support/states.py")
    return found


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the tests on real hosts; the first one pays for building the sandbox, which takes minutes."""
    real = [item for item in items if item.get_closest_marker("e2e")]
    for item in real:
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(2400))
    items[:] = [item for item in items if item not in real] + ordered(real, need)


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """Two hosts with two logical GPUs each; left running when VCLUSTER_KEEP_SANDBOX is set."""
    argv = [str(VCLUSTER), "sandbox", "up", "--dir", str(SANDBOX)]
    subprocess.run(argv, check=True, timeout=2400)
    inventory = Sandbox(SANDBOX).rewrite(Path("cluster.yaml"), add="hf_token: env:SANDBOX_HF_TOKEN\n")
    found = Sandbox(SANDBOX, {"SANDBOX_HF_TOKEN": HF_TOKEN, "VCLUSTER_INVENTORY": str(inventory)})
    Keeper(found, "own").wipe()  # what an earlier run left, also under other names
    yield found
    if not os.environ.get("VCLUSTER_KEEP_SANDBOX"):
        subprocess.run([VCLUSTER, "sandbox", "down", "--dir", str(SANDBOX)], check=True, timeout=300)


@pytest.fixture(scope="session")
def empty(sandbox: Sandbox) -> dict[str, set[str]]:
    """What is on the hosts without any cluster, before any test."""
    return everything(sandbox)


@pytest.fixture(scope="session")
def keeper(sandbox: Sandbox, empty: dict[str, set[str]]) -> Keeper:
    """Who knows in which state the hosts are."""
    return Keeper(sandbox, "fresh")


@pytest.fixture(autouse=True)
def cluster_in_its_state(request: pytest.FixtureRequest) -> None:
    """The hosts are as the test's marker asks for; until it has passed, it is not known how they are.

    A test for which they do not matter makes none.
    """
    item = request.node
    if item.get_closest_marker("e2e") and need(item).state != "none":
        keeper: Keeper = request.getfixturevalue("keeper")
        keeper.bring(need(item).state)
        if need(item).leaves != "none":
            item.stash[KEEPER] = keeper


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Keep in which state a test has left the hosts."""
    keeper = item.stash.get(KEEPER, None)
    if keeper:
        keeper.state, keeper.failed = "own", True
    yield
    if keeper:
        keeper.state, keeper.failed = need(item).leaves, False


@pytest.fixture
def cluster(sandbox: Sandbox) -> Sandbox:
    """The sandbox in the state that the test's marker names."""
    return sandbox


@pytest.fixture(scope="session")
def normal(sandbox: Sandbox, keeper: Keeper) -> Normal:
    """How long an `up` on empty hosts takes that are not attacked."""
    if not sandbox.docker("gpu2", "images", "-q", "vcluster-node"):
        keeper.bring("up")  # it makes the image, once
    found = Normal(sandbox)
    found.seconds = found.measure()
    keeper.state = "up"
    return found
