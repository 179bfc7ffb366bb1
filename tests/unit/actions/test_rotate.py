"""What is seen of a new API key at the API itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.batch_api import Api, answer, serving
from vllm_cluster.kernel.clock import SYSTEM_CLOCK, Deadline
from vllm_cluster.kernel.errors import HostError
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
    assert rotate._changed(0.0, seen=False) == "the old one is refused"
    assert rotate._changed(5400.0, seen=False) == "the old one is refused in 1 h 30 min"
    assert rotate._changed(60.0, seen=True) == "the API accepts it; the old one is refused in 1 min"
