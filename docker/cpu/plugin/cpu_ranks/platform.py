"""The platform: vLLM's own CPU platform, with what Ray and several hosts need in addition."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.platforms.cpu import CpuPlatform

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class CpuRanksPlatform(CpuPlatform):
    """CPU ranks, one for each logical GPU of ``ray start --num-gpus N``."""

    # CpuPlatform leaves this empty and vLLM then refuses Ray ("current platform cpu does not support ray").
    ray_device_key: str = "GPU"

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        """The communicator that knows that ranks may sit on different hosts."""
        return "cpu_ranks.communicator.HostAwareCommunicator"

    @classmethod
    def apply_config_platform_defaults(cls, vllm_config: VllmConfig) -> None:
        """Run eagerly: compiling needs a C++ compiler in the image, and minutes on a small machine."""
        from vllm.config import CompilationMode, CUDAGraphMode  # noqa: PLC0415 (asks for the current platform)

        super().apply_config_platform_defaults(vllm_config)
        # vLLM has looked at enforce_eager before it calls this, so what follows from it is set here as well.
        if vllm_config.model_config is not None:
            vllm_config.model_config.enforce_eager = True
        vllm_config.compilation_config.mode = CompilationMode.NONE
        vllm_config.compilation_config.cudagraph_mode = CUDAGraphMode.NONE

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        """Put our worker where vLLM would put its own."""
        if vllm_config.parallel_config.worker_cls == "auto":
            vllm_config.parallel_config.worker_cls = "cpu_ranks.worker.PipelineWorker"
        super().check_and_update_config(vllm_config)
