"""What is seen of a new API key at the API itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.batch_api import Api, answer, serving
from vllm_cluster.kernel.clock import SYSTEM_CLOCK, Deadline
from vllm_cluster.kernel.errors import HostError
from vllm_cluster.kernel.text import when
from vllm_cluster.serving.endpoint import rotate

RUNTIME = cast(Any, SimpleNamespace(after=Deadline.after, clock=SYSTEM_CLOCK))


def node(api: Api, phase: str = "ready") -> Any:
    """A head whose API is that port of this machine."""
    served = SimpleNamespace(phase=phase, host="127.0.0.1", port=api.port)
    opened = SimpleNamespace(local_port=api.port, close=lambda: None)
    transport = SimpleNamespace(forward=lambda *_, **__: opened)
    return SimpleNamespace(
        host="gpu1",
        state_if_running=lambda: SimpleNamespace(serving=served),
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


def test_only_a_ready_model_proves_that_a_key_is_accepted() -> None:
    with serving(Api(answer)) as api:
        assert not rotate._tried(node(api, "loading"), "new", "old", refused=True, runtime=RUNTIME)


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
