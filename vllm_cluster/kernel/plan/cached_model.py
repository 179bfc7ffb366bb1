"""Where a model is below the model cache, and what reads it there: pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.shell_line import command_line

# Of the hub: no part of it is `..`, which would lead elsewhere.
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/\w[\w.-]{0,95})?", re.ASCII)
# What huggingface_hub keeps in the cache beside the folders of models.
_HUB_FOLDERS = ("hub", "xet", "assets", "modules", "datasets", "token", "stored_tokens")
# No space, no control character, no `..`: a folder is never outside the cache, and its name steers no terminal.
_FOLDER = re.compile(r"\./(?P<path>[A-Za-z0-9_][\w.+-]*(/[A-Za-z0-9_][\w.+-]*){0,2})", re.ASCII)


def pull_line(model: str, revision: str = "") -> str:
    """The command that brings a model that a host names; empty where that is none of the hub.

    Where a folder comes from, only its sender knows: `./NAME` and `HOST:PATH` would be what this laptop or a host has.
    """
    name = f"{model}@{revision}" if revision else model
    return command_line("vcluster", "pull", name) if REPOSITORY.fullmatch(model) else ""


@dataclass(frozen=True)
class CachePlace:
    """A model by its name, and its folder below the cache."""

    model: str
    folder: str
    kind: str

    def is_named_in(self, words: Iterable[str], cache: str) -> bool:
        """Whether one of these words of a command line names it, its folder, or what is below that."""
        whole = [self.folder.rpartition("/")[2] if self.kind == "hub" else f"{cache}/{self.folder}", self.model]
        named = re.compile("|".join(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])" for name in whole))
        return any(named.search(word) for word in words)


def repository_folder(model: str) -> str:
    """Where a repository of the hub is below a cache."""
    return f"hub/models--{model.replace('/', '--')}"


def fitting_name(name: str) -> str:
    """A name that a folder of the cache may have, near to this one."""
    words = re.sub(r"[^\w.+-]+", "-", name.removeprefix("./"), flags=re.ASCII).strip("-.+")
    return f"{words or 'my'}-model" if words in ("", *_HUB_FOLDERS) else words


def as_asked(model: str, cache: str) -> str:
    """Return what verbs take for a model that vLLM got by its path: a folder below the cache is ./NAME."""
    named = model.replace(f"{cache}/", "./", 1) if model.startswith(f"{cache}/") else model
    return named if _path(named) else model


def _path(model: str) -> str:
    """The folder below the cache that ./NAME means; empty where it is none of a model."""
    found = _FOLDER.fullmatch(model)
    return found["path"] if found and found["path"].split("/")[0] not in _HUB_FOLDERS else ""


def model_names(names: Iterable[str]) -> tuple[str, ...]:
    """Those of what is in a cache that verbs take for a model: a folder there may be named as an option or a path."""
    return tuple(name for name in names if _path(name) or REPOSITORY.fullmatch(name))


def agreed(names: Mapping[str, Collection[str]], head: str) -> tuple[str, ...]:
    """Those of the names by host that a remedy may have: the head's, and what several hosts have.

    One worker alone would choose what is pulled or served next.
    """
    every = Counter(name for own in names.values() for name in dict.fromkeys(own))
    return tuple(name for name in model_names(every) if every[name] > 1 or name in names.get(head, ()))


def cache_place(model: str) -> CachePlace:
    """Where a repository ORG/NAME of the hub or a folder ./NAME is.

    Raises:
        UsageError: it is neither, or it would be outside the cache.
    """
    if path := _path(model):
        return CachePlace(model, path, "folder")
    if REPOSITORY.fullmatch(model):
        return CachePlace(model, repository_folder(model), "hub")
    raise UsageError(f"{model}: must be ORG/NAME, or ./NAME for a folder below model_cache", hint="vcluster models")
