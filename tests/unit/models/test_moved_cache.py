"""Where a host's cache is read once the inventory has moved it, and the node has the one before."""

from __future__ import annotations

import pytest

from tests.support import world
from vllm_cluster.kernel.docker.temporary import TemporaryContainer
from vllm_cluster.kernel.hosts.program import InNode
from vllm_cluster.kernel.models.cache import locate_cache


# fault: kernel/models/cache.py: and not reads and sees_cache(node, inventory.model_cache) → and not reads
@pytest.mark.parametrize(("cache", "place"), [(None, InNode), ("/data/new", TemporaryContainer)])
def test_a_pull_before_up_looks_into_the_new_cache(cache: str | None, place: type) -> None:
    """The node has no such folder: a pull into the new one would find nothing there, however often it ran."""
    words = world.inventory(2)
    _, facts = world.converged(words)
    assert isinstance(
        locate_cache(words.model_copy(update={"model_cache": cache or words.model_cache}), facts["gpu1"]), place
    )
