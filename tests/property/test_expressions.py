"""No expression takes more than in proportion to what it reads: hosts, hubs and people's logs choose that."""

from __future__ import annotations

import pytest

from tests.support.expressions import Expression, every_expression

SIZE, TIMES = 1000, 8
# Where the longer text takes less, its square is that of a line: hosts' lines end after 4 kB where they are read.
QUICK_SECONDS = 0.002
# Eight times the text takes eight times as long, or 64 times where it goes with the square.
MOST = 24
# What never gets a text that long, or one with a line break, and why.
BOUNDED = {
    "features/slurm/sbatch.py: _LOG": "a word of a line",
    "serving/node/front_metrics.py: _KEY": "labels that _SAMPLE has read whole",
}


def slow(one: Expression) -> tuple[str, str] | None:
    """What it takes the square of, or more."""
    for begin, piece in sorted(one.near()):
        for end in ("", "\n!"):
            short, long = (begin + piece * (SIZE * times // len(piece)) + end for times in (1, TIMES))
            if all(one.seconds(long) > max(QUICK_SECONDS, MOST * one.seconds(short)) for _ in range(3)):
                return begin, piece
    return None


# fault: kernel/explain/failures.toml: ucp_\w{1,60} → ucp_\w+
# fault: kernel/backends/nccl.py: (\S{1,80}:\d{1,4})/ → (\S+:\d+)/
@pytest.mark.slow
@pytest.mark.spans
def test_no_expression_takes_the_square_of_what_it_reads() -> None:
    every = every_expression()
    assert len(every) > 500
    found = {
        one.where: (one.pattern.pattern, what) for one in every if one.where not in BOUNDED and (what := slow(one))
    }
    assert found == {}
    assert {one.where for one in every if one.where in BOUNDED and slow(one)} == BOUNDED.keys()
