"""A model comes through the laptop to hosts that reach no hub, also after an end of it: real hosts, a real hub."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.figures import record
from tests.support.hosts import Sandbox
from tests.support.models.repositories import PullHub
from tests.support.pulled import CONTAINER, FILES, HOSTS, MODEL, SIZE, expected, has
from tests.support.pulls import forget, hub_for, repository
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.deep, pytest.mark.cluster("up"), pytest.mark.promise("P44")]


@pytest.fixture
def far_hub(sandbox: Sandbox) -> Iterator[PullHub]:
    """A hub that no host reaches, and this machine does."""
    forget(sandbox, MODEL)
    with hub_for(sandbox, {MODEL: repository(FILES)}) as made:
        port = made.url.rpartition(":")[2]
        rule = ("OUTPUT", "-p", "tcp", "--dport", port, "-j", "REJECT")
        for host in HOSTS:
            sandbox.on(host, "iptables", "-I", *rule, root=True)
        try:
            yield made
        finally:
            for host in HOSTS:
                sandbox.on(host, "iptables", "-D", *rule, root=True)
            sandbox.vcluster("pull", "--cancel").ok()
            forget(sandbox, MODEL)


def test_hosts_without_internet_get_a_model_through_the_laptop(sandbox: Sandbox, far_hub: PullHub) -> None:
    operator = sandbox.by(sandbox.inventory)
    operator.environment["HF_ENDPOINT"] = far_hub.url
    cut_off = operator.vcluster("pull", MODEL)
    assert cut_off.code == 4 and "--via local: this machine downloads it" in cut_off.err
    far_hub.repositories[MODEL].gated = True
    gated = operator.vcluster("pull", MODEL, "--via", "local")
    assert gated.code == 3 and f"open {far_hub.url}/{MODEL} and accept its terms" in gated.err
    far_hub.repositories[MODEL].gated = False
    far_hub.rate = 4e6
    process = operator.start("pull", MODEL, "--via", "local")
    # The second host has bytes while the first one still gets them, and neither has the token.
    until(lambda: has(sandbox, "gpu2", SIZE // 4))
    # From here on nothing moves: it must not end before it is killed.
    far_hub.rate = 1e4
    for host in HOSTS:
        assert "token" not in sandbox.docker(host, "exec", CONTAINER, "ls", "/tmp")
    pulls = operator.vcluster("models", "--json").ok().json()["pulls"]
    assert [(pulls[host]["model"], pulls[host]["phase"]) for host in HOSTS] == [
        (MODEL, "downloading"),
        (MODEL, "receiving"),
    ]
    assert all(0 < pulls[host]["pulled_bytes"] < pulls[host]["total_bytes"] == SIZE for host in HOSTS)
    process.kill()
    process.communicate(timeout=60)
    far_hub.rate = 0.0
    done = operator.vcluster("pull", MODEL, "--via", "local").ok()
    assert f"from this machine, which downloads it from {far_hub.url}" in done.err
    again = operator.vcluster("pull", MODEL, "--via", "local").ok()
    assert "Nothing was changed" in again.err
    held = expected(sandbox, far_hub) and far_hub.sent < SIZE + (8 << 20)
    more = f"{(far_hub.sent - SIZE) / 1e6:.1f} MB downloaded again"
    record("P44", "no internet but on the laptop, which is killed once", f"the same as from the hub, {more}", held)
    assert held
