"""What features add to the layers below, which do not know them: a folder that is not there adds nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Generic, Protocol, TypeVar, cast

from vllm_cluster.kernel.terminal.verb import Verb

_PACKAGE = "vllm_cluster"
T = TypeVar("T")


class Feature(Protocol):
    """The module `feature` of each folder of features/."""

    VERBS: Mapping[str, Verb]


@cache
def features() -> tuple[Feature, ...]:
    """What each folder of features/ adds, by its name."""
    folder = f"{_PACKAGE}.features"
    # Not by pkgutil, which takes longer to import than to look.
    names = sorted(one.name for path in import_module(folder).__path__ for one in os.scandir(path) if _is_feature(one))
    return tuple(cast("Feature", import_module(f"{folder}.{name}.feature")) for name in names)


def _is_feature(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir() and os.path.exists(os.path.join(entry.path, "feature.py"))  # noqa: PTH110,PTH118 - as above


@dataclass(frozen=True)
class Hook(Generic[T]):
    """A place at which a layer asks for what features give it: they name it in `ADDS`, as MODULE:NAME."""

    name: str

    def given(self) -> list[T]:
        """What they give, imported now."""
        places = [adds[self.name] for one in features() if self.name in (adds := getattr(one, "ADDS", {}))]
        return [getattr(import_module(f"{_PACKAGE}.{module}"), name) for module, name in map(_split, places)]


def _split(place: str) -> tuple[str, str]:
    module, _, name = place.partition(":")
    return module, name
