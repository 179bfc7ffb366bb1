"""What any text asks to serve: a command line, a script with one, a compose file."""

from __future__ import annotations

import re

from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.inventory.document import Document, read_document
from vllm_cluster.kernel.inventory.problems import Problem, key_of
from vllm_cluster.kernel.shell_line import Option, command_line
from vllm_cluster.serving.translate.compose import in_compose
from vllm_cluster.serving.translate.found import ServeWords, in_shell
from vllm_cluster.serving.translate.options import Translation, only, translated
from vllm_cluster.serving.translate.words import ShellWord, shown

# The longest recipe of vLLM's book has 60 kB. The YAML parser needs 10 s for 1 MB.
MAX_BYTES = 256_000
_YAML = re.compile(r"^[ \t]*(?:services|command|entrypoint)[ \t]*:", re.MULTILINE)
_RECIPE = re.compile(r"^compatible_strategies[ \t]*:", re.MULTILINE)
_MANIFEST = re.compile(r"^apiVersion[ \t]*:", re.MULTILINE)


def is_recipe(text: str) -> bool:
    """Whether a text is a recipe of vLLM's book."""
    return _RECIPE.search(text) is not None


def translate(text: str, place: str) -> Translation:
    """What a text asks to serve, in this program's terms; `place` names the text in errors.

    Raises:
        UsageError: nothing in it serves, or several unlike commands do, or it cannot be served here; with the line.
    """
    if recipe := _RECIPE.search(text):
        line = text[: recipe.start()].count("\n") + 1
        what = "a recipe, whose layout the hosts decide"
        raise UsageError(f"{place}:{line}: {what}", hint=command_line("vcluster", "serve", Option("--from"), "RECIPE"))
    document = mapping(text, place)
    if document:
        found = list(in_compose(document, place))
    elif _MANIFEST.search(text):
        raise UsageError(f"{place}: a manifest of Kubernetes is not read", hint="give the container's command line")
    else:
        found = list(in_shell(text, place))
    alone = next((one for one in found if isinstance(one, ShellWord)), None)
    if alone and len(found) > 1:
        what = f"{shown(alone)} begins a command by itself"
        raise UsageError(f"{place}:{alone.line}: {what}", hint="end the line before it with \\")
    return only([translated(one, place) for one in found if isinstance(one, ServeWords)], place)


def mapping(text: str, place: str) -> Document | None:
    """The document of a YAML file, where a text is one.

    Raises:
        UsageError: it is a file of that kind and cannot be read.
    """
    _ensure_short(text, place, "give only the command that serves")
    if not _YAML.search(text):
        return None
    document = read_document(text)
    if "vllm serve" in text and not isinstance(document.data, dict):
        return None
    return _sound(document, place)


def recipe_document(text: str, place: str) -> Document:
    """The document of a recipe.

    Raises:
        UsageError: it cannot be read; with line and key.
    """
    _ensure_short(text, place, None)
    document = read_document(text)
    # What a reader of the book's pages sees: dates, which an inventory has in quotes.
    document.problems = [one for one in document.problems if one.loc[:1] != ("meta",)]
    return _sound(document, place)


def _ensure_short(text: str, place: str, hint: str | None) -> None:
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise UsageError(f"{place}: longer than {MAX_BYTES // 1000} kB", hint=hint)


def _sound(document: Document, place: str) -> Document:
    if isinstance(document.data, dict) and not document.problems:
        return document
    problem = next(iter(document.problems), None) or Problem(1, (), "must be a mapping")
    key = f"{key_of(problem.loc)}: " if problem.loc else ""
    raise UsageError(f"{place}:{problem.line}: {key}{problem.text}")
