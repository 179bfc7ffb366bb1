"""How many requests each replica works on: what one reports of itself changes nothing of the others."""

from __future__ import annotations

import pytest

from tests.support.paths import FIXTURES
from vllm_cluster.serving.node.front_metrics import MAX_ALL, MAX_ALL_LINES, merge
from vllm_cluster.wire.metrics import MAX_METRICS, Load, read_loads

REAL = (FIXTURES / "metrics" / "vllm-0.32.0.txt").read_text()
HONEST = {"1": Load(7, 2)}


def page(running: str, waiting: str, labels: str = 'engine="0",model_name="m"') -> str:
    """What a replica reports."""
    rows = (("running", running), ("waiting", waiting))
    return "".join(f"vllm:num_requests_{what}{{{labels}}} {number}\n" for what, number in rows)


# fault: wire/metrics.py: return number if 0 <= number <= MAX_REQUESTS else nan → return number
# fault: wire/metrics.py: return load if load.running <= MAX_REQUESTS and load.waiting <= MAX_REQUESTS else None → return load
@pytest.mark.parametrize("odd", ["NaN", "+Inf", "-Inf", "-9", "1e99", "9" * 200])
def test_a_number_that_can_not_be_is_unknown_and_of_its_replica_alone(odd: str) -> None:
    """They were added up: a question counted 0 requests, or ended in a traceback."""
    for text in (page(odd, "1"), page("1", odd), page(odd, "1") + page("1", "1", 'engine="1"')):
        assert read_loads(merge({0: text, 1: page("7", "2")})) == {"0": None, **HONEST}


def test_what_a_replica_calls_itself_does_not_count() -> None:
    theirs = page("0", "0", 'replica="1",model_name="other"')
    assert read_loads(merge({0: theirs, 1: page("7", "2")})) == {"0": Load(0, 0), **HONEST}
    assert read_loads(merge({0: page("1", "1") + page("2", "2", 'engine="1"')})) == {"0": Load(3, 3)}
    assert read_loads(merge({0: "vllm:num_requests_running 1\n", 1: page("7", "2")})) == {"0": None, **HONEST}
    assert read_loads(REAL) == {"": Load(0, 0)}
    assert read_loads("") == {}


def test_a_reader_takes_all_that_the_front_writes() -> None:
    """What comes last would be cut off: the honest ones, where others write as much as they may."""
    assert MAX_ALL + MAX_ALL_LINES * len('{replica="4095",exported_') < MAX_METRICS
