"""Holds what commands print with --json against the schemas in docs/reference/json/; `make generate` writes these."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from tests.support.paths import ROOT

FOLDER = ROOT / "docs" / "reference" / "json"
# The schema of what a command prints; every other command with --json prints events.
DOCUMENTS = {
    **{name: name for name in ("plan", "status", "check", "fit", "explain")},
    **{
        "status --watch": "watch",
        "status --history": "history",
        "check --facts": "facts",
        "explain --bundle": "bundle",
        "explain NAME": "failure",
        "endpoint --key": "key",
    },
    **{name: name for name in ("complete", "chat", "endpoint", "bench")},
    **{"models ls": "models", "image ls": "image", "batch --list": "batch", "slurm job": "slurm"},
    **{f"slurm {verb}": f"slurm-{verb}" for verb in ("status", "logs", "endpoint", "explain")},
}
# What prints events beside a verb that prints a document.
_EVENTS = ("endpoint --close", "endpoint --tunnel", "models rm", "status --wait")


@cache
def validator(name: str) -> Draft202012Validator:
    """What judges by the schema in the file."""
    return Draft202012Validator(json.loads((FOLDER / f"{name}.schema.json").read_text()))


def validate(argv: Sequence[str], output: str) -> None:
    """Hold what a command wrote with --json against its schema: one document, or events line by line."""
    commands = {**dict.fromkeys(_EVENTS, "events"), "models": "models", "endpoint --rotate": "key", **DOCUMENTS}
    fits = [command for command in commands if {*command.split()} <= {*argv}]
    verb = commands[max(fits, key=lambda command: len(command.split()))] if fits else "events"
    for line in output.splitlines():
        row = json.loads(line)
        judge = validator("events" if row.get("event") == "error" else verb)
        problem = best_match(judge.iter_errors(row))
        assert problem is None, f"{verb} --json: {problem.json_path}: {problem.message[:2000]}\n{line[:2000]}"
