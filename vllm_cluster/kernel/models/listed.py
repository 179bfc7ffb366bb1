"""Models in a host's cache, as `kernel/models/models.sh` prints them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vllm_cluster.kernel.facts.values import number
from vllm_cluster.wire.values import one_line, quoted_labels

END = "whole"
_COLUMNS = 6


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model in a cache: a repository of the hub at its commit, or a folder, whose name begins with `./`.

    `size_bytes` is what it takes on the disk; `last_read` when its weights were read, by the host's clock: a file
    system that keeps no such time has when they were written. `problem` is empty where it is complete.
    """

    name: str
    commit: str
    size_bytes: int
    last_read: float | None
    problem: str


def parse_models(text: str) -> tuple[CachedModel, ...]:
    """Read what the script printed; what is before it is a login shell's.

    Raises:
        ValueError: it did not print to its end.
    """
    lines = text.splitlines()
    if END not in lines:
        raise ValueError("the list of models has no end")
    return tuple(_models(lines))


def _models(lines: list[str]) -> Iterator[CachedModel]:
    for line in lines:
        kind, *rest = line.split("|", _COLUMNS - 1)
        if kind not in ("hub", "folder") or len(rest) != _COLUMNS - 1:
            continue
        name, commit, kib, used, problem = rest
        yield CachedModel(
            # As huggingface_hub writes it: "--" for the one "/" of a repository.
            name=quoted_labels(name.replace("--", "/", 1)) if kind == "hub" else f"./{name}",
            commit=one_line(commit),
            size_bytes=1024 * (number(kib) or 0),
            last_read=None if (read := number(used)) is None else float(read),
            problem=one_line(problem),
        )
