"""Runs `vllm bench serve` as often as it is asked: one JSON line in with its arguments, one out with its result.

The first line has the key and, where a file of prompts is used, its content. In this process, so that it ends with it;
vLLM is imported once. Arguments: none. Needs vLLM.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path

# Lists with an entry for each request: the percentiles are what is kept.
DROPPED = ("latencies", "queue_times", "input_lens", "output_lens", "start_times", "ttfts", "itls", "generated_texts")


def bench(argv: list[str], folder: Path) -> dict[str, object]:
    """The result of one run."""
    main = importlib.import_module("vllm.entrypoints.cli.main").main
    result = folder / "result.json"
    result.unlink(missing_ok=True)
    dataset = ["--dataset-path", str(folder / "prompts.jsonl")] if (folder / "prompts.jsonl").exists() else []
    saved = ["--save-result", "--result-dir", str(folder), "--result-filename", result.name]
    sys.argv = ["vllm", "bench", "serve", *argv, *dataset, *saved]
    try:
        main()
    except SystemExit as end:
        if end.code:
            return {"error": f"vllm bench serve ended with {end.code}"}
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"[:2000]}
    if not result.exists():
        return {"error": "vllm bench serve wrote no result"}
    found = json.loads(result.read_text())
    return {"result": {key: value for key, value in found.items() if key not in DROPPED}}


def main() -> None:
    # What vLLM prints is for people; the lines of this program go out on their own.
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    first = json.loads(sys.stdin.readline())
    # The server has loaded this model: its tokenizer is here, and a gated one needs no token.
    os.environ |= {"OPENAI_API_KEY": first["key"], "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if first.get("prompts"):
            (folder / "prompts.jsonl").write_text(first["prompts"])
        out.write(json.dumps({"vllm": importlib.import_module("vllm").__version__}) + "\n")
        while line := sys.stdin.readline():
            out.write(json.dumps(bench(json.loads(line)["argv"], folder)) + "\n")


if __name__ == "__main__":
    main()
