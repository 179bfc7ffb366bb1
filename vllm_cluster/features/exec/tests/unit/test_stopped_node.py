"""A command for a node that does not run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from vllm_cluster.features.exec.node_exec import NodeCommand
from vllm_cluster.kernel.errors import NodeMissing
from vllm_cluster.kernel.facts.docker_objects import ContainerInfo
from vllm_cluster.kernel.node.handle import NodeHandle


# fault: features/exec/node_exec.py: node.ensure_running() → node.state()
@pytest.mark.parametrize(
    ("state", "fix"), [("exited", "vcluster up\nvcluster explain"), ("paused", "on gpu1: docker unpause vcluster-lab")]
)
def test_it_is_refused_with_what_starts_the_node(state: str, fix: str) -> None:
    """It was a failure with a log, as if the command had run."""
    there = ContainerInfo("1", state, "2026-01-01T00:00:00Z", exit_code=137)
    docker = SimpleNamespace(container_info=lambda _: there)
    node = NodeHandle(cast(Any, SimpleNamespace(name="gpu1", docker=docker)), "lab")
    with pytest.raises(NodeMissing, match=f"gpu1: the node .*{state}") as refused:
        NodeCommand(node, ["nproc"], None, {}).run(lambda *_: None, None)
    assert (refused.value.exit_code, refused.value.hint) == (3, fix)
