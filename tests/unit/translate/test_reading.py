"""What reading a text takes grows with its length: with texts within it, repeats, and aliases of a long one."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import pytest

from tests.support.bounds import within
from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.serving.translate.reading import INSTEAD, MAX_BYTES
from vllm_cluster.serving.translate.recipe import translate_recipe
from vllm_cluster.serving.translate.recipe_hosts import RecipeHosts
from vllm_cluster.serving.translate.text import translate

# Calls of functions for each byte of a text, and those for what any text may become by its variables. The parser of
# YAML alone takes 70 for each byte of `[],`.
EACH, ANY = 70, 1_000_000
HOSTS = RecipeHosts((8,), 80 << 30, rdma=False, name="H100")


class _TooMuchError(BaseException):
    """It is ended there: without a limit each of these would take hours, or all memory."""


@contextmanager
def counted(most: int) -> Iterator[None]:
    """Fail where what is inside calls more functions: that is the same on each machine."""
    calls = 0

    def one(_frame: FrameType, event: str, _about: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")
        if calls > most:
            raise _TooMuchError(f"more than {most} calls")

    before = sys.getprofile()
    sys.setprofile(one)
    try:
        yield
    finally:
        sys.setprofile(before)


def nested(times: int, command: str = "vllm serve y", setup: str = "") -> str:
    """A text in a text in a text, each of them several times by a variable."""
    for name in "CBA":
        command = f"{name}={shlex.quote(command)}; x " + f'"${name}" ' * times
    return setup + command


def lines(line: str, number: int) -> str:
    return "".join(line % at + "\n" for at in range(number))


def exported(number: int) -> str:
    return lines("export V%d=abcdefgh", number)


def services(number: int, command: str, after: str = "") -> str:
    """One service, and as many more by its alias."""
    return f"services:\n  s: &s\n{command}\n" + lines("  a%d: *s", number) + after


def recipe(base: str) -> str:
    return f"compatible_strategies: [single_node_tp]\nmodel:\n  model_id: o/m\n{base}"


TEXTS: dict[str, str] = {
    "nested": nested(30),
    "nested often": nested(150),
    "nested with variables": nested(30, setup=exported(490)),
    "quoted": "x" + " 'vllm serve a'" * 9_000,
    "quoted with variables": "x " + "A1=b " * 9_000 + "'vllm serve a' " * 9_000,
    "commands": "vllm serve m\n" * 4_900,
    "commands with variables": exported(490) + "vllm serve m\n" * 4_400,
    "variables that change": lines("export V%d=a; b; ", 5_000),
    "many variables": exported(9_000) + "vllm serve m\n",
    "long variable": f"A={'a' * 99_000}\na " + "$A" * 70_000,
    "default": f"A={'a' * 99_000}\na " + "${B:-$A$A$A}" * 12_000,
    "array": "A=(" + "a " * 15_000 + ")\na " + '"${A[@]}"' * 20_000,
    "doubled": "A=$X\n" + "A=$A$A\n" * 60 + "a $A",
    "longer": "A=a\n" + "A+=aaaaaaaaaa\n" * 15_000 + "vllm serve $A",
    "without values": "vllm serve m " + "$a" * 100_000,
    "conditions": "if " * 80_000 + "a",
    "images": "x " + "a/vllm-openai " * 15_000,
    "flags": "vllm serve m" + " --a" * 60_000,
    "command by an alias": services(3_000, f'    command: "{"a " * 5_000}"', "  z:\n    command: vllm serve m\n"),
    "one that serves by an alias": services(3_000, f'    command: "vllm serve m {"-x " * 5_000}"'),
    "words by an alias": services(900, f"    command: [vllm, serve, &a {'a' * 90_000}{', *a' * 90}]"),
    "environment by an alias": services(900, f"    environment: {{A: {'a' * 90_000}}}\n    command: vllm serve m"),
    "image by an alias": services(3_000, f"    image: vllm-openai{'a' * 90_000}"),
    "flag by an alias": recipe(f'  base_args:\n  - &l "--x {"a" * 90_000}"\n' + "  - *l\n" * 9_000),
    "variable by an alias": recipe(f"  base_env:\n    A: &l {'a' * 90_000}\n" + lines("    B%d: *l", 9_000)),
    "strategy by an alias": f"compatible_strategies: [&l {'a' * 90_000}{', *l' * 9_000}]\nmodel: {{model_id: m}}\n",
}  # fmt: skip


def read(text: str) -> None:
    """Read it as what it is; it may be refused, with what to do."""
    if text.startswith("compatible"):
        translate_recipe(text, "given", HOSTS)
    else:
        translate(text, "given")


# fault: serving/translate/found.py: in in_shell(word.text, reading, → in in_shell(word.text, Reading.of(word.text, ""),
# fault: serving/translate/compose.py: words_of(value, reading, → words_of(value, reading.of(value, ""),
# fault: serving/translate/shell.py: self.reading.spend("characters", size, → self.reading.spend("characters", 0,
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_reading_a_text_takes_what_its_length_allows(text: str) -> None:
    """The first became hours and gigabytes of 2 kB; a compose file of 150 kB was 500 MB of commands."""
    assert len(text) < MAX_BYTES
    with counted(EACH * len(text) + ANY), suppress(UsageError):
        read(text)


# fault: serving/translate/node.py: len(text) + 1, self.line → 0, self.line
@pytest.mark.parametrize(
    "text",
    [
        TEXTS["nested with variables"],
        TEXTS["commands with variables"],
        TEXTS["command by an alias"],
        recipe(f'  base_args:\n  - &l "--x {"a" * 90_000}"\n' + "  - *l\n" * 300),
    ],
    ids=["nested", "commands", "compose", "recipe"],
)
def test_reading_a_text_takes_little_memory(text: str) -> None:
    with within(60, megabytes=20), suppress(UsageError):
        read(text)


# fault: serving/translate/options.py: self._reading.spend("rows", len(self._rows), → self._reading.spend("rows", 0,
@pytest.mark.parametrize(
    "name", ["nested often", "command by an alias", "commands", "flag by an alias", "many variables"]
)
def test_what_is_too_long_is_named_with_its_line_and_what_to_do(name: str) -> None:
    with pytest.raises(
        UsageError, match=r"\Agiven:\d+: (?:too long for one command that serves|more than )"
    ) as refused:
        read(TEXTS[name])
    assert refused.value.hint == INSTEAD


@pytest.mark.parametrize(
    "text",
    [
        "bash -c " + shlex.quote("bash -c " + shlex.quote("bash -c 'vllm serve m'")),
        exported(300) + "for host in a b; do\n  ssh $host 'vllm serve m'\ndone",
        "vllm serve m --headless\n" * 150,
        services(20, "    environment: {A: b}\n    command: vllm serve m --seed 1"),
        f"A={'a' * 20_000}\n" + 'echo "$A"\n' * 4 + "vllm serve m",
    ],
    ids=["nested", "variables", "hosts", "compose", "long"],
)
def test_what_people_paste_is_read(text: str) -> None:
    assert translate(text, "given").model == "m"
