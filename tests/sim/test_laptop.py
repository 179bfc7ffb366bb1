"""P31: nothing of the laptop's own configuration reaches a host."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.canaries import BROKEN, Laptop, laptop
from tests.support.figures import record
from tests.support.sim import carrier, lab, make, oracle
from vllm_cluster.clock import Deadline
from vllm_cluster.transport.base import Result

pytestmark = pytest.mark.promise("P31")

VERBS = (lab.do_plan, lab.do_up, lab.do_up, lab.do_serve, lab.do_status, lab.do_stop, lab.do_down)


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """All bytes that reach a host: commands, their input, and what goes over streams."""
    seen: list[bytes] = []
    run, opened, send = carrier.FakeTransport.run, carrier.FakeTransport.open_stream, carrier._Stream.sendall

    def recorded_run(self: carrier.FakeTransport, argv: list[str], deadline: Deadline, *, stdin: bytes = b"") -> Result:
        seen.extend([*(word.encode() for word in argv), stdin])
        return run(self, argv, deadline, stdin=stdin)

    def recorded_open(self: carrier.FakeTransport, argv: list[str], deadline: Deadline) -> object:
        seen.extend(word.encode() for word in argv)
        return opened(self, argv, deadline)

    def recorded_send(self: carrier._Stream, data: bytes) -> None:
        seen.append(bytes(data))
        send(self, data)

    monkeypatch.setattr(carrier.FakeTransport, "run", recorded_run)
    monkeypatch.setattr(carrier.FakeTransport, "open_stream", recorded_open)
    monkeypatch.setattr(carrier._Stream, "sendall", recorded_send)
    return seen


def live_there(made: Laptop, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)


def everything() -> Iterator[str]:
    """Every verb, on hosts that lack the image, so that it is pulled and built."""
    world, inventory = make.world((2, 2), present=False), make.inventory(2)
    with lab.inside(world):
        for verb in VERBS:
            outcome = lab.succeed(world, inventory, verb)
            yield from (call.what for call in outcome.script.calls)
        oracle.nothing_left(world)


def test_no_login_header_or_proxy_of_the_laptop_reaches_a_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wire: list[bytes]
) -> None:
    made = laptop(tmp_path, path=os.environ["PATH"])
    live_there(made, monkeypatch)
    calls = list(everything())
    assert any("docker pull" in call for call in calls), "nothing was pulled"
    assert any("/build" in call for call in calls), "nothing was built"
    assert made.found_in(wire) == []
    assert not made.record.exists(), f"a credential helper was run: {made.record.read_text()}"
    size = sum(map(len, wire)) / 1e6
    figure = f"0 of {len(made.secrets)} canaries in {len(calls)} calls ({size:.1f} MB); no credential helper was run"
    record("P31", "sim: config.json, netrc, proxies and caches full of canaries, every byte sent", figure, True)


@pytest.mark.parametrize("config", [*BROKEN, b"{", b"\xff\xfe\x00"], ids=repr)
def test_a_broken_docker_configuration_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: object
) -> None:
    made = laptop(tmp_path, path=os.environ["PATH"], config=config if not isinstance(config, bytes) else {})
    if isinstance(config, bytes):
        (tmp_path / ".docker" / "config.json").write_bytes(config)
    live_there(made, monkeypatch)
    assert list(everything())
    assert not made.record.exists()
