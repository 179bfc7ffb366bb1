"""What is seen of a new API key at the API itself."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.batch_api import Api, answer, serving
from tests.support.clock import Clock
from tests.support.sim import make
from vllm_cluster.kernel.clock import SYSTEM_CLOCK, Deadline
from vllm_cluster.kernel.errors import HostError, VclusterError
from vllm_cluster.kernel.hosts.runtime import Runtime
from vllm_cluster.kernel.text import when
from vllm_cluster.serving.endpoint import endpoint, rotate
from vllm_cluster.serving.endpoint.detached import State
from vllm_cluster.serving.head import key_id

RUNTIME = cast(Any, SimpleNamespace(after=Deadline.after, clock=SYSTEM_CLOCK))


def node(api: Api, *phases: str) -> Any:
    """A head whose API is that port of this machine, with a replica in each of these phases."""
    rows = [SimpleNamespace(phase=phase, host="127.0.0.1", port=api.port) for phase in phases or ("ready",)]
    opened = SimpleNamespace(local_port=api.port, close=lambda: None)
    transport = SimpleNamespace(forward=lambda *_, **__: opened)
    return SimpleNamespace(
        host="gpu1",
        state_if_running=lambda: SimpleNamespace(replicas=rows),
        connection=SimpleNamespace(transport=transport),
    )


@pytest.mark.parametrize(
    ("keys", "refused"), [(("new",), True), (("new", "old"), False)], ids=["old one refused", "grace"]
)
def test_the_api_is_asked_with_both_keys(keys: tuple[str, ...], refused: bool) -> None:
    with serving(Api(answer, keys=keys)) as api:
        assert rotate._tried(node(api), "new", "old", refused=refused, runtime=RUNTIME)


@pytest.mark.parametrize("keys", [("new", "old"), ("old",), ()])
def test_an_api_that_keeps_to_the_old_key_fails_the_call(
    keys: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rotate, "TRY_SECONDS", 0.0)
    with serving(Api(answer, keys=keys)) as api, pytest.raises(HostError, match="the new key is written, and the API"):
        rotate._tried(node(api), "new", "old", refused=True, runtime=RUNTIME)


# fault: serving/endpoint/rotate.py: if one.phase == "ready"), None) if state → if True), None) if state
@pytest.mark.parametrize("phases", [("loading",), ("backoff", "loading")])
def test_only_a_ready_model_proves_that_a_key_is_accepted(phases: tuple[str, ...]) -> None:
    with serving(Api(answer)) as api:
        assert not rotate._tried(node(api, *phases), "new", "old", refused=True, runtime=RUNTIME)


# fault: serving/endpoint/rotate.py: for one in state.replicas if → for one in state.replicas[:1] if
def test_the_replica_that_answers_while_another_starts_proves_it_too() -> None:
    """The result had "no model is ready" in the middle of a roll."""
    with serving(Api(answer, keys=("new",))) as api:
        assert rotate._tried(node(api, "loading", "ready"), "new", "old", refused=True, runtime=RUNTIME)


# fault: serving/endpoint/rotate.py: {when(now + grace)} → {when(now)}
def test_the_result_shows_until_when_an_old_key_is_answered() -> None:
    every = "Give every client the new one: vcluster endpoint --key"
    begun = "answers that have begun are not cut off"
    assert rotate._of_old_keys(0.0, 0.0, seen=False) == (
        f"Clients with the old one get 401 from now on; {begun} (no model is ready, so no key was tried). {every}"
    )
    assert rotate._of_old_keys(1.8e9, 5400.0, seen=True) == (
        f"Clients with the old one are answered until {when(1.8e9 + 5400)}, for 1 h 30 min, then get 401"
        f" (the API was tried with both keys). {every}"
    )
    # A head may have any clock.
    assert "answered until ?, for 1 min" in rotate._of_old_keys(1e18, 60.0, seen=True)


# fault: serving/endpoint/rotate.py: port_for(inventory, cache, found, runtime=runtime) → pass
# fault: serving/endpoint/rotate.py: _renew(inventory, cache, emit, old=old, new=None) → pass
# fault: serving/endpoint/rotate.py: old=old, new=None) → old=old, new=found)
@pytest.mark.parametrize("follows", [True, False])
def test_a_new_key_goes_to_an_end_that_has_it_alone(
    follows: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The tunnel led to another machine with the old key, and Prometheus brought the new one there."""
    inventory, clock, given = make.inventory(1), Clock(), list[str | None]()
    old, new = (key_id(inventory, key, Runtime()) for key in ("old", "new"))
    note = SimpleNamespace(port=1, key_id=old)
    noted = SimpleNamespace(port=1, key_id=new)
    monkeypatch.setattr(rotate, "rotate", lambda *_, **__: ("new", "old"))
    monkeypatch.setattr(State, "running", lambda _: noted if follows and clock.now > 2 else note)
    hook = SimpleNamespace(given=lambda: [lambda *_, old, new: given.append(new)])
    monkeypatch.setattr(rotate, "KEY_CHANGED", hook)

    def ask() -> str:
        return rotate.new_key(inventory, tmp_path, lambda _: None, grace=0.0, runtime=Runtime(clock))

    if follows:
        assert (ask(), given) == ("new", ["new"])
        return
    with pytest.raises(VclusterError, match="the API key is new, and is not shown here: the tunnel in the") as refused:
        ask()
    assert given == [None]
    assert refused.value.hint == f"{endpoint.AGAIN}\nvcluster endpoint --key"
