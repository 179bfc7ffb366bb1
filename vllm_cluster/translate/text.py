"""What any text asks to serve: a command line, a script with one, a compose file."""

from __future__ import annotations

import re

from vllm_cluster.errors import UsageError
from vllm_cluster.inventory.document import Document, parse
from vllm_cluster.translate.compose import in_compose
from vllm_cluster.translate.found import ServeWords, in_shell
from vllm_cluster.translate.options import Translation, only, translated
from vllm_cluster.translate.words import ShellWord, shown

# The longest recipe of vLLM's book has 60 kB. The YAML parser needs 10 s for 1 MB.
MAX_BYTES = 256_000
_YAML = re.compile(r"^[ \t]*(?:services|command|entrypoint|compatible_strategies)[ \t]*:", re.MULTILINE)
_RECIPE = re.compile(r"^compatible_strategies[ \t]*:", re.MULTILINE)
_MANIFEST = re.compile(r"^apiVersion[ \t]*:", re.MULTILINE)


def translate(text: str, place: str) -> Translation:
    """What a text asks to serve, in this program's terms; `place` names the text in errors.

    Raises:
        UsageError: nothing in it serves, or several unlike commands do, or it cannot be served here; with the line.
    """
    document = mapping(text, place)
    if document and _RECIPE.search(text):
        line = text[: text.index("compatible_strategies")].count("\n") + 1
        what = "a recipe has several layouts, and is not read"
        raise UsageError(f"{place}:{line}: {what}", hint="give one of the command lines of its guide")
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
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise UsageError(f"{place}: longer than {MAX_BYTES // 1000} kB", hint="give only the command that serves")
    if not _YAML.search(text):
        return None
    document = parse(text)
    if isinstance(document.data, dict) and not document.problems:
        return document
    if "vllm serve" in text and not isinstance(document.data, dict):
        return None
    problem = next(iter(document.problems), None)
    line, what = (problem.line, problem.text) if problem else (1, "must be a mapping")
    raise UsageError(f"{place}:{line}: {what}")
