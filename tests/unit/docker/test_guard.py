"""The guard and the fence: what may still be sent to a host, and over which streams."""

from __future__ import annotations

import pytest

from tests.support.sim import lab, make
from tests.support.sim.carrier import DIAL, FakeTransport
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.docker.client import DockerApi
from vllm_cluster.kernel.errors import HostError
from vllm_cluster.kernel.transport.base import Stream, Target


def refuse() -> None:
    raise HostError("gpu1", "the lease is lost")


# fault: kernel/docker/calls.py: _SAFE = ("GET", "HEAD") → _SAFE = ("GET", "HEAD", "POST")
def test_a_guard_that_refuses_lets_no_changing_call_out() -> None:
    world = make.world((2,))
    with lab.inside(world):
        carrier = FakeTransport(world, Target("gpu1", "gpu1"))
        engine = DockerApi(carrier, "1.41", refuse)
        with pytest.raises(HostError, match="the lease is lost"):
            engine.create("some", {})
        assert engine.containers(None) == ()
        with pytest.raises(HostError, match="the lease is lost"):
            engine.volumes.create("some", {})
        with pytest.raises(HostError, match="the lease is lost"):
            engine.put_files("some", "/", {"file": (b"", 0o600)})
        assert engine.volumes.labelled("some") == {}
        engine.guard = None
        engine.volumes.create("some", {"some": "label"})
        assert engine.volumes.labelled("some") == {"some": {"some": "label"}}
    assert [call.what for call in world.script.calls if call.changes] == ["POST /volumes/create"]


def test_behind_a_fence_only_its_streams_are_used() -> None:
    world, opened = make.world((2,)), list[Stream]()
    with lab.inside(world):
        carrier = FakeTransport(world, Target("gpu1", "gpu1"))

        def open_stream() -> Stream:
            opened.append(carrier.open_stream(DIAL, Deadline.after(1)))
            return opened[-1]

        engine = DockerApi(carrier, "1.41")
        engine.containers(None)
        (before,) = carrier._streams
        engine.fence(open_stream)
        assert before.ended, "an idle stream was left open"
        engine.containers(None)
        engine.containers(None)
        assert len(opened) == 1
