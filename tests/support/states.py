"""In which state a test needs the cluster on the sandbox's hosts, and in which order tests need the fewest changes.

A test on real hosts has it in its marker: `@pytest.mark.cluster("up", leaves="empty")`. It then runs alone, too.

| state | what is on the hosts |
|---|---|
| none | it does not matter |
| fresh | nothing of the cluster; before all tests of other states |
| empty | nothing of the cluster |
| up | the sandbox's cluster, nothing served |
| serving | the same, and the model served in float32 |
| plain | the same, and the model served without further flags |
| served | the same, and the model served with any flags, its ranks where they are by default |
| changed | something of the cluster: only `leaves` names it |
| own | the test makes what it needs, and leaves what it likes |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from tests.support.breaks import HOSTS
from tests.support.endpoint import MODEL
from tests.support.hosts import Sandbox

DOWN, UP, STOP = ("down", "--yes", "--wait", "30"), ("up", "--yes", "--wait", "30"), ("stop", "--yes")
PLAIN = ("serve", "--yes", MODEL)
SERVE = (*PLAIN, "--", "--dtype", "float32")
# In this order, where no other is better.
STATES = ("none", "fresh", "empty", "up", "serving", "plain", "served", "own")
LEFT = (*STATES, "changed")
T = TypeVar("T")
Argv = tuple[str, ...]


class Need(NamedTuple):
    """The state that a test needs, and the one that it leaves when it passes."""

    state: str
    leaves: str


def fits(current: str, wanted: str) -> bool:
    """Whether nothing has to be done before a test that wants a state."""
    return wanted in ("none", "own", current) or (wanted == "served" and current in ("serving", "plain"))


def steps(current: str, wanted: str) -> list[Argv]:
    """The commands that bring the cluster from one state to another; after a test that failed, it begins at `own`."""
    if fits(current, wanted):
        return []
    if wanted in ("fresh", "empty"):
        return [] if current in ("fresh", "empty") else [DOWN]
    first: dict[str, list[Argv]] = {"up": [], "serving": [STOP], "plain": [STOP], "own": [DOWN, UP]}
    to_up = first.get(current, [UP])
    served: dict[str, list[Argv]] = {"up": [], "serving": [SERVE]}
    return [*to_up, *served.get(wanted, [PLAIN])]


def ordered(tests: Sequence[T], need: Callable[[T], Need]) -> list[T]:
    """The tests in an order that needs few changes: first all that leave the state as it is, then one that does not."""
    left, done, current = list(tests), list[T](), "fresh"
    while left:
        here = [test for test in left if fits(current, need(test).state) and need(test).state != "own"]
        if not here:
            wanted = {need(test).state for test in left}
            current = next(state for state in STATES if state in wanted)
            here = [test for test in left if need(test).state == current]
        staying = [test for test in here if need(test).leaves == need(test).state]
        if staying:
            done += staying
            left = [test for test in left if test not in staying]
            continue
        # One that needs just this state, and whose end is the beginning of many others.
        ways = [need(test).state for test in left]
        onward = max(here, key=lambda test: (need(test).state == current, ways.count(need(test).leaves)))
        done.append(onward)
        left.remove(onward)
        current = need(onward).leaves
    return done


class Keeper:
    """Knows in which state the hosts are, and brings them to another."""

    def __init__(self, sandbox: Sandbox, state: str) -> None:
        self.sandbox, self.state, self.failed = sandbox, state, False

    def bring(self, wanted: str) -> None:
        """Bring the cluster to a state."""
        if self.failed:
            self.wipe()
        for argv in steps(self.state, wanted):
            self.sandbox.vcluster(*argv).ok()
            self.state = "changed"
        if not fits(self.state, wanted):
            self.state = "plain" if wanted == "served" else wanted

    def wipe(self) -> None:
        """Remove every cluster after a test that failed, another team's too: what it left must fail no other test."""
        for host in HOSTS:
            for kind, remove in (("ps -aq --filter name=^vcluster-", "rm -f -v"), ("volume ls -q", "volume rm -f")):
                script = f"for it in $(docker {kind}); do docker {remove} $it; done"
                self.sandbox.on(host, "sh", "-c", script, root=True)
        self.state, self.failed = "empty", False
