"""Whoever may use the head's Docker can write its files: no verb ends in a traceback."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from tests.support.sim import lab, make
from vllm_cluster.kernel.errors import VclusterError
from vllm_cluster.kernel.events import Emit
from vllm_cluster.kernel.hosts.runtime import Runtime
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.serving.status import history

INVENTORY = make.inventory(2)
DEEP = b"[" * 200_000 + b"]" * 200_000
READY = {"generation": "x", "name": "n", "model": "m", "argv": ["a"], "host": "127.0.0.1"}


def do_history(inventory: Inventory, _emit: Emit, runtime: Runtime) -> Any:
    """Read the history."""
    return history.history(inventory, runtime=runtime)


VERBS: dict[str, lab.Verb] = {
    "status": lab.do_status,
    "history": do_history,
    "stop": lab.do_stop,
    "serve": partial(lab.do_serve, model="org/other"),
    "rollback": lab.do_rollback,
    "up": lab.do_up,
    "down": lab.do_down,
}


# fault: kernel/node/named_files.py: return () → raise
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("wanted.json", DEEP),
        ("wanted.json", b'{"v": 1, "epoch": ' + b"9" * 4300 + b', "serve": null}'),
        ("audit.jsonl", DEEP),
        ("audit.jsonl", b'{"time": 1, "user": "u", "verb": "v", "operations": [], "request": 1e999}\n'),
        ("ready.json", DEEP),
        ("wanted.json", b'{"v": 1, "epoch": 1, "serve": {"argv": 5}}'),
        ("wanted.json", b'{"v": 3, "epoch": 1}'),
        ("request.json", b'{"v": 2, "asked": {}}'),
        ("ready.json", b'{"v": 1, "requests": null}'),
        ("ready.json", json.dumps({"v": 1, "requests": [READY]}).encode()),
        ("ready.json", json.dumps({"v": 1, "requests": [{**READY, "name": ["n"], "argv": 5, "host": {}}]}).encode()),
        ("results.jsonl", b'{"request": 1, "result": "failed"}\n'),
    ],
)
def test_an_odd_file_of_the_head_ends_no_verb_in_a_traceback(verb: str, file: str, content: bytes) -> None:
    with lab.cluster(2, lab.do_up, lab.do_serve) as world:
        world.machines["gpu1"].volumes["vcluster-lab-state"].files[file] = content
        done = lab.run(world, INVENTORY, VERBS[verb])
        assert done.error is None or isinstance(done.error, VclusterError)
