"""Planted faults: one change of the package each, and the tests that must turn red by it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import ROOT

PACKAGE, SANDBOX = "vllm_cluster", "vcluster_sandbox"
DATA = ROOT / "tests" / "faults"
_REQUIRED = {"file", "before", "after", "harm", "tests"}


@dataclass(frozen=True)
class Fault:
    """A change that makes the package worse: `before` becomes `after` in one file, and users suffer `harm`.

    `found` is the defect in plain words, where the package once had it; `hosts` is set where a test needs real hosts.
    """

    name: str
    room: str
    file: str
    before: str
    after: str
    harm: str
    tests: tuple[str, ...]
    found: str = ""
    hosts: bool = False

    def path(self, root: Path = ROOT) -> Path:
        """The file to change, in this tree or in a copy of it."""
        return root / (SANDBOX if self.room == SANDBOX else PACKAGE) / self.file

    def applies(self, root: Path = ROOT) -> bool:
        """Whether the text to change is there, once."""
        return self.path(root).exists() and self.path(root).read_text().count(self.before) == 1

    def changed(self, root: Path = ROOT) -> str:
        """The whole file with the fault in it."""
        return self.path(root).read_text().replace(self.before, self.after)


def faults() -> Iterator[Fault]:
    """All of them, room by room, as they are in tests/faults/ROOM.toml.

    Raises:
        ValueError: a key is missing.
        TypeError: a key is unknown.
    """
    for path in sorted(DATA.glob("*.toml")):
        for name, row in tomllib.loads(path.read_text()).items():
            if missing := _REQUIRED - row.keys():
                raise ValueError(f"{path.name}: {name}: {', '.join(sorted(missing))} is missing")
            yield Fault(name=name, room=path.stem, **{**row, "tests": tuple(row["tests"])})
