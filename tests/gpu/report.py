"""What was measured, as JSON after every step and as Markdown for people."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Report:
    """Figures by step, kept in PATH.json and PATH.md, so that a run that is broken off loses nothing."""

    path: Path
    steps: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def resumed(cls, path: Path) -> Report:
        """With what an earlier run left there."""
        kept = path.with_name(path.name + ".json")
        return cls(path, json.loads(kept.read_text())["steps"] if kept.exists() else {})

    def keep(self, step: str, figures: Any) -> None:
        """Hold what a step gave, and write both files."""
        self.steps[step] = figures
        self.path.parent.mkdir(parents=True, exist_ok=True)
        whole = {"v": 1, "steps": self.steps}
        self.path.with_name(self.path.name + ".json").write_text(json.dumps(whole, indent=1) + "\n")
        self.path.with_name(self.path.name + ".md").write_text(markdown(self.steps))

    def has(self, step: str) -> bool:
        """Whether a step was done, and well."""
        found = self.steps.get(step)
        return isinstance(found, dict) and not {"failed", "skipped", "broken_off"} & set(found)


def markdown(steps: dict[str, Any]) -> str:
    """The page."""
    lines = ["# A cluster of GPU hosts, measured", ""]
    for name, figures in steps.items():
        lines += [f"## {name}", ""]
        lines += _table(figures) if isinstance(figures, dict) else [str(figures)]
        lines.append("")
    return "\n".join(lines)


def _table(figures: dict[str, Any]) -> list[str]:
    simple = {key: value for key, value in figures.items() if not _rows(value) and key != "document"}
    lines = ["| what | figure |", "|---|---|"] if simple else []
    lines += [f"| {_cell(key)} | {_cell(value)} |" for key, value in simple.items()]
    for key, value in figures.items():
        if _rows(value):
            heads = list(dict.fromkeys(head for row in value for head in row))
            lines += ["", f"{_cell(key)}:", "", _line(heads), _line("---" for _ in heads)]
            lines += [_line(row.get(head, "") for head in heads) for row in value]
    return lines


def _rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _line(cells: Any) -> str:
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _cell(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text.replace("|", "\\|").replace("\n", " ").replace("_", " ")
