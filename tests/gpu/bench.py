"""Throughput and latency by vLLM's own benchmark, run in the head's container against what is served there."""

from __future__ import annotations

import json
from typing import Any

from tests.gpu.cluster import Cluster, Failed

TOKENS = 128
# Requests for each that is under way at a time.
TIMES = 6
KEYS = ("output_throughput", "median_ttft_ms", "median_tpot_ms", "p99_ttft_ms", "p99_tpot_ms", "duration", "completed")
RESULT = "/tmp/vcluster-bench.json"
SCRIPT = f"""
rm -f {RESULT}
if [ -n "$VCLUSTER_API_KEY_FILE" ]; then OPENAI_API_KEY=$(cat "$VCLUSTER_API_KEY_FILE"); export OPENAI_API_KEY; fi
vllm bench serve --save-result --result-dir "$(dirname {RESULT})" --result-filename "$(basename {RESULT})" "$@" \
  >{RESULT}.log 2>&1
s=$?
[ -s {RESULT} ] && cat {RESULT} || {{ tail -n 15 {RESULT}.log; exit $s; }}
"""


def bench(
    cluster: Cluster, model: str, name: str, at_once: int, *, tokens: int = TOKENS, port: int | None = None,
    times: int = TIMES,
) -> dict[str, Any]:  # fmt: skip
    """One round with so many requests at once; tokens a second and milliseconds.

    Raises:
        Failed: the benchmark did not end well, with its last lines.
    """
    words = {
        "--model": model, "--served-model-name": name, "--host": "127.0.0.1",
        "--port": port or cluster.inventory.ports.api, "--dataset-name": "random", "--random-input-len": tokens,
        "--random-output-len": tokens, "--max-concurrency": at_once, "--num-prompts": at_once * times,
    }  # fmt: skip
    argv = [str(word) for pair in words.items() for word in pair]
    done = cluster.inside(cluster.head, SCRIPT, *argv, "--ignore-eos", seconds=600.0)
    line = next((line for line in done.text.splitlines() if line.startswith("{")), "")
    if not line:
        raise Failed(f"vllm bench serve, {at_once} at once: exit {done.returncode}: {done.text.strip()[-800:]}")
    said = json.loads(line)
    return {"at_once": at_once, **{key: round(said[key], 2) for key in KEYS if isinstance(said.get(key), int | float)}}
