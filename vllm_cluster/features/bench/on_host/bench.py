"""Runs `vllm bench serve` as often as it is asked: one JSON line in with its arguments, one out with its result.

The first line has the key and where the API is; the reply to it vLLM's version and the context of the model. In this
process, so that it ends with it; vLLM is imported once. An empty message ends it in order: without one it is killed,
and its results stay. Arguments: none. Needs vLLM.
"""

from __future__ import annotations

import http.client
import importlib
import json
import os
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from vllm_cluster.wire.listeners import connect_to_own_only
from vllm_cluster.wire.reading import read
from vllm_cluster.wire.values import Count

# Lists with an entry for each request: the percentiles are what is kept.
DROPPED = {"latencies", "queue_times", "input_lens", "output_lens", "start_times"}
DROPPED |= {"ttfts", "itls", "generated_texts", "errors"}
REASONS, MAX_REASON = 3, 300
CONTEXT_SECONDS = 10.0
MAX_MODELS = 1 << 20
# The process that a folder is of follows.
FOLDER = "vcluster-bench-"


@dataclass(frozen=True)
class _Model:
    # An adapter's row has none.
    max_model_len: Count | None = None


@dataclass(frozen=True)
class _Models:
    data: tuple[_Model, ...]


def _run_bench(argv: list[str], folder: Path) -> dict[str, object]:
    """The result of one run."""
    main = importlib.import_module("vllm.entrypoints.cli.main").main
    result = folder / "result.json"
    result.unlink(missing_ok=True)
    saved = ["--save-result", "--result-dir", str(folder), "--result-filename", result.name]
    saved += ["--save-detailed"]  # else the reasons of failed requests are left out
    sys.argv = ["vllm", "bench", "serve", *argv, *saved]
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
    kept = {key: value for key, value in found.items() if key not in DROPPED}
    return {"result": kept, "reasons": reasons(found.get("errors") or [])}


def context(api: str, key: str) -> int | None:
    """How many tokens a prompt and its answer may have, by the list of its models; None where that lacks it."""
    # Not urllib: it sends the key along to where an answer redirects, and asks a proxy of the environment.
    server = http.client.HTTPConnection(api.partition("://")[2], timeout=CONTEXT_SECONDS)
    try:
        server.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})
        return read(_Models, server.getresponse().read(MAX_MODELS), api, MAX_MODELS).data[0].max_model_len
    except (OSError, ValueError, LookupError, http.client.HTTPException):
        return None
    finally:
        server.close()


def reasons(errors: list[str]) -> list[str]:
    """The most frequent errors of requests, each with its number; of a traceback its last line."""
    lines = [error.strip().splitlines()[-1][:MAX_REASON] for error in errors if error and error.strip()]
    return [f"{number}× {text}" for text, number in Counter(lines).most_common(REASONS)]


def remove_leftovers() -> None:
    """Remove the folders of runs that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER}*"):
        if not Path("/proc", folder.name[len(FOLDER) :].partition("-")[0]).exists():
            shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    # What vLLM prints is for people; the lines of this program go out on their own.
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    first = json.loads(sys.stdin.readline())
    connect_to_own_only()
    # The server has loaded this model: its tokenizer is here, and a gated one needs no token.
    os.environ |= {"OPENAI_API_KEY": first["key"], "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    # The API is this cluster's: a proxy of the node, for the hub, would get the key; vLLM's own client asks it too.
    os.environ |= {"NO_PROXY": "*", "no_proxy": "*"}
    remove_leftovers()
    with tempfile.TemporaryDirectory(prefix=f"{FOLDER}{os.getpid()}-") as name:
        folder = Path(name)
        version = importlib.import_module("vllm").__version__
        out.write(json.dumps({"vllm": version, "context": context(first["api"], first["key"])}) + "\n")
        while asked := json.loads(sys.stdin.readline() or "{}"):
            out.write(json.dumps(_run_bench(asked["argv"], folder)) + "\n")
    out.write(json.dumps({"ended": True}) + "\n")


if __name__ == "__main__":
    main()
