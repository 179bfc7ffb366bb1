"""Asks the nodes what they have of a model, and the image's own vLLM what it takes the flags for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from vllm_cluster.core.desired import CODE_FOLDER
from vllm_cluster.errors import ConnectionLost, HostError
from vllm_cluster.fit.request import Files, Judged
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.run.connection import Fleet, HostConnection
from vllm_cluster.run.node_handle import NodeHandle
from vllm_cluster.run.program import python_source

# vLLM's parser answers in a tenth of a second; it is imported right after `up`, for the first time from a cold disk.
VLLM_SECONDS = 90.0
# Two requests to the hub, a start of Python, and what is above.
ASK_SECONDS = 130.0

# The node program's file, in a process that ends with its input.
_CHECK = f"""
import runpy, sys
sys.path.insert(0, {CODE_FOLDER!r})
sys.argv.append("check")
runpy.run_path("{CODE_FOLDER}/node.py", run_name="__main__")
"""

_FILES, _JUDGED = TypeAdapter(Files), TypeAdapter(Judged)


def ask_nodes(
    fleet: Fleet, inventory: Inventory, question: Mapping[str, Any], hosts: Sequence[str]
) -> tuple[dict[str, Files], Judged]:
    """What the nodes of these hosts answer about a model; the head, one of them, about flags and the hub too."""
    head = inventory.head_name
    about_files = {"model": question["model"], "revision": question["revision"], "ask_hub": False}

    def ask(connection: HostConnection) -> tuple[Files, Judged]:
        return _ask(connection, inventory.cluster, question if connection.name == head else about_files)

    answers = fleet.all(ask, hosts)
    return {host: files for host, (files, _) in answers.items()}, answers[head][1]


def _ask(connection: HostConnection, cluster: str, question: Mapping[str, Any]) -> tuple[Files, Judged]:
    check = python_source("check", _CHECK, seconds=ASK_SECONDS)
    try:
        ended = NodeHandle(connection, cluster).run(check, ASK_SECONDS + 10, question)
        answer = next(row for row in reversed(ended.messages) if row.get("v") == 1)
        return _FILES.validate_python(answer["files"]), _JUDGED.validate_python(answer["vllm"])
    except ConnectionLost:
        raise
    except (HostError, StopIteration, LookupError, ValidationError) as error:
        why = error.detail if isinstance(error, HostError) else "the node gave no answer"
        return Files("unknown"), Judged(unchecked=why)
