"""Spellings that earlier versions had, with what to use instead: each ends with exit code 2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vllm_cluster.errors import UsageError

# What is typed behind `vcluster` → the line to use: a verb ("facts"), or an option of a verb ("batch --on-head").
INSTEAD: Mapping[str, str] = {
    "bundle": "vcluster explain --bundle report.tar.gz",
    "facts": "vcluster check --facts",
    "history": "vcluster status --history",
    "key": "vcluster endpoint --key",
    "schema": "vcluster init --schema",
    "ssh": "vcluster exec HOST --ssh",
    "status --ray": "vcluster exec --head -- ray status",
    "top": "vcluster status --watch",
    "tunnel": "vcluster endpoint --tunnel",
    "wait": "vcluster status --wait",
    "logs --fold": "vcluster logs --errors",
    "logs --polls": "vcluster logs --grep GET",
}


def refuse(path: str, names: Sequence[str]) -> None:
    """Refuse a verb or options that were removed; `path` is the program, or the verb with the program before it.

    Raises:
        UsageError: one of these names was removed; the hint is the line to use instead.
    """
    verb = path.partition(" ")[2]
    gone = {name: INSTEAD[key] for name in names if (key := f"{verb} {name}".strip()) in INSTEAD}
    if gone:
        raise UsageError(f"{path} no longer has {', '.join(gone)}", hint="\n".join(dict.fromkeys(gone.values())))
