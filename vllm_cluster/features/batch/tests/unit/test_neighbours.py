"""Other users of the head: who listens at the API's port once its front has ended gets no key and no prompts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.batch_api import Api, answer, serving
from vllm_cluster.features.batch.on_head.lines import BatchProblem
from vllm_cluster.features.batch.tests.runs import run


# fault: features/batch/on_head/client.py: if not is_own_listener(at.host, at.port): → if False:
# fault: features/batch/on_head/client.py: guard.on_connection_create_start.append(self._ensure_own) → pass
def test_a_batch_asks_no_program_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch looks at what the head serves only where it gets no answer."""
    other = os.getuid() + 1
    with serving(Api(answer)) as api:
        with monkeypatch.context() as patch:
            patch.setattr(os, "getuid", lambda: other)
            with pytest.raises(BatchProblem, match=r"has not answered for 0 s: .*no program of this user listens at"):
                run(tmp_path, api, ["p0"], wait=0.0)
        assert (api.looked, dict(api.asked)) == (0, {})
        assert run(tmp_path, api, ["p0"]).texts == {"r0": "P0"}
