"""A node that does not run, as a command that only asks names it: its state and the fix, without its log."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.sim import make
from vllm_cluster.kernel.docker.parse import container
from vllm_cluster.kernel.errors import NodeMissing
from vllm_cluster.kernel.node.handle import NodeHandle
from vllm_cluster.serving.head import ready

TIMES = {"StartedAt": "2026-11-21T02:00:00.5Z", "FinishedAt": "2026-11-21T02:00:02Z"}


def head(status: str | None, code: int = 0, *, memory: bool = False) -> Any:
    """A head whose container has this state."""
    state = {"Status": status, "Running": status == "running", "ExitCode": code, "OOMKilled": memory, **TIMES}
    found = container({"Id": "1", "State": state}) if status else None
    return SimpleNamespace(name="gpu1", docker=SimpleNamespace(container_info=lambda _: found))


@pytest.mark.parametrize(
    ("there", "text", "fix"),
    [
        (head("exited", 137), "gpu1: the node does not run: exited with code 137", "vcluster up\nvcluster explain"),
        (
            head("exited", 137, memory=True),
            "gpu1: the node does not run: exited with code 137, killed for lack of memory",
            "vcluster up\nvcluster explain",
        ),
        (head("paused"), "gpu1: the node is paused", "on gpu1: docker unpause vcluster-lab"),
        (head(None), "gpu1: the node is missing", "vcluster up"),
    ],
)
def test_a_node_that_does_not_run_is_named_with_its_fix(there: Any, text: str, fix: str) -> None:
    """Twenty lines of an access log hid that the node had ended."""
    with pytest.raises(NodeMissing) as caught:
        ready(make.inventory(1), there)
    assert (caught.value.message, caught.value.hint, caught.value.exit_code) == (text, fix, 3)


def test_a_node_that_runs_is_left_as_it_is() -> None:
    assert NodeHandle(cast(Any, head("running")), "lab").ensure_running().running
