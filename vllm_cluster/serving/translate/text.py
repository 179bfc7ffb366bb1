"""What any text asks to serve: a command line, a script with one, a compose file."""

from __future__ import annotations

import re

from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.inventory.document import Document, read_document
from vllm_cluster.kernel.inventory.problems import Problem, key_of
from vllm_cluster.kernel.shell_line import Option, command_line
from vllm_cluster.serving.translate.compose import in_compose
from vllm_cluster.serving.translate.found import ServeWords, in_shell
from vllm_cluster.serving.translate.options import Translation, translated
from vllm_cluster.serving.translate.reading import Reading
from vllm_cluster.serving.translate.words import ShellWord, shown

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
    reading = Reading.of(text, place)
    if recipe := _RECIPE.search(text):
        line = text[: recipe.start()].count("\n") + 1
        what = "a recipe, whose layout the hosts decide"
        raise UsageError(f"{place}:{line}: {what}", hint=command_line("vcluster", "serve", Option("--from"), "RECIPE"))
    document = _mapping(text, reading)
    if document:
        found = list(in_compose(document, reading))
    elif _MANIFEST.search(text):
        raise UsageError(f"{place}: a manifest of Kubernetes is not read", hint="give the container's command line")
    else:
        found = list(in_shell(text, reading))
    alone = next((one for one in found if isinstance(one, ShellWord)), None)
    if alone and len(found) > 1:
        what = f"{shown(alone)} begins a command by itself"
        raise UsageError(f"{place}:{alone.line}: {what}", hint="end the line before it with a backslash")
    return translated([one for one in found if isinstance(one, ServeWords)], reading)


def _mapping(text: str, reading: Reading) -> Document | None:
    """The document of a YAML file, where a text is one.

    Raises:
        UsageError: it is a file of that kind and cannot be read.
    """
    if not _YAML.search(text):
        return None
    document = read_document(text)
    if "vllm serve" in text and not isinstance(document.data, dict):
        return None
    return _sound(document, reading)


def recipe_document(text: str, reading: Reading) -> Document:
    """The document of a recipe.

    Raises:
        UsageError: it cannot be read; with line and key.
    """
    document = read_document(text)
    # What a reader of the book's pages sees: dates, which an inventory has in quotes.
    document.problems = [one for one in document.problems if one.loc[:1] != ("meta",)]
    return _sound(document, reading)


def _sound(document: Document, reading: Reading) -> Document:
    if isinstance(document.data, dict) and not document.problems:
        return document
    problem = next(iter(document.problems), None) or Problem(1, (), "must be a mapping")
    key = f"{key_of(problem.loc)}: " if problem.loc else ""
    raise UsageError(f"{reading.place}:{problem.line}: {key}{problem.text}")
