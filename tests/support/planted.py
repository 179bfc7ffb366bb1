"""The faults that tests have planted above them: `# fault: FILE: BEFORE → AFTER`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import ROOT, TEST_FOLDERS

_FAULT = re.compile(r"# fault: (?P<file>\S+): (?P<before>.+?) →(?: (?P<after>.+))?")
_TEST = re.compile(r"(?:async )?def (?P<name>test_\w+)\(.*")


@dataclass(frozen=True)
class Fault:
    """A change that makes the package worse: `before` becomes `after` in one file, and `test` must fail."""

    file: str
    before: str
    after: str
    test: str

    def path(self, root: Path) -> Path:
        """Return the file to change, in this tree or in a copy of it; below vllm_cluster, or below the root."""
        inside = root / "vllm_cluster" / self.file
        return inside if inside.exists() else root / self.file

    def applies(self, root: Path) -> bool:
        """Return whether the text to change is there, once."""
        return self.path(root).exists() and self.path(root).read_text().count(self.before) == 1

    def __str__(self) -> str:
        return f"{self.file}: {self.before} → {self.after}  ({self.test})"


def faults() -> Iterator[Fault]:
    """Yield each fault that a test has above it."""
    for path in sorted(path for folder in TEST_FOLDERS for path in folder.rglob("test_*.py")):
        above: list[re.Match[str]] = []
        for line in path.read_text().splitlines():
            if found := _FAULT.fullmatch(line):
                above.append(found)
            elif found := _TEST.fullmatch(line):
                test = f"{path.relative_to(ROOT)}::{found['name']}"
                yield from (Fault(one["file"], one["before"], one["after"] or "", test) for one in above)
                above = []
