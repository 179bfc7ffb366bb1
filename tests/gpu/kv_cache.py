"""What real vLLM logs of its KV cache on this machine's GPUs, for models of known shapes and random weights.

Run by hand where vLLM and GPUs are: `python3 -m tests.gpu.kv_cache >tests/fixtures/gpu/NAME.jsonl`, a row a layout.
`tests/unit/fit/test_known_answers.py` holds `vcluster fit` to every row.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.support.models import configs

# Model, TP, PP, dtype of the KV cache; those of one line run side by side, each on GPUs of its own.
LAYOUTS = (
    (("llama-8b", 1, 1, "auto"), ("llama-8b", 1, 1, "fp8")),
    (("llama-8b", 2, 1, "auto"),),
    (("llama-8b", 1, 2, "auto"),),
    (("llama-70b", 2, 1, "auto"),),
    (("llama-70b", 1, 2, "auto"),),
)
CONTEXT = 8192
PATIENCE = 280.0
# Every rank logs its own memory; the least of them bounds the cache.
WEIGHTS = re.compile(r"Model loading took ([\d.]+) GiB")
FREE = re.compile(r"Available KV cache memory: ([\d.]+) GiB")
TOKENS = re.compile(r"GPU KV cache size: ([\d,]+) tokens")
QUERY = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]


def start(layout: tuple[str, int, int, str], gpus: str, folder: Path) -> subprocess.Popen[bytes]:
    """Begin to serve; what it prints goes to a file named log."""
    name, tp, pp, dtype = layout
    folder.mkdir()
    config = {
        **configs.MEASURED[name],
        "head_dim": 128,
        "rope_theta": 500000.0,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
    }
    scaling = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    config["rope_scaling"] = {**config["rope_scaling"], **scaling}
    (folder / "config.json").write_text(json.dumps(config))
    argv = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(folder), "--load-format=dummy"]
    argv += ["--skip-tokenizer-init", f"--max-model-len={CONTEXT}", f"--port={8000 + int(gpus[0])}"]
    argv += [f"--tensor-parallel-size={tp}", f"--pipeline-parallel-size={pp}", f"--kv-cache-dtype={dtype}"]
    with (folder / "log").open("wb") as log:
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": gpus}
        return subprocess.Popen(argv, stdout=log, stderr=log, env=environment, start_new_session=True)


def measured(layout: tuple[str, int, int, str], process: subprocess.Popen[bytes], folder: Path) -> dict[str, Any]:
    """Wait until the size of the cache is logged, and end it; a row, which has the reason where there is none."""
    name, tp, pp, dtype = layout
    row: dict[str, Any] = {"model": name, "tp": tp, "pp": pp, "kv_cache_dtype": dtype, "context": CONTEXT}
    began, text = time.monotonic(), ""
    while not (TOKENS.search(text) or process.poll() is not None or time.monotonic() - began > PATIENCE):
        time.sleep(0.5)
        text = (folder / "log").read_text("utf-8", "replace")
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if not (tokens := TOKENS.findall(text)):
        return {**row, "problem": text[-1500:]}
    return {
        **row,
        "weights_gib": max(map(float, WEIGHTS.findall(text))),
        "kv_gib": min(map(float, FREE.findall(text))),
        "kv_tokens": min(int(found.replace(",", "")) for found in tokens),
    }


def until_free() -> None:
    """Wait until the driver has taken back what those before have held: vLLM starts only on empty GPUs."""
    query, began = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], time.monotonic()
    while time.monotonic() - began < 60:
        used = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()
        if max(map(int, used)) < 1024:
            return
        time.sleep(0.5)


def rows(place: Path) -> Iterable[dict[str, Any]]:
    """Every layout that the GPUs of this machine can hold."""
    listed = subprocess.run(QUERY, capture_output=True, text=True, check=True).stdout.splitlines()
    gpu, memory, driver = (word.strip() for word in listed[0].split(","))
    versions = subprocess.run(
        [sys.executable, "-c", "import vllm, torch; print(vllm.__version__, torch.__version__)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()[-2:]
    about = {"gpu": gpu, "memory_mib": int(memory), "driver": driver, "vllm": versions[0], "torch": versions[1]}
    for line in LAYOUTS:
        running, used = [], 0
        until_free()
        for layout in line:
            size = layout[1] * layout[2]
            if used + size <= len(listed):
                folder = place / "-".join(map(str, layout))
                gpus = ",".join(map(str, range(used, used + size)))
                running.append((layout, start(layout, gpus, folder), folder))
                used += size
        for layout, process, folder in running:
            yield {**about, **measured(layout, process, folder)}


def main() -> int:
    """Print a row a layout; 1 when one could not be measured."""
    failed = 0
    with tempfile.TemporaryDirectory() as place:
        for row in rows(Path(place)):
            print(json.dumps(row), flush=True)
            failed |= "problem" in row
    return failed


if __name__ == "__main__":
    sys.exit(main())
