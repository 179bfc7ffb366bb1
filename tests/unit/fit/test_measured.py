"""What vLLM logged of its KV cache on real GPUs, recorded by `python3 -m tests.gpu.kv_cache`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.models import checkpoints, configs
from vllm_cluster.fit.layouts import GpuPool, Model, Workload, evaluate
from vllm_cluster.fit.model_config import model_config
from vllm_cluster.fit.weights import weigh

GIB = 1 << 30
RECORDED = Path(__file__).parents[2] / "fixtures" / "gpu"
ROWS = [json.loads(line) for file in RECORDED.glob("*-kv-cache.jsonl") for line in file.read_text().splitlines()]
# The promise is 10 %.
MET = 0.01


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['model']}-{row['tp']}-{row['pp']}-{row['kv_cache_dtype']}")
def test_fit_agrees_with_what_vllm_measured(row: dict[str, Any]) -> None:
    config, tp, pp = configs.MEASURED[row["model"]], row["tp"], row["pp"]
    made = model_config(config)
    model = Model("llama", weigh(checkpoints.sizes(checkpoints.llama(config)), made), made)
    workload = Workload(row["context"], kv_dtype=row["kv_cache_dtype"])
    found = evaluate(model, GpuPool((tp * pp,), row["memory_mib"] << 20), workload, tp, pp)
    assert found.weights_bytes / GIB == pytest.approx(row["weights_gib"], rel=MET)
    assert found.kv_cache_bytes / GIB == pytest.approx(row["kv_gib"], rel=MET)
    assert found.kv_cache_tokens == pytest.approx(row["kv_tokens"], rel=MET)
