"""Files of requests for `vcluster batch`, and what is in its outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.endpoint import MODEL


def write_requests(path: Path, count: int, tokens: int) -> Path:
    """Completions, chats and requests without a model in turn, at temperature 0."""
    fixed = {"max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    kinds: list[tuple[str, Any]] = [
        ("/v1/completions", lambda number: {"model": MODEL, "prompt": f"The number {number} is"}),
        ("/v1/chat/completions", lambda number: {"messages": [{"role": "user", "content": f"What is {number}?"}]}),
        ("/v1/completions", lambda number: {"prompt": f"A river {number}"}),
    ]
    with path.open("w") as file:
        for number in range(count):
            url, made = kinds[number % len(kinds)]
            row = {"custom_id": f"r{number}", "method": "POST", "url": url, "body": {**made(number), **fixed}}
            file.write(json.dumps(row) + "\n")
    return path


def answers(path: Path) -> dict[str, str]:
    """The text of each answer by its custom_id, each of which is there once."""
    found: dict[str, str] = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        (choice,) = row["response"]["body"]["choices"]
        assert row["custom_id"] not in found, f"two answers to {row['custom_id']}"
        found[row["custom_id"]] = choice["text"] if "text" in choice else choice["message"]["content"]
    return found
