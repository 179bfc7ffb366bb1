"""Keeps vLLM's ranks on the hosts that a request names: the other GPUs are taken in Ray before vLLM asks for its own.

vLLM has no option for that: its executor asks Ray for so many GPUs, anywhere. A placement group is Ray's own means to
take GPUs of one host, and it ends with the process that made it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from vllm_cluster.serving.node.backends import backend
from vllm_cluster.serving.node.process import Child, end

# Before another try.
PAUSE = 5.0


class IdleGpus:
    """The GPUs that a request leaves idle, held from before its start until its end."""

    def __init__(self, environment: Mapping[str, str], reap: Callable[[], None]) -> None:
        self.child: Child | None = None
        self._environment, self._reap = environment, reap
        self._idle: dict[str, int] = {}
        self._held = False

    def hold(self, idle: dict[str, int]) -> str:
        """Hold these (address → number); why vLLM must still wait, empty once they are held."""
        if idle != self._idle or (self.lost and self.child and time.monotonic() - self.child.began > PAUSE):
            self.release()
        if not idle:
            return ""
        if self.child is None:
            program = [sys.executable, str(Path(__file__).parents[__name__.count(".")] / "node.py"), "hold-gpus"]
            self._idle = dict(idle)
            self.child = Child("idle", [*program, json.dumps(idle)], self._environment, self._see)
        named = ", ".join(f"{number} of {address}" for address, number in idle.items())
        if self.lost:
            self.child.read_rest()
            last = self.child.tail[-1] if self.child.tail else f"exit code {self.child.code()}"
            return f"cannot hold the GPUs that stay idle ({named}): {last}"
        return "" if self._held else f"holding the GPUs that stay idle: {named}"

    @property
    def lost(self) -> bool:
        """Whether what was to be held is not, and will not be."""
        return self.child is not None and self.child.code() is not None

    def release(self) -> None:
        """Give them back to Ray."""
        if self.child:
            end(self.child.alive, lambda: 2.0, self._reap)
            self.child.code()
        self.child, self._idle, self._held = None, {}, False

    def _see(self, line: str) -> None:
        self._held = self._held or line == backend.HELD
