"""What answers a batch may be another's: it gets no key, sends no prompt elsewhere, and ends no other answer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.batch_api import Api, answer, serving
from vllm_cluster.features.batch.on_head.client import ApiClient
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


# fault: features/batch/on_head/client.py: allow_redirects=False) → allow_redirects=True)
@pytest.mark.parametrize("status", [302, 307])
def test_a_batch_goes_where_no_answer_sends_it(status: int, tmp_path: Path) -> None:
    """An answer is that of a replica, which may have another host by now: prompts would leave for any address."""
    with serving(Api(answer)) as other, serving(Api(lambda *_: (status, {}))) as api:
        api.headers["Location"] = f"http://127.0.0.1:{other.port}/v1/models"
        found = run(tmp_path, api, ["p0"])
    assert [row["error"]["message"] for row in found.errors] == [f"HTTP {status}"]
    assert (other.looked, dict(other.asked)) == (0, {})


# fault: features/batch/on_head/progress.py: 0 <= found <= MAX_TOKENS → 0 <= found
@pytest.mark.parametrize("number", [pytest.param(10**4000, id="long"), 2**53 + 1, -5, 1e308, True, "5"])
def test_a_number_of_tokens_that_no_answer_has_is_not_counted(number: object, tmp_path: Path) -> None:
    """One reply would end the batch of all others, and again each time that it is started."""
    usage = {"prompt_tokens": number, "completion_tokens": 3}
    reply = {"id": "c", "model": "m", "choices": [{"text": "P"}], "usage": usage}
    with serving(Api(lambda *_: (200, reply))) as api:
        found = run(tmp_path, api, ["p0", "p1"])
    assert (found.meter.answered, found.meter.prompt_tokens, found.meter.tokens) == (2, 0, 6)


# fault: features/batch/on_head/client.py: except RecursionError: → except MemoryError:
def test_a_list_of_models_that_is_nested_ends_no_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nested(*_: object) -> tuple[int, bytes]:
        return 200, b"[" * 100_000

    monkeypatch.setattr(ApiClient, "get", nested)
    with serving(Api(answer)) as api, pytest.raises(BatchProblem, match="nested too deep"):
        run(tmp_path, api, ["p0"], wait=0.0)
