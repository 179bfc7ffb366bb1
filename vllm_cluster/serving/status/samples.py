"""Samples of one node's load: one program that stays resident in it, read line by line."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from vllm_cluster.kernel.errors import HostError
from vllm_cluster.kernel.hosts.program import InNode, python, start
from vllm_cluster.kernel.node.handle import NodeHandle
from vllm_cluster.kernel.plan.desired import STATE_FOLDER
from vllm_cluster.serving.status.load import NodeSample, UnreadableSample, parse_sample

START_SECONDS = 30.0
# A node on a busy host, and a /metrics that does not answer in its own 5 s.
SILENT_SECONDS = 15.0
# Then the program is started again: nothing of it stays on a host for longer, whoever forgot it.
LIFE_SECONDS = 3600.0
# Of a status with two failures of each replica and their last lines, and of vLLM's counters: texts in a text.
MAX_SAMPLE = 8 << 20


def samples(node: NodeHandle, seconds: float) -> Iterator[NodeSample]:
    """A sample every so many seconds, until the program ends: with the node, or after its time.

    Raises:
        HostError: it does not start, is silent for too long, or the connection broke.
    """
    runtime = node.connection.runtime
    words, needs = (f"{seconds:g}", STATE_FOLDER), "wire.listeners"
    program = python("serving.status.on_host", "sample", *words, seconds=LIFE_SECONDS, needs=needs)
    program = replace(program, max_line=MAX_SAMPLE, max_bytes=math.inf)
    with start(node.connection, program, InNode(node.name), runtime.after(START_SECONDS)) as running:
        while True:
            row = next(running.messages(runtime.after(seconds + SILENT_SECONDS)), None)
            if row is None:
                running.finish(runtime.after(0))
                return
            try:
                yield parse_sample(row)
            except UnreadableSample as error:
                raise HostError(node.host, f"its sample cannot be read: {error}", again=()) from error
