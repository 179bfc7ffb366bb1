"""What vLLM's own classes make of configs, run by the Python of an image: `python3 vllm_kv.py FILE`.

Each line of FILE is a case: `config`, `contexts`, the degrees `tp` and `pp`, and the `rank` that is asked. It builds
the model on the meta device, as that rank of a world of fake ranks, and prints for each case the KV cache that
vLLM plans for one request and the size of its parameters in bytes, each of them where `parameters` is set. Kernels are
left out: an empty backend is in the place of each of attention, and what the CPU platform changes is set back to what
GPUs have.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections import Counter
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

os.environ.update(VLLM_LOGGING_LEVEL="ERROR", HF_HUB_OFFLINE="1", VLLM_PLUGINS="", VLLM_CPU_KVCACHE_SPACE="")

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from vllm.config import set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.distributed.device_communicators.shm_broadcast import MessageQueue
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.layers.fused_moe import config as mixture
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.model_executor.models import registry
from vllm.platforms import current_platform
from vllm.utils.torch_utils import set_default_torch_dtype
from vllm.v1.attention.backend import AttentionBackend, AttentionMetadataBuilder, MultipleOf
from vllm.v1.attention.backends import utils as layouts
from vllm.v1.core import kv_cache_utils

PATIENCE = 120
EMPTY = "kernels_left_out"
PLAIN = "vllm.distributed.device_communicators.base_device_communicator.DeviceCommunicatorBase"
Case = dict[str, Any]


class Kernels:
    """Those of an attention backend, which nothing here runs."""

    def __init__(self, *_: object, **__: object) -> None:
        self.kv_cache_dtype = "auto"
        self.sinks = None

    def __getattr__(self, name: str) -> bool:
        if name.startswith("__"):
            raise AttributeError(name)
        return False


class Absent(MetaPathFinder, Loader):
    """Libraries of GPU kernels that some models import and this image lacks."""

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in ("cuda", "cutlass") else None

    def create_module(self, spec: ModuleSpec) -> Any:
        return MagicMock(__spec__=spec, __path__=[])

    def exec_module(self, module: ModuleType) -> None:
        """Leave it empty."""


def backend(name: str, *, latent: bool = False, sparse: bool = False) -> type:
    """A backend that takes any head and any block of 16 tokens."""
    own = {
        "get_name": staticmethod(lambda: name),
        "get_impl_cls": staticmethod(lambda: Kernels),
        "get_builder_cls": staticmethod(lambda: AttentionMetadataBuilder),
        "get_supported_kernel_block_sizes": staticmethod(lambda kv_cache_spec=None: [MultipleOf(16)]),
        "get_supported_head_sizes": classmethod(lambda cls: []),
        "supports_block_size": classmethod(lambda cls, size: True),
        "is_mla": classmethod(lambda cls: latent),
        "is_sparse": classmethod(lambda cls: sparse),
    }
    return type(name, (AttentionBackend,), own)


def leave_out_kernels() -> None:
    """Have vLLM plan for kernels that this machine does not have."""
    empty = ModuleType(EMPTY)
    made = {
        "FLASH_ATTN": backend("FLASH_ATTN"),
        "FLASH_ATTN_MLA": backend("FLASH_ATTN_MLA", latent=True),
        "FLASHMLA_SPARSE": backend("FLASHMLA_SPARSE", latent=True, sparse=True),
    }
    vars(empty).update(made)
    sys.modules[EMPTY] = empty
    sys.meta_path.append(Absent())

    def chosen(_: object, __: object, /, attn_selector_config: Any, **___: object) -> str:
        asked = attn_selector_config
        name = "FLASHMLA_SPARSE" if asked.use_sparse else "FLASH_ATTN_MLA" if asked.use_mla else "FLASH_ATTN"
        return f"{EMPTY}.{name}"

    platform = type(current_platform)
    own_check = platform.check_and_update_config

    def as_on_a_gpu(config: Any) -> None:
        dtype, cached = config.cache_config.mamba_ssm_cache_dtype, config.cache_config.enable_prefix_caching
        own_check(config)
        config.cache_config.mamba_ssm_cache_dtype, config.cache_config.enable_prefix_caching = dtype, cached
        config.scheduler_config.max_num_batched_tokens = 8192

    platform.get_attn_backend_cls = classmethod(chosen)
    platform.get_device_communicator_cls = classmethod(lambda cls: PLAIN)
    platform.check_and_update_config = staticmethod(as_on_a_gpu)
    # It would wait for the ranks that are not there.
    MessageQueue.create_from_process_group = staticmethod(lambda *_, **__: None)
    mixture.current_platform = SimpleNamespace(is_cuda_alike=lambda: True, is_xpu=lambda: False)
    torch.cuda.Event = torch.cuda.Stream = MagicMock
    # In a process of its own, vLLM would import itself once more for each class.
    registry._run_in_subprocess = lambda call: call()


def configured(case: Case, folder: str) -> Any:
    """The VllmConfig of a case, all else vLLM's default."""
    degrees = {"tensor_parallel_size": case.get("tp", 1), "pipeline_parallel_size": case.get("pp", 1)}
    (Path(folder) / "config.json").write_text(json.dumps(case["config"]))
    return EngineArgs(
        model=folder,
        skip_tokenizer_init=True,
        load_format="dummy",
        dtype="bfloat16",
        max_model_len=min(case["contexts"]),
        max_num_batched_tokens=8192,
        enforce_eager=True,
        block_size=16,
        enable_prefix_caching=True,
        enable_expert_parallel=case.get("ep", False),
        kv_cache_dtype=case.get("kv", "auto"),
        distributed_executor_backend="external_launcher" if max(degrees.values()) > 1 else None,
        **degrees,
    ).create_engine_config()


def built(case: Case, config: Any) -> Any:
    """The model of one rank, without memory."""
    tp, pp, rank = (case.get(name, default) for name, default in (("tp", 1), ("pp", 1), ("rank", 0)))
    group = dist.new_group
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=tp * pp)
    dist.new_group = lambda ranks=None, **_: group(ranks, backend="fake")
    parallel_state.init_distributed_environment(tp * pp, rank, "env://", 0, "fake")
    parallel_state.initialize_model_parallel(tp, pp)
    with set_default_torch_dtype(config.model_config.dtype), torch.device("meta"):
        return initialize_model(config)


def measured(case: Case, folder: str) -> Case:
    """The row of a case."""
    config = configured(case, folder)
    # As its second model runner does, which this platform lacks: one batch in flight more than stages.
    config.scheduler_config.async_scheduling = True
    type(config).use_v2_model_runner = property(lambda _: True)
    with set_current_vllm_config(config):
        model = built(case, config)
        current_platform.update_block_size_for_backend(config)
        specs, backends = {}, []
        for name, layer in config.compilation_config.static_forward_context.items():
            if isinstance(layer, AttentionLayerBase) and not getattr(layer, "kv_sharing_target_layer_name", None):
                spec = layer.get_kv_cache_spec(config)
                if spec is not None:
                    specs[name] = spec
                    backends.append(layer.get_attn_backend())
        attention = [one for one in backends if not one.is_ssm()]
        names = [layout.name for layout in layouts.get_supported_kv_cache_layouts(attention)]
        layouts.resolve_kv_cache_layout(config, [names], specs.values())
        groups = kv_cache_utils.get_kv_cache_groups(config, specs)
        request = {}
        for tokens in case["contexts"]:
            config.model_config.max_model_len = tokens
            request[tokens] = kv_cache_utils._max_memory_usage_bytes_from_groups(config, groups)
    sizes = [(name, str(one.dtype), one.numel() * one.element_size()) for name, one in model.named_parameters()]
    kinds = Counter(f"{type(one).__name__} {one.page_size_bytes} {one.block_size}" for one in specs.values())
    weights = sum(size for *_, size in sizes)
    row: Case = {"request": request, "weights": weights, "kinds": kinds, "dtype": config.cache_config.cache_dtype}
    row["groups"] = [[len(group.layer_names), type(group.kv_cache_spec).__name__] for group in groups]
    return {**row, "parameters": sizes} if case.get("parameters") else row


def apart(case: Case) -> str:
    """The row of a case as JSON, from a process of its own: a world is made once."""
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(PATIENCE)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(nowhere, stream)
        try:
            with tempfile.TemporaryDirectory() as folder:
                row = measured(case, folder)
        except BaseException as error:
            row = {"error": f"{type(error).__name__}: {error}"[:400]}
        with os.fdopen(into, "w") as pipe:
            pipe.write(json.dumps(row))
        os._exit(0)
    os.close(into)
    with os.fdopen(out) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return text or json.dumps({"error": "its process died"})


if __name__ == "__main__":
    leave_out_kernels()
    for line in Path(sys.argv[1]).read_text().splitlines():
        print(apart(json.loads(line)), flush=True)
