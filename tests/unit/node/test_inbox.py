"""What the head's program reads of a request and of the one before it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vllm_cluster.serving.node.kept_order import Inbox
from vllm_cluster.wire.order import Order


# fault: serving/node/kept_order.py: return read_order(beginning(self._accepted, MAX_BYTES + 1), ACCEPTED) → return Order(9)
@pytest.mark.parametrize("content", ["[]", "7", '{"epoch": "x"}', '{"epoch": []}', "[" * 100_000], ids=range(5))
def test_a_damaged_record_of_what_was_accepted_blocks_no_request(tmp_path: Path, content: str) -> None:
    inbox = Inbox(tmp_path)
    (tmp_path / "accepted.json").write_text(content)
    (tmp_path / "wanted.json").write_text('{"v": 1, "epoch": 3, "serve": null}')
    assert (inbox.news(), inbox.error) == (Order(3), None)
    assert json.loads((tmp_path / "accepted.json").read_text())["epoch"] == 3
