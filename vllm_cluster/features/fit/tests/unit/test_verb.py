"""`vcluster fit` as its users run it: what it prints, how it exits, and that nothing ends in a traceback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import in_process
from tests.support.json_schemas import validate
from tests.support.models import checkpoints, configs
from tests.support.models.hub import Hub, hub
from vllm_cluster.serving.fit.fit import gpu_memory_bytes

LLAMA = "meta-llama/Llama-3.1-405B-Instruct"
TWO_NODES = ("--gpus", "2x8", "--gpu-memory", "80GB")


@pytest.fixture(scope="module")
def here() -> Iterator[Hub]:
    """A hub with Llama 3.1 405B, and one that only some may read."""
    files = checkpoints.files(configs.LLAMA_405B, checkpoints.llama(configs.LLAMA_405B), 191)
    with hub(repositories={LLAMA: files, "org/gated": files}, gated={"org/gated"}) as made:
        yield made


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """None but the one that a test gives."""
    for name in ("HF_TOKEN", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


def fit(*argv: str, endpoint: str = "http://127.0.0.1:1", **environment: str) -> in_process.Finished:
    """Run it to its end, with no hub unless one is given."""
    where = {"HF_ENDPOINT": endpoint, "HF_HOME": "/nonexistent", **environment}
    done = in_process.run("fit", *argv, cwd=Path("/"), **where)
    assert "Traceback" not in done.stderr
    assert "bug in vcluster" not in done.stderr
    if "--json" in argv:
        validate(["fit"], done.stdout)
    return done


def test_a_model_on_two_nodes(here: Hub) -> None:
    done = fit(LLAMA, *TWO_NODES, endpoint=here.url)
    assert done.returncode == 0
    assert "811.7 GB (BF16 811.7 GB)" in done.stdout
    assert "504.0 KiB a token" in done.stdout
    assert "974 GB by P·4/(32/Q)·1.2" in done.stdout
    assert done.stdout.splitlines()[-1] == "It fits at TP=8 PP=2, with room for 4 requests of 131072 tokens at once."


def test_the_document(here: Hub) -> None:
    done = fit(LLAMA, *TWO_NODES, "--context", "128000", "--kv-cache-dtype", "fp8", "--json", endpoint=here.url)
    found = json.loads(done.stdout)
    assert done.stderr == ""
    assert (found["v"], found["fits"], found["min_gpus"]) == (1, True, 11)
    assert found["kv_cache"] == {"dtype": "fp8", "bytes_per_token": 258048, "bytes_per_request": 128000 * 258048}
    assert [(row["tp"], row["pp"]) for row in found["layouts"]][:2] == [(8, 2), (16, 1)]
    assert found["recommended"] == found["layouts"][0]


def test_nothing_fits(here: Hub) -> None:
    argv = (LLAMA, "--gpus", "8", "--gpu-memory", "80GB", "--context", "8192")
    done = fit(*argv, endpoint=here.url)
    assert done.returncode == 3
    assert done.stdout.splitlines()[-2:] == [
        "Does not fit. Closest configurations that do:",
        "  2 nodes of 8 such GPUs",
    ]
    assert fit(LLAMA, *TWO_NODES, "--context", "8192", endpoint=here.url).returncode == 0
    assert json.loads(fit(*argv, "--json", endpoint=here.url).stdout)["suggestions"] == ["2 nodes of 8 such GPUs"]


def test_a_gated_model_wants_the_token(here: Hub, tmp_path: Path) -> None:
    done = fit("org/gated", *TWO_NODES, endpoint=here.url)
    assert done.returncode == 1
    assert "org/gated is gated, private or not there: the hub answers 401 without a token" in done.stderr
    assert fit("org/gated", *TWO_NODES, endpoint=here.url, HF_TOKEN=here.token).returncode == 0
    (tmp_path / "token").write_text(f"{here.token}\n")
    assert fit("org/gated", *TWO_NODES, endpoint=here.url, HF_HOME=str(tmp_path)).returncode == 0


# fault: serving/fit/hub/model.py: if counted := dense(found): → if counted := 0:
def test_a_folder(tmp_path: Path) -> None:
    for name, content in checkpoints.files(configs.LLAMA_8B, checkpoints.llama(configs.LLAMA_8B)).items():
        (tmp_path / name).write_bytes(content)
    done = fit(str(tmp_path), "--gpu-memory", "24GB")
    assert done.returncode == 0
    assert "It fits at TP=1 PP=1 with a context of 30304 tokens at most: -- --max-model-len=30304" in done.stdout
    assert "pipeline parallelism support unknown" not in fit(str(tmp_path), *TWO_NODES).stdout
    for name in (path.name for path in tmp_path.iterdir() if path.name != "config.json"):
        (tmp_path / name).unlink()
    for where in (tmp_path, tmp_path / "config.json"):
        alone = json.loads(fit(str(where), "--gpu-memory", "24GB", "--json").stdout)
        # 8.03 billion parameters in 16 bits, as the files have them.
        assert abs(alone["weights"]["loaded_bytes"] - 16_060_522_496) < 1e7
        assert (alone["fits"], alone["weights"]["estimated"]) == (True, True)
    (tmp_path / "config.json").write_text(json.dumps(configs.QWEN3_235B_FP8))
    done = fit(str(tmp_path), "--gpu-memory", "24GB")
    assert (done.returncode, "put its model.safetensors.index.json there" in done.stderr) == (1, True)
    (tmp_path / "config.json").write_text('{"model_type": "lla')
    assert fit(str(tmp_path), "--gpu-memory", "24GB").returncode == 1


# fault: features/fit/verb.py: dp=dp or 1, experts=ep) → dp=dp or 1)
# fault: serving/fit/fit.py: dp=dp, experts=experts) → experts=experts)
def test_engines_that_share_requests_and_experts_that_are_dealt(tmp_path: Path) -> None:
    """A small MoE: 1 GB of experts beside 0.3 GB of all else."""
    small = {**configs.QWEN3_235B_FP8, "num_hidden_layers": 2, "quantization_config": None, "num_experts": 16}
    tensors = [("model.layers.0.mlp.experts.0.up_proj.weight", "BF16", (1000, 500_000))]
    for name, data in checkpoints.files(small, [*tensors, ("lm_head.weight", "BF16", (1000, 150_000))]).items():
        (tmp_path / name).write_bytes(data)
    pool = ("--gpus", "2x2", "--gpu-memory", "24GB")
    found = json.loads(fit(str(tmp_path), *pool, "--dp", "2", "--ep", "--json").stdout)
    assert [(row["tp"], row["pp"], row["dp"], row["ep"]) for row in found["layouts"]] == [
        (2, 1, 2, True),
        (1, 2, 2, True),
    ]
    assert found["layouts"][0]["weights_bytes"] == 10**9 // 4 + 3 * 10**8 // 2
    shown = fit(str(tmp_path), *pool, "--dp", "4", "--ep").stdout
    assert "TP=1 PP=1 DP=4 EP" in shown
    assert "each of the 4 engines has a KV cache of its own" in shown
    assert "DP" not in fit(str(tmp_path), *pool, "--ep").stdout
    assert fit(str(tmp_path), *pool, "--dp", "5").returncode == 2


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        ((), 2, "MODEL is missing"),
        ((LLAMA, "--gpus", "0x8", "--gpu-memory", "80GB"), 2, "--gpus must be a number of GPUs"),
        ((LLAMA, "--gpus", "8"), 2, "--gpus needs --gpu-memory"),
        ((LLAMA, "--gpu-memory", "80"), 2, "write the unit"),
        ((LLAMA, "--gpu-memory", "plenty"), 2, "--gpu-memory plenty is not a size"),
        ((LLAMA, "--gpu-memory", "80MB"), 2, "80MB is not a size of 1 GB or more"),
        ((LLAMA, "--kv-cache-dtype", "int3"), 2, "int3 is not known"),
        ((LLAMA, "--context", "-1"), 2, "--context"),
        ((LLAMA, "--gpus", "0", "--gpu-memory", "80GB"), 2, "--gpus"),
        (("not a model", *TWO_NODES), 2, "neither a folder here nor a repository"),
        ((__file__, *TWO_NODES), 2, "is a file: a model is a folder"),
        ((LLAMA,), 2, "inventory"),
        ((LLAMA, *TWO_NODES), 4, "cannot connect to the hub"),
    ],
)
def test_what_cannot_be_answered(argv: tuple[str, ...], code: int, said: str) -> None:
    done = fit(*argv)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr


def test_a_size_as_people_write_it() -> None:
    found = [gpu_memory_bytes(text) for text in ("80GB", "80 GiB", "79.6gib", "80G")]
    assert found == [80 * 10**9, 80 << 30, 85469849190, 80 * 10**9]
