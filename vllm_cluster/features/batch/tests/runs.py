"""A run of a batch's program in this process, against an API that is made up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from tests.support.batch_api import KEY, Api
from vllm_cluster.features.batch.on_head.client import ApiClient, NodeApi
from vllm_cluster.features.batch.on_head.lines import Place, checksum, is_error, place_of
from vllm_cluster.features.batch.on_head.progress import Meter, Progress
from vllm_cluster.features.batch.on_head.row_file import RowFile
from vllm_cluster.features.batch.on_head.runner import Options, Runner
from vllm_cluster.kernel.laptop import write_whole


@dataclass
class Run:
    """What a run left, and what it counted; `notes` is what it waited for."""

    answers: list[dict[str, Any]]
    errors: list[dict[str, Any]]
    meter: Meter
    notes: list[str]

    @property
    def texts(self) -> dict[str, str]:
        """Each answer by its name, each of which is there once."""
        assert len({row["custom_id"] for row in self.answers}) == len(self.answers)
        return {row["custom_id"]: row["response"]["body"]["choices"][0]["text"] for row in self.answers}


def state_of(folder: Path, api: Api, **changes: Any) -> Path:
    """The state of a head that serves this API."""
    row = {"name": "m", "generation": "g1", "phase": "ready", "host": "127.0.0.1", "port": api.port, **changes}
    write_whole(folder / "status.json", json.dumps({"serve": row}))
    return folder


def run(folder: Path, api: Api, prompts: list[str], **options: Any) -> Run:
    """Answer these prompts, apart from those that have a row in the folder, and read the rows."""
    meter, notes = answer_all(folder, api, prompts, **options)
    found = load(folder / "out.jsonl")
    return Run([row for row in found if not row["error"]], [row for row in found if row["error"]], meter, notes)


def answer_all(
    folder: Path,
    api: Api,
    prompts: list[str],
    *,
    report: Callable[[Progress], None] = lambda _: None,
    wait: float = 30.0,
    **options: Any,
) -> tuple[Meter, list[str]]:
    """Answer them; what was counted, and what was waited for."""
    if not (folder / "key").exists():
        (folder / "key").write_text(KEY)
    if not (folder / "status.json").exists():
        state_of(folder, api)
    notes: list[str] = []
    requests = [
        json.dumps({"custom_id": f"r{number}", "url": "/v1/completions", "body": {"prompt": prompt}})
        for number, prompt in enumerate(prompts)
    ]
    wanted = Options(**{"concurrency": 8, "seconds": 60.0, **options})

    async def answer(rows: RowFile) -> Meter:
        there = [*rows.rows()]
        rows.begin()
        done = {place.line for row in there if (place := place_of(row))}
        lines = [(Place(at, checksum(raw.encode())), raw.encode()) for at, raw in enumerate(requests, 1)]
        failed = sum(map(is_error, there))
        meter = Meter(len(lines), len(there) - failed, failed, monotonic())
        async with ApiClient(wanted.seconds, folder) as client:
            server = NodeApi(client, folder, folder / "key", wait, notes.append)
            await server.open(set())
            left = iter([line for line in lines if line[0].line not in done])
            await Runner(
                lines=left, rows=rows, meter=meter, client=client, server=server, options=wanted, report=report
            ).run()
        return meter

    with closing(RowFile(folder / "out.jsonl")) as rows:
        return asyncio.run(answer(rows)), notes


def load(path: Path) -> list[dict[str, Any]]:
    """The rows of a file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
