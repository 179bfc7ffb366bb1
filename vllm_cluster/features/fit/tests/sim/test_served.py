"""`vcluster fit NAME`: what is served under that name."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.support.sim import lab, make
from tests.support.sim.world import World
from vllm_cluster.features.fit.served import context_of, kv_cache_dtype_of, served_as

INVENTORY = make.inventory(2, backend="mp")
ONE, OTHER = "org/model", "org/other"


@pytest.fixture
def served() -> Iterator[World]:
    """A model on the first of two hosts."""
    world = make.world((2, 2))
    with lab.inside(world):
        lab.succeed(world, INVENTORY, lab.do_up)
        lab.succeed(world, INVENTORY, partial(lab.do_serve, hosts=("gpu1",), model=ONE))
        yield world


# fault: features/fit/served.py: if "/" in name or Path(name).exists(): → if Path(name).exists():
def test_fit_takes_the_name_of_what_is_served(served: World) -> None:
    flags = ("--max-model-len=4096", "--kv-cache-dtype", "fp8")
    lab.succeed(served, INVENTORY, partial(lab.do_serve, hosts=("gpu2",), model=OTHER, name="chat", flags=flags))
    events: list[str] = []

    def of(name: str) -> Any:
        done = lab.run(served, INVENTORY, lambda i, emit, r: served_as(name, i, emit, runtime=r))
        events.extend(event.text for event in done.events if event.kind == "note")
        assert done.error is None
        return done.value

    found = of("chat")
    assert (found.model, context_of(found), kv_cache_dtype_of(found)) == (OTHER, 4096, "fp8")
    text = "org/other --name chat --hosts gpu2 -- --max-model-len=4096 --kv-cache-dtype fp8 (TP=2 × PP=1)"
    assert events == [f"chat is served: {text}"]
    assert (of(ONE), of("gpt2"), of("tests")) == (None, None, None)
    lab.succeed(served, INVENTORY, lab.do_down)
    assert of("chat") is None
