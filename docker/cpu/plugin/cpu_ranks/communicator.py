"""The communicator: shared memory only between ranks that share it."""

from __future__ import annotations

import socket
from pathlib import Path

import torch.distributed
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator


class HostAwareCommunicator(CpuCommunicator):
    """vLLM's CPU communicator, which takes gloo when a group spans hosts."""

    def _all_group_ranks_share_shm_group_name(self) -> bool:
        """Whether the shared-memory path may be taken.

        vLLM compares a name made from the rendezvous port, which is the same on every host, so ranks on different
        hosts agree and die with "open shm in SHMManager failed. errno: 2". What they must share is one /dev/shm:
        the same host name and the same mount of it (two containers of one host have two).
        """
        here = f"{socket.gethostname()} {Path('/dev/shm').stat().st_dev}"
        places: list[str] = [""] * self.world_size
        torch.distributed.all_gather_object(places, here, group=self.device_group)
        return len(set(places)) == 1 and super()._all_group_ranks_share_shm_group_name()
