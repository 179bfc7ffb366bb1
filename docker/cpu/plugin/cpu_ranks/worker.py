"""The worker: vLLM's CPU worker, able to be a later pipeline stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.distributed import get_pp_group
from vllm.v1.worker.cpu_worker import CPUWorker

if TYPE_CHECKING:
    from vllm.v1.worker.worker_base import CompilationTimes


class PipelineWorker(CPUWorker):
    """A CPU rank that has a place for what the stage before it sends."""

    def compile_or_warm_up_model(self) -> CompilationTimes:
        """Warm up, then allocate what a later stage receives into.

        vLLM allocates it in the dummy run that compiling needs, and eager mode on a CPU has no dummy run: without
        this the first request kills every stage but the first (`assert self.intermediate_tensors is not None`),
        and until then /health answers 200.
        """
        times = super().compile_or_warm_up_model()
        runner = self.model_runner
        if not get_pp_group().is_first_rank and runner.intermediate_tensors is None:
            runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
                batch_size=runner.max_num_tokens, dtype=self.model_config.dtype, device=self.device
            )
        return times
