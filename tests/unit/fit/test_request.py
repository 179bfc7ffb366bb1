"""What is refused before anything is stopped, by what the nodes and the image's vLLM answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.models import configs
from vllm_cluster.kernel.backends import ray, vllm
from vllm_cluster.kernel.backends.seam import Degrees
from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.serving.fit.layouts import GpuPool
from vllm_cluster.serving.fit.request import Asked, Files, Judged, fewer, find_problems

NAME = "meta-llama/Llama-3.1-8B"
GB = 10**9


def asked(tp: int = 8, pp: int = 2, *extra: str, memory: int = 80 * GB) -> Asked:
    """A request for the layout over two hosts of 8 GPUs."""
    argv = vllm.serve_argv(
        NAME, name="llama", degrees=Degrees(tp, pp), host="127.0.0.1", port=8000, extra=extra, engine=ray.FLAGS
    )
    return Asked(NAME, tp, pp, argv, extra, GpuPool((8, 8), memory, True))


HERE = Files("cache", config=configs.LLAMA_8B, weights=16 * GB, free=100 * GB, missing=0)
BOTH = {"gpu1": HERE, "gpu2": HERE}
# What the parser makes of the words of `asked()`.
VALUES = {
    "model_tag": NAME,
    "served_model_name": ["llama"],
    "tensor_parallel_size": 8,
    "pipeline_parallel_size": 2,
    "host": "127.0.0.1",
    "port": 8000,
    "distributed_executor_backend": "ray",
    "middleware": ["other.One", vllm.MIDDLEWARE],
}
GOOD = Judged(flags="accepted", model="accepted", values=VALUES, max_model_len=8192, supports_pp=True)


def found_problems(request: Asked, files: dict[str, Files] = BOTH, judged: Judged = GOOD) -> list[str]:
    """Each problem as people see it; vLLM's parser has read the layout of the request."""
    if judged.values:
        sizes = {"tensor_parallel_size": request.tp, "pipeline_parallel_size": request.pp}
        judged = replace(judged, values={**judged.values, **sizes})
    return [f"{one.host}: {one.text} | {one.fix}" for one in find_problems(request, "gpu1", files, judged)]


def test_a_kv_cache_that_is_only_guessed_refuses_nothing() -> None:
    """Of an unknown kind each layer counts as ordinary attention with all heads, which may be far too much."""
    short, small = replace(GOOD, max_model_len=131_072), asked(1, 1, memory=24 * GB)
    assert "does not fit: a GPU has" in found_problems(small, judged=short)[0]
    unknown = replace(HERE, config={**configs.LLAMA_8B, "model_type": "nemotron-nas"})
    assert found_problems(small, {"gpu1": unknown, "gpu2": unknown}, short) == []


QWEN = replace(HERE, config=configs.QWEN3_235B_FP8, weights=235 * GB, free=1000 * GB)
OLD = replace(GOOD, version="0.26.0")


# fault: serving/fit/request.py: self.ep or "enable_expert_parallel" in vllm.options(self.extra) → self.ep
@pytest.mark.parametrize(
    ("request_", "judged", "text"),
    [
        (asked(), GOOD, ""),
        (asked(), OLD, "gpu1: meta-llama/Llama-3.1-8B cannot be split so: an expert (1536) at TP=8"),
        (asked(8, 2, "--enable-expert-parallel"), OLD, ""),
        (replace(asked(), ep=True), OLD, ""),
        (replace(asked(4, 2), dp=2), OLD, "at TP=4 × DP=2 is not a multiple"),
        (replace(asked(4, 2), dp=2, ep=True), OLD, ""),
    ],
)
def test_experts_that_are_dealt_are_not_split(request_: Asked, judged: Judged, text: str) -> None:
    found = found_problems(request_, {"gpu1": QWEN, "gpu2": QWEN}, replace(judged, max_model_len=4096))
    assert [text in one for one in found] == [True] * bool(text)
    assert all("--ep keeps experts whole | vcluster fit" in one for one in found)


# fault: serving/fit/request.py: if asked.degrees.experts and not known.experts_used: → if False:
def test_a_model_without_experts_is_served_without_ep() -> None:
    (found,) = found_problems(replace(asked(), ep=True))
    assert "it has no experts: leave out --ep | leave out --ep: it deals experts, and this model has none" in found
    assert found_problems(replace(asked(2, 1), dp=8)) == []


def test_each_engine_holds_what_is_not_dealt() -> None:
    """16 engines of one GPU: each has all of a dense model, which two GPUs with TP=2 would share."""
    short = replace(asked(1, 1, memory=16 * GB), dp=16)
    (found,) = found_problems(short)
    assert "its weights take 14.9 GiB of a GPU's 14.9 GiB at TP=1 × PP=1 × DP=16 | vcluster fit" in found
    assert f"{NAME} --dp 16 shows what fits" in found
    assert fewer(replace(short, hosts=("gpu1", "gpu2")), HERE, GOOD) == ""


def test_what_is_right_is_not_refused() -> None:
    assert found_problems(asked()) == []
    assert found_problems(asked(), judged=Judged(unchecked="no answer")) == []


@pytest.mark.parametrize(
    ("files", "text"),
    [
        (
            {"problem": "it is not in the model cache", "near": ("meta-llama/Llama-3.1-8b", "lab/x")},
            f"gpu1: {NAME}: it is not in the model cache; did you mean meta-llama/Llama-3.1-8b? | ",
        ),
        (
            {"problem": "the hub has no such model"},
            "or a folder below model_cache\nvcluster models",
        ),
        ({"problem": "it is not in the model cache, and HF_HUB_OFFLINE is set"}, "remove HF_HUB_OFFLINE from"),
        ({"problem": "it is gated, private or not there: 403 without a token"}, "accept its terms on the hub"),
    ],
)
def test_a_name_that_is_nowhere(files: dict[str, Any], text: str) -> None:
    (found,) = found_problems(asked(), {"gpu1": Files("nowhere", **files), "gpu2": HERE})
    assert text in found


# fault: serving/fit/request.py: [folder] if folder in names else difflib → difflib
def test_a_folder_of_the_cache_is_meant_where_its_name_is_given() -> None:
    """And not a model of a name that is nearer."""
    files = Files(
        "nowhere", "it is not in the model cache, and HF_HUB_OFFLINE is set", near=("my-model2", "./my-model")
    )
    found = [*find_problems(replace(asked(), model="my-model"), "gpu1", {"gpu1": files}, Judged())]
    assert [one.near for one in found] == [("my-model", "./my-model")]


# fault: kernel/plan/cached_model.py: if every[name] > 1 or name in names.get(head, ()) → if True
# fault: kernel/plan/cached_model.py: for name in model_names(every) if → for name in every if
# fault: serving/fit/request.py: near = [] if asked.model in found.near else alike → near = difflib.get_close_matches(asked.model, found.near, n=1, cutoff=0.5)
@pytest.mark.parametrize(
    ("head", "workers", "meant"),
    [
        (("lab/model",), ("lab/modl",), "lab/model"),
        ((), ("lab/modl",), ""),
        ((), ("lab/modl", "lab/modl"), "lab/modl"),
        (("--from=lab/modle",), ("--from=lab/modle",), ""),
        (("lab/modle/../x", "~/lab/modle", "gpu1:/lab/modle", "-ilab/modle"), ("./../lab/modle",), ""),
    ],
)
def test_one_worker_does_not_choose_the_model_that_was_meant(
    head: tuple[str, ...], workers: tuple[str, ...], meant: str
) -> None:
    """The name that the last host gave was in the remedy."""
    answers = {f"gpu{at}": Files("nowhere", "no such model", near=(one,)) for at, one in enumerate(workers, 2)}
    files = {"gpu1": Files("nowhere", "no such model", near=head), **answers}
    request = replace(asked(), model="lab/modle", hosts=tuple(files))
    found = [*find_problems(request, "gpu1", files, GOOD)]
    assert {one.near for one in found} == {("lab/modle", meant) if meant else ()}
    assert all(f"did you mean {meant}?" in one.text if meant else "mean" not in one.text for one in found)


def test_a_folder_that_lacks_a_shard_is_repaired_by_what_brought_it() -> None:
    lacking = Files("folder", config=configs.LLAMA_8B, lacking=("model-00003-of-00004.safetensors",))
    folder = replace(asked(), model="/models/llama8b")
    (found,) = found_problems(folder, {"gpu1": lacking, "gpu2": HERE})
    assert "its index names model-00003-of-00004.safetensors, which does not exist | " in found
    assert found.endswith(
        "| vcluster pull ./llama8b --verify\nor, where vcluster pull has not brought it: copy it again"
    )


def test_a_name_that_is_right_is_not_advised() -> None:
    lacking = Files("nowhere", "its revision x is not in the model cache", near=(NAME, f"{NAME}-Instruct"))
    (found,) = found_problems(asked(), {"gpu1": lacking, "gpu2": HERE})
    assert "did you mean" not in found


@pytest.mark.parametrize(
    ("nodes", "tp", "pp", "memory", "words"),
    [
        ((8, 8), 8, 2, 80 * GB, "1 of the 16 GPUs (--tp 1 --pp 1): on gpu1 a GPU holds 14.9"),
        ((2, 2), 2, 2, 16 * GB, "2 of the 4 GPUs (--hosts gpu1): on gpu1 a GPU holds 7."),
        ((1, 1, 1), 1, 3, 16 * GB, "2 of the 3 GPUs (--hosts gpu1,gpu2): on gpu1, gpu2 a GPU holds"),
    ],
)
def test_fewer_gpus_that_hold_the_model_are_listed_with_the_reason(
    nodes: tuple[int, ...], tp: int, pp: int, memory: int, words: str
) -> None:
    hosts = tuple(f"gpu{number}" for number, _ in enumerate(nodes, 1))
    request = replace(asked(tp, pp), gpus=GpuPool(nodes, memory, True), hosts=hosts)
    assert fewer(request, HERE, GOOD).startswith(f"it also fits on {words}")


def test_small_weights_have_a_small_unit() -> None:
    small = replace(HERE, weights=3 << 20)
    assert "holds 3 MiB of weights" in fewer(replace(asked(8, 2), hosts=("gpu1", "gpu2")), small, GOOD)


def test_no_fewer_gpus_are_listed_where_they_do_not_hold_it_or_that_is_unknown() -> None:
    request = replace(asked(1, 2), gpus=GpuPool((1, 1), 12 * GB, True), hosts=("gpu1", "gpu2"))
    assert fewer(request, HERE, GOOD) == ""
    roomy = replace(asked(8, 2), hosts=("gpu1", "gpu2"))
    assert fewer(roomy, HERE, GOOD)
    assert fewer(roomy, replace(HERE, config=None), GOOD) == ""
    assert fewer(roomy, HERE, replace(GOOD, given=("quantization",))) == ""
    assert fewer(replace(roomy, gpus=None), HERE, GOOD) == ""


def test_a_file_of_flags_is_looked_for_in_the_node() -> None:
    lacking = Judged(flags="refused", problem="[Errno 2] No such file or directory: 'serve.yaml'")
    (found,) = found_problems(asked(8, 2, "--config", "serve.yaml"), judged=lacking)
    assert "put it below model_cache" in found
    wrong = Judged(flags="refused", problem="--config /models/serve.yaml: it must hold options")
    (found,) = found_problems(asked(8, 2, "--config", "/models/serve.yaml"), judged=wrong)
    assert found.endswith("| correct that file")
    (other,) = found_problems(asked(8, 2, "--chat-template=x"), judged=lacking)
    assert "vllm serve --help=all" in other


# fault: serving/fit/request.py: if found.where == "nowhere → if host == head and found.where == "nowhere
def test_each_rank_needs_the_files_on_its_own_host() -> None:
    files = {"gpu1": HERE, "gpu2": Files("nowhere", "it is not in the model cache, and HF_HUB_OFFLINE is set")}
    (found,) = found_problems(asked(), files)
    assert found.startswith(f"gpu2: {NAME}: it is not in the model cache")
    assert found.endswith(f"| vcluster pull {NAME}")
    # Its ranks run on the head alone.
    assert found_problems(replace(asked(1, 1), hosts=("gpu1",)), files) == []
    # The head reads config and tokenizer, also where it has no rank.
    head = {"gpu1": files["gpu2"], "gpu2": HERE}
    assert len(found_problems(replace(asked(1, 1), hosts=("gpu2",)), head)) == 1


# fault: serving/fit/request.py: judged.given, asked.argv)).items(): → judged.given, asked.argv)).fromkeys(()).items():
@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"headless": True}, "--headless is set by vcluster"),
        ({"nnodes": 2}, "--nnodes is set by vcluster"),
        ({"data_parallel_size": 16}, "--data-parallel-size is set by vcluster"),
        ({"uds": "/tmp/x"}, "--uds is set by vcluster"),
        ({"grpc": True}, "--grpc is set by vcluster"),
        ({"api_key": ["x"]}, "--api-key is set by vcluster"),
    ],
)
def test_what_a_config_file_sets_is_refused_as_on_the_command_line(change: dict[str, Any], text: str) -> None:
    (found,) = found_problems(asked(), judged=replace(GOOD, given=(*change, "max_model_len")))
    assert text in found
    with pytest.raises(UsageError):
        vllm.ensure_allowed(NAME, "llama", [text.split(maxsplit=1)[0]])


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("port", 9, "--port is set"),
        ("host", "0.0.0.0", "--host is set"),
        ("model_tag", "another", "the model is set"),
        ("middleware", [vllm.MIDDLEWARE, "x"], "--middleware is set"),
        ("distributed_executor_backend", "mp", "--distributed-executor-backend is set"),
    ],
)
def test_what_we_set_must_be_what_is_served(name: str, value: object, text: str) -> None:
    (found,) = found_problems(asked(), judged=replace(GOOD, values={**VALUES, name: value}))
    assert text in found


@pytest.mark.parametrize(
    ("theirs", "text"),
    [
        ({"port": 9}, "--port is set"),
        ({"tensor_parallel_size": 1}, "--tensor-parallel-size is set"),
        ({"served_model_name": ["other"]}, "--served-model-name is set"),
        ({"distributed_executor_backend": "mp"}, "--distributed-executor-backend is set"),
    ],
)
def test_flags_that_vcluster_overrides_are_not_ignored_in_silence(theirs: dict[str, Any], text: str) -> None:
    (found,) = found_problems(asked(), judged=replace(GOOD, theirs=theirs, given=tuple(theirs)))
    assert text in found
    agreed = {"tensor_parallel_size": 8, "port": 8000, "distributed_executor_backend": "ray", "middleware": ["x.Y"]}
    assert found_problems(asked(), judged=replace(GOOD, theirs=agreed, given=tuple(agreed))) == []


# fault: kernel/backends/vllm.py: name == "--distributed-executor-backend" and (value or "".join(following)) == "ray" → False
def test_a_flag_that_agrees_is_allowed() -> None:
    for flags in (["--distributed-executor-backend", "ray"], ["--distributed_executor_backend=ray"]):
        vllm.ensure_allowed(NAME, "llama", flags)
    for flags in (["--distributed-executor-backend", "mp"], ["--distributed-executor-backend"]):
        with pytest.raises(UsageError):
            vllm.ensure_allowed(NAME, "llama", flags)


def test_vllm_s_own_words_are_passed_on() -> None:
    (flags,) = found_problems(
        asked(), judged=Judged(flags="refused", problem="unrecognized arguments: --no-such-flag 1")
    )
    assert "gpu1: vLLM refuses these flags: unrecognized arguments: --no-such-flag 1" in flags
    near = Judged(flags="refused", problem="unrecognized arguments: --max-model-length; did you mean --max-model-len?")
    (typo,) = found_problems(asked(), judged=near)
    assert "vcluster exec --head -- vllm serve --help=max-model-len" in typo
    assert [one.near for one in find_problems(asked(), "gpu1", BOTH, near)] == [
        ("--max-model-length", "--max-model-len")
    ]
    longer = (
        "User-specified max_model_len (99999) is greater than the derived max_model_len "
        "(max_position_embeddings=2048.0 in model's config.json). To allow it, set …"
    )
    found = list(find_problems(asked(), "gpu1", BOTH, replace(GOOD, model="refused", problem=longer)))
    assert [one.near for one in found] == [("99999", "2048")]
    # The corrected command is all; how to have it served all the same is left out.
    assert [(one.text, one.fix) for one in found] == [(f"vLLM refuses {NAME}: {longer.partition('. ')[0]}", "")]
    old = Judged(flags="refused", problem="argument --enable-chunked-prefill: ignored explicit argument 'False'")
    (switch,) = found_problems(asked(8, 2, "--enable-chunked-prefill=False"), judged=old)
    assert "write --no-enable-chunked-prefill in place of --enable-chunked-prefill=False" in switch
    (length,) = found_problems(
        asked(), judged=replace(GOOD, model="refused", problem="max_model_len (100000) is greater")
    )
    assert f"vLLM refuses {NAME}: max_model_len (100000) is greater" in length


def test_a_split_that_cannot_be_names_one_that_can() -> None:
    (found,) = found_problems(asked(3, 4))
    assert "TP=3 does not divide its 32 attention heads" in found
    assert "--tp 4 --pp 3" in found
    assert "stages" in found_problems(asked(), judged=replace(GOOD, supports_pp=False))[0]


# fault: serving/fit/request.py: + FIXED > UTILISATION → > 100
def test_weights_that_no_gpu_holds_and_a_context_without_room() -> None:
    (weights,) = found_problems(asked(1, 1, memory=12 * GB))
    assert "its weights take 14.9 GiB of a GPU's 11.2 GiB at TP=1 × PP=1" in weights
    (context,) = found_problems(asked(1, 1, memory=24 * GB), judged=replace(GOOD, max_model_len=131072))
    assert "of 131072 tokens" in context
    assert "--max-model-len=" in context
    # With a flag that changes what is loaded, it is not known.
    assert found_problems(asked(1, 1, memory=12 * GB), judged=replace(GOOD, given=("quantization",))) == []
    assert found_problems(asked(1, 1, "--cpu-offload-gb=20", memory=12 * GB), judged=Judged(unchecked="x")) == []


# fault: serving/fit/request.py: not None and missing > found.free → None
def test_a_disk_too_small_is_reported_by_host() -> None:
    head = Files("hub", weights=810 * GB, missing=810 * GB, free=900 * GB)
    worker = Files("hub", held=400 * GB, free=300 * GB)
    (found,) = found_problems(asked(), {"gpu1": head, "gpu2": worker})
    assert "gpu2: 410 GB of" in found
    assert "300 GB are free" in found
    assert found_problems(asked(), {"gpu1": head, "gpu2": replace(worker, held=600 * GB)}) == []
    # To another disk, or nothing at all.
    assert found_problems(asked(8, 2, "--download-dir", "/other"), {"gpu1": head, "gpu2": worker}) == []
    assert found_problems(asked(8, 2, "--load-format=dummy"), {"gpu1": head, "gpu2": worker}) == []


def test_a_head_without_ranks_needs_no_room_for_weights() -> None:
    hub = {"gpu1": Files("hub", weights=9, missing=9, free=1), "gpu2": Files("hub", free=99)}
    assert len(found_problems(replace(asked(), hosts=("gpu1", "gpu2")), hub)) == 1
    assert found_problems(replace(asked(), hosts=("gpu2",)), hub) == []
