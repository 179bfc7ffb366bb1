"""What the front writes of itself: the newest is what stays."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from vllm_cluster.serving.node import front
from vllm_cluster.serving.node.front_replica import session
from vllm_cluster.serving.node.front_settings import FrontSettings


# fault: serving/node/front.py: async with self._writing: → if True:
def test_of_two_writes_the_newer_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is held up until the second has come, or for as long as that takes to be refused."""
    written: list[int] = []
    second = threading.Event()

    def write(_: Path, content: dict[str, Any]) -> bool:
        if content["requests"] == 1:
            second.wait(0.5)
        written.append(content["requests"])
        second.set()
        return True

    monkeypatch.setattr(front, "write_whole", write)

    async def both() -> None:
        async with session() as client:
            settings = FrontSettings(("127.0.0.1", 0), tmp_path / "routes", tmp_path / "status", "")
            made = front.Front(settings, client, client)
            made._count(200)
            first = asyncio.ensure_future(made.write_status())
            await asyncio.sleep(0)
            made._count(200)
            await asyncio.gather(first, made.write_status())

    asyncio.run(both())
    assert written == [1, 2]
