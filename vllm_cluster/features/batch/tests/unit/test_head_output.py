"""The rows that a batch's program finds on the head: what a loss of power left there, and of which model they are."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.batch_api import KEY, Api, Reply, answer, serving
from vllm_cluster.features.batch.on_head import client
from vllm_cluster.features.batch.on_head.lines import BatchProblem, Place, answer_row, checksum, error_row, parse
from vllm_cluster.features.batch.on_head.row_file import RowFile
from vllm_cluster.features.batch.on_head.runner import FAILED, Job
from vllm_cluster.features.batch.tests.runs import load, state_of

RAWS = [json.dumps({"custom_id": f"r{at}", "url": "/v1/completions", "body": {"prompt": f"p{at}"}}) for at in range(3)]
PLACES = [Place(at, checksum(raw.encode())) for at, raw in enumerate(RAWS, 1)]
ROWS = [
    answer_row(parse(raw.encode(), place, "m", {}), "cmpl", b'{"model": "m", "choices": [{"text": ""}]}')
    for raw, place in zip(RAWS, PLACES, strict=True)
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That of a batch of three requests."""
    monkeypatch.setattr(client, "POLL_SECONDS", 0.01)
    (tmp_path / "key").write_text(KEY)
    monkeypatch.setenv("VCLUSTER_API_KEY_FILE", str(tmp_path / "key"))
    (tmp_path / "batch").mkdir()
    (tmp_path / "batch" / "input").write_text("".join(f"{at} {raw}\n" for at, raw in enumerate(RAWS, 1)))
    return tmp_path / "batch"


def answered(folder: Path, api: Api) -> int:
    """Run the batch's program; its exit code."""
    wanted = {"fields": {}, "concurrency": 2, "seconds": 30.0, "wait": 5.0, "models": []}
    return Job(folder, {**wanted, "state": str(state_of(folder.parent, api))}).run()


# fault: features/batch/on_head/runner.py: "output.jsonl", own=True) → "output.jsonl")
@pytest.mark.parametrize(
    "left",
    [
        b"\0" * 4096,
        ROWS[0][:15],
        ROWS[0][:30],
        b"\0\n",
        ROWS[0] + b"\0" * 4096,
        ROWS[0] + b"\0" * 9 + ROWS[1],
        b"x" * 99,
    ],
    ids=["zeros", "within the id", "behind it", "a line of a zero", "a row and zeros", "zeros in between", "another"],
)
def test_what_a_loss_of_power_left_ends_no_batch(left: bytes, folder: Path) -> None:
    """Each command after it failed, until a person removed the batch."""
    (folder / "output.jsonl").write_bytes(left)
    with serving(Api(answer)) as api:
        assert answered(folder, api) == 0
    assert sorted(row["custom_id"] for row in load(folder / "output.jsonl")) == ["r0", "r1", "r2"]
    assert sum(api.asked.values()) == (2 if left.startswith(ROWS[0]) else 3)


def test_an_output_of_zeros_on_a_laptop_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(b"\0" * 4096)
    with closing(RowFile(path)) as rows, pytest.raises(BatchProblem, match="not a row that vcluster batch writes"):
        [*rows.rows()]
    assert path.read_bytes() == b"\0" * 4096


# fault: features/batch/on_head/runner.py: models = models or {model_of(row)} - {""} → pass
@pytest.mark.parametrize("before", [b"", error_row(PLACES[1], "r1", 400, "refused", "why")])
def test_a_program_that_starts_again_is_bound_to_the_model_of_its_answers(before: bytes, folder: Path) -> None:
    """No laptop had fetched them, so nothing bound it: answers of two models came into one output."""
    (folder / "output.jsonl").write_bytes(before + ROWS[0])

    def reply(_prompt: str, _times: int) -> Reply:
        return 200, {"id": "cmpl", "model": "other", "choices": [{"text": ""}]}

    with serving(Api(reply, model="other")) as api:
        assert answered(folder, api) == FAILED
    why = json.loads((folder / "status.json").read_text())["error"]
    assert (why, sum(api.asked.values())) == ("the answers so far are of m, and m is served now", 0)
