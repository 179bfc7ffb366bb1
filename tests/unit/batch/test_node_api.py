"""The API as a batch on the head sees it: its key while the file is replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllm_cluster.batch.client import ApiClient
from vllm_cluster.batch.node_api import NodeApi


@pytest.mark.parametrize(
    ("text", "key"),
    [("sk-a", "sk-a"), ("#vcluster-keys\nsk-a id\n", "sk-a"), ("#vcluster-keys\n", ""), ("", ""), (None, "")],
)
def test_a_key_file_that_is_not_whole_has_no_key(text: str | None, key: str, tmp_path: Path) -> None:
    path = tmp_path / "key"
    if text is not None:
        path.write_text(text)
    assert NodeApi(ApiClient(1.0), tmp_path, path, 0.0, lambda _: None)._key() == key
