"""The planted faults fit today's package: each changes one place, to something that can be run, and names its tests."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.support.modules import PACKAGE
from tests.support.paths import ROOT
from tests.support.planted import SANDBOX, Fault, faults

FAULTS = list(faults())


@cache
def text(path: Path) -> str:
    """What is in a file of tests."""
    return path.read_text()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_can_be_planted(fault: Fault) -> None:
    """Where this fails, the code has changed: change `before` and `after` to what would be the same fault today."""
    assert fault.applies()
    assert fault.before != fault.after
    assert fault.harm
    assert fault.tests
    if fault.path().suffix == ".py":
        ast.parse(fault.changed())
    for test in fault.tests:
        path, *names = test.split("::")
        assert f"def {names[-1]}(" in text(ROOT / path)


def test_a_name_is_given_once() -> None:
    names, rooms = [fault.name for fault in FAULTS], {fault.room for fault in FAULTS}
    assert len({*names, *rooms}) == len(names) + len(rooms)


def test_every_room_has_faults() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    rooms.add(SANDBOX)
    assert {fault.room for fault in FAULTS} == rooms
