"""Samples of one node's load: one program that stays resident in it, read line by line."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import replace

from vllm_cluster.kernel.errors import HostError
from vllm_cluster.kernel.hosts.program import InNode, message_in, python, start
from vllm_cluster.kernel.node.handle import NodeHandle
from vllm_cluster.kernel.plan.desired import STATE_FOLDER
from vllm_cluster.serving.status.load import NodeSample, UnreadableSample, parse_sample
from vllm_cluster.wire.keys import NEEDED

START_SECONDS = 30.0
# A node on a busy host, and a /metrics that does not answer in its own 5 s.
SILENT_SECONDS = 15.0
# Then the program is started again: nothing of it stays on a host for longer, whoever forgot it.
LIFE_SECONDS = 3600.0
# The head's has its status, with what failed of each replica, and vLLM's counters: texts in a text. Others have their
# GPUs alone, and there are many of them: 128 with 300 characters of error each are 80 KB.
MAX_OF_HEAD, MAX_SAMPLE = 3 << 20, 128 << 10
# What becomes of a line takes several times its memory for a moment: of one host at a time.
_reading = threading.Lock()


def samples(node: NodeHandle, seconds: float, *, head: bool) -> Iterator[NodeSample]:
    """A sample every so many seconds, until the program ends: with the node, or after its time.

    Raises:
        HostError: it does not start, is silent for too long, or the connection broke.
    """
    runtime = node.connection.runtime
    words, needs = (f"{seconds:g}", STATE_FOLDER), (*NEEDED, "wire.listeners", "wire.metrics")
    program = python("serving.status.on_host", "sample", *words, seconds=LIFE_SECONDS, needs=needs)
    program = replace(program, max_line=MAX_OF_HEAD if head else MAX_SAMPLE, max_bytes=math.inf)
    with start(node.connection, program, InNode(node.name), runtime.after(START_SECONDS)) as running:
        due = runtime.after(seconds + SILENT_SECONDS)
        while (line := next(running.lines(due), None)) is not None:
            if found := _sample(node.host, line):
                yield found
                due = runtime.after(seconds + SILENT_SECONDS)
        running.finish(runtime.after(0))


def _sample(host: str, line: bytes) -> NodeSample | None:
    """The sample that a line is, and None where it is something else that was printed."""
    with _reading:
        try:
            row = message_in(line)
            return parse_sample(row) if row is not None else None
        except UnreadableSample as error:
            raise HostError(host, f"its sample cannot be read: {error}", again=()) from error
