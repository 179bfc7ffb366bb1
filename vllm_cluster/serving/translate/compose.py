"""The commands that serve among the services of a compose file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from vllm_cluster.kernel.inventory.document import Document
from vllm_cluster.kernel.inventory.problems import Loc
from vllm_cluster.serving.translate.found import ServeWords, in_command
from vllm_cluster.serving.translate.reading import Reading
from vllm_cluster.serving.translate.shell import filled, words_of
from vllm_cluster.serving.translate.words import ShellWord


def in_compose(document: Document, reading: Reading) -> Iterator[ServeWords | ShellWord]:
    """Each service that serves a model; a mapping with a command of its own is one too.

    Raises:
        UsageError: a command cannot be read; with the line.
    """
    data = document.data
    services = data.get("services") if isinstance(data, dict) else None
    rows: list[tuple[Loc, object]] = [((), data)]
    if isinstance(services, dict):
        rows = [(("services", name), service) for name, service in services.items()]
    for loc, service in rows:
        if isinstance(service, dict):
            yield from _service(document, loc, service, reading)


def _service(
    document: Document, loc: Loc, service: Mapping[str, object], reading: Reading
) -> Iterator[ServeWords | ShellWord]:
    line = document.line(loc)
    command = list(_words(document, (*loc, "command"), service.get("command"), reading))
    entry = list(_words(document, (*loc, "entrypoint"), service.get("entrypoint"), reading))
    image = service.get("image")
    # Without an entrypoint of the file it is the image's, as for docker run.
    runs = (
        [filled(word, reading, line) for word in ("docker", "run", image)]
        if isinstance(image, str) and not entry
        else []
    )
    yield from in_command([*runs, *entry, *command], reading, (dict(_variables(document, loc, service, reading)),))


def _words(document: Document, loc: Loc, value: object, reading: Reading) -> Iterator[ShellWord]:
    """The words of a command, which is a list of them or one text."""
    if isinstance(value, str):
        yield from words_of(value, reading, document.line(loc))
    for at, word in enumerate(value if isinstance(value, list) else ()):
        yield filled(_text(word), reading, document.line((*loc, at)))


def _variables(
    document: Document, loc: Loc, service: Mapping[str, object], reading: Reading
) -> Iterator[tuple[str, ShellWord]]:
    given, at = service.get("environment"), (*loc, "environment")
    if isinstance(given, dict):
        for name, value in given.items():
            yield name, filled(_text(value), reading, document.line((*at, name)))
    for number, text in enumerate(given if isinstance(given, list) else ()):
        name, _, value = _text(text).partition("=")
        yield name, filled(value, reading, document.line((*at, number)))


def _text(value: object) -> str:
    """A scalar as the words of a command have it."""
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
