"""Finds the command that serves among the commands of a text: vLLM's own, its module, or an image that runs it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from vllm_cluster.serving.translate.reading import Reading
from vllm_cluster.serving.translate.shell import commands
from vllm_cluster.serving.translate.words import Layers, ShellWord

_SERVES = re.compile(r"\bvllm\s+serve\b|\bvllm\.entrypoints\.openai\.api_server\b")
_MODULE = "vllm.entrypoints.openai.api_server"
# Images whose entrypoint serves: what follows them are vLLM's words.
_IMAGE = re.compile(r"(?:.{0,500}/)?vllm-openai[\w.-]{0,100}(?:[:@].{0,300})?")
_RUNS = frozenset({"docker", "podman", "nerdctl"})
_VERBS = frozenset({"run", "create"})
_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
# A text in a text in a text serves nothing that a person could follow.
MAX_DEPTH = 3


@dataclass(frozen=True)
class ServeWords:
    """vLLM's words behind `vllm serve`, their line, and the variables of its environment.

    `image` is the image that a container tool was asked to run, empty where none was.
    """

    words: tuple[ShellWord, ...]
    line: int
    variables: Layers = ()
    image: str = ""


def in_shell(text: str, reading: Reading, line: int = 1, depth: int = 0) -> Iterator[ServeWords | ShellWord]:
    """Each command of a shell text that serves; and each flag that begins a command by itself, behind such a one.

    Raises:
        UsageError: the text cannot be read; with the line.
    """
    serves = False
    for command in commands(text, reading, line):
        if serves and command.words[0].text.startswith("-"):
            yield command.words[0]
        for one in in_command(command.words, reading, command.variables, depth):
            serves = True
            yield one


def in_command(
    words: Sequence[ShellWord], reading: Reading, variables: Layers, depth: int = 0
) -> Iterator[ServeWords | ShellWord]:
    """The command that serves among the words of one, or in a text that it gives to a shell."""
    start = _start(words)
    if start is not None:
        reading.spend("serving", 1, words[0].line)
        before = words[:start]
        image = next((word.text for word in before if _IMAGE.fullmatch(word.text)), "")
        found = (*variables, _variables(before))
        yield ServeWords(tuple(words[start:]), words[0].line, found, image if _behind_run(before) <= start else "")
        return
    own = _variables(words)
    for word in words:
        # bash -c 'vllm serve …', with what that shell is given.
        if depth < MAX_DEPTH and any(blank in word.text for blank in " \n") and _SERVES.search(word.text):
            for one in in_shell(word.text, reading, word.line, depth + 1):
                if isinstance(one, ServeWords):
                    yield replace(one, variables=(*variables, own, *one.variables))
                else:
                    yield one


def _start(words: Sequence[ShellWord]) -> int | None:
    """Where vLLM's own words begin; None where this command does not serve."""
    for at, word in enumerate(words):
        following = words[at + 1].text if at + 1 < len(words) else ""
        if word.text.rpartition("/")[2] == "vllm" and following == "serve":
            return at + 2
        if word.text == _MODULE or word.text.endswith("openai/api_server.py"):
            return at + 1
    for at in range(_behind_run(words), len(words)):
        if _IMAGE.fullmatch(words[at].text):
            shell = any(_SERVES.search(one.text) for one in words[at + 1 :])
            serve = at + 1 < len(words) and words[at + 1].text == "serve"
            return None if shell else at + 1 + serve
    return None


def _behind_run(words: Sequence[ShellWord]) -> int:
    """Where the words behind `docker run` begin; behind all words where a container tool runs nothing."""
    names = [word.text.rpartition("/")[2] for word in words]
    firsts = [next((at for at, name in enumerate(names) if name in of), len(names)) for of in (_RUNS, _VERBS)]
    return max(firsts) + 1


def _variables(before: Sequence[ShellWord]) -> dict[str, ShellWord]:
    """The variables that the words before vLLM's give it: NAME=VALUE, as env and container tools take them."""
    found = {}
    for at, word in enumerate(before):
        text = word.text.removeprefix("--env=").removeprefix("-e=")
        named = _VARIABLE.fullmatch(text)
        if named and not (at and before[at - 1].text.startswith("-") and before[at - 1].text not in ("-e", "--env")):
            found[named[1]] = ShellWord(named[2], word.line, word.missing)
    return found
