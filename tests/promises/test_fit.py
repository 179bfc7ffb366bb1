"""P54: what `fit` computes of a model is what the image's own vLLM plans for it, or is called an estimate."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.attack import attack
from tests.support.hosts import Sandbox
from tests.support.models import families
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.promise, pytest.mark.deep]

# Of vLLM, too: it is not imported here.
PROGRAM = Path(families.__file__).with_name("vllm_kv.py")
PIECE, LIMIT_S = 90_000, 1800
NODE = ("exec", "vcluster-sandbox", "sh", "-c")


def put(cluster: Sandbox, text: str, path: str) -> None:
    """Write a file in the head's container."""
    packed = base64.b64encode(text.encode()).decode()
    cluster.docker("gpu1", *NODE, f"rm -f {path}.b64")
    for at in range(0, len(packed), PIECE):
        cluster.docker("gpu1", *NODE, f"printf %s {packed[at : at + PIECE]} >> {path}.b64")
    cluster.docker("gpu1", *NODE, f"base64 -d {path}.b64 > {path}")


def planned(cluster: Sandbox, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the image's vLLM makes of each case."""
    put(cluster, PROGRAM.read_text(), "/tmp/vllm_kv.py")
    put(cluster, "".join(json.dumps(case) + "\n" for case in cases), "/tmp/cases")
    program = "cd /tmp && python3 vllm_kv.py cases > rows 2> trouble; touch ended"
    cluster.docker("gpu1", *NODE, "rm -f /tmp/ended")
    cluster.docker("gpu1", "exec", "-d", *NODE[1:], program)
    until(lambda: cluster.docker("gpu1", *NODE, "ls /tmp").split().count("ended"), LIMIT_S, 5)
    rows = cluster.docker("gpu1", *NODE, "cat /tmp/rows").splitlines()
    assert len(rows) == len(cases), cluster.docker("gpu1", *NODE, "tail -c 2000 /tmp/trouble")
    return [json.loads(row) for row in rows]


@pytest.mark.cluster("up")
@pytest.mark.timeout(LIMIT_S + 300)
def test_fit_is_the_arithmetic_of_the_images_own_vllm(cluster: Sandbox) -> None:
    cases = [dict(case) for case in families.cases()]
    with attack("P54", "configs of many families, built by the image's own vLLM without memory") as measured:
        rows = planned(cluster, cases)
        wrong = [*families.differences(cases, rows)]
        assert not wrong, f"{len(wrong)} of {len(cases)}: {wrong[:30]}"
        ours = [families.judged(case) for case in cases]
        exact = [
            abs(one.request[int(tokens)] / held - 1)
            for one, row in zip(ours, rows, strict=True)
            if not (one.problem or one.estimate)
            for tokens, held in row["request"].items()
        ]
        refused = sum(bool(one.problem) for one in ours)
        guessed = {case["name"] for case, one in zip(cases, ours, strict=True) if one.estimate}
        measured.figure = (
            f"{len(families.FAMILIES)} models in {len(cases)} layouts: {len(exact)} KV caches off by "
            f"{max(exact):.1%} at most, {len(guessed)} models called an estimate; {refused} layouts refused by both"
        )
    assert len(exact) > 2 * len(cases)
