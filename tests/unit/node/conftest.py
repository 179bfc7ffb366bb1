from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node.world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()
