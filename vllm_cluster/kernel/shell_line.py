"""Lines for a person's shell, composed of words: what is in a word can never be more than a word."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from vllm_cluster.kernel.text import printable

# Not all that shlex leaves as it is: zsh takes =NAME for a program, and fish %self for its own number.
_PLAIN = re.compile(r"[A-Za-z0-9_@+:,./-]+|--?[A-Za-z0-9_@+:,./=-]+")
# A word in quotes, as `shell_line` and shlex write it: a text around it is none of its own.
QUOTED = r"""(?<!\S)'[^']*'(?:(?:"'"|\\\\)'[^']*')*"""
# The parts of a word as `_quoted` writes them, with the escapes of `printable`; and where it may begin and end.
_PART = r"""(?:'(?:[^'\\]|\\(?!['\\]))*+'|"'"|\\\\)"""
_BEGIN, _END, _PLAIN_CHAR = r"(?<![^\s(])", r"(?![^\s.,:;)}])", r"[\w@+:,./=-]"
# As `_filled` writes one.
_FILL = rf"""(?:{_PLAIN_CHAR}|{_PART})*+"\$(?:[A-Z_]++{_PLAIN_CHAR}*+|\((?:[^'"\\$`()]|{_PART})*+\))\""""
_WORD = rf"""{_BEGIN}(?:{_FILL}|{_PART}++|[\w=]*+"[^"\\$`!]*+"){_END}"""
# A call is one command. In a sentence all quotes are of such words, or of it: as in host's, where no word has any.
_CALL = rf"""vcluster (?:{_WORD}|[^'"\\$`;|&<>()])*+"""
_SENTENCE = rf"""(?!vcluster )(?:(?:{_WORD}|[^'"\\$`])*+|(?:[^'"\\$`]|(?<=\w)'(?=\w))*+)"""
_WHOLE = re.compile(f"{_CALL}|{_SENTENCE}")


@dataclass(frozen=True)
class Filled:
    """A word whose end the shell fills in: with what a command prints."""

    begin: str
    command: Sequence[str]


@dataclass(frozen=True)
class Variable:
    """A word whose end is the value of a variable of the shell."""

    begin: str
    name: str


class Pasted(str):
    """Lines to paste: they act on the inventory of this call. `Session.paste` makes them, and none else."""

    @property
    def each(self) -> list[Pasted]:
        """Its lines. Not by splitlines, which also cuts where text from elsewhere may have it."""
        return [Pasted(line) for line in self.split("\n") if line]


Paste = Callable[[str], Pasted]


class Option(str):
    """A word of a command that may be an option: the program's own, or as a person typed it. No other word is one."""


def typed_words(words: Iterable[str]) -> list[Option]:
    """The words of a command line that a person typed, options among them."""
    return [Option(word) for word in words]


def shell_line(words: Iterable[str | Filled | Variable]) -> str:
    """The command line of these words, for sh, bash, zsh and fish.

    >>> shell_line(["curl", "-d", "it's", Filled("key: ", ["vcluster", "endpoint"])])
    'curl -d \\'it\\'"\\'"\\'s\\' \\'key: \\'"$(vcluster endpoint)"'
    """
    return " ".join(_quoted(word) if isinstance(word, str) else _filled(word) for word in words)


def command_line(*words: str | Filled, on: str = "") -> str:
    """Return the command of these words for a remedy, on a host, as one line.

    A character that no line can hold is shown as an escape; its word stays one word. No word is an option but an
    `Option`: a name of another machine could else be one that names a file of its choice.

    >>> command_line("vcluster", "pull", "./a b"), command_line("ls", Option("-l"), "-x;y", on="gpu1")
    ("vcluster pull './a b'", "on gpu1: ls -l './-x;y'")
    """
    line = printable(shell_line(map(_operand, words)))
    return f"on {on}: {line}" if on else line


def unbroken(text: str) -> str:
    """Return these lines as they are; one as a word in quotes where a text function has changed its quotes since.

    What was within them could else be a command, as after a redaction that took a quote with the secret.

    >>> print(unbroken("vcluster stop 'a b'\\nvcluster stop ***; touch x ***"))
    vcluster stop 'a b'
    'vcluster stop ***; touch x ***'
    """
    return "\n".join(line if _WHOLE.fullmatch(line) else _quoted(line) for line in text.split("\n"))


def listener_line(port: int, host: str = "") -> str:
    """The command that shows which program listens on a port, on a host."""
    return command_line("ss", Option("-ltnp"), f"sport = :{port}", on=host)


def export_line(name: str, value: str) -> str:
    """The line that gives a variable to a shell's programs."""
    return f"export {name}={_quoted(value)}"


def _operand(word: str | Filled) -> str | Filled:
    """The word as none that a program takes for an option; of a file it is another name."""
    return f"./{word}" if isinstance(word, str) and not isinstance(word, Option) and word.startswith("-") else word


def _filled(word: Filled | Variable) -> str:
    if isinstance(word, Variable):
        return f'{word.begin and _quoted(word.begin)}"${word.name}"'
    return f'{_quoted(word.begin)}"$({shell_line(word.command)})"'


def _quoted(word: str) -> str:
    if _PLAIN.fullmatch(word):
        return word
    # A backslash is outside of the quotes: within them it is a character to sh, bash and zsh, and to fish escapes
    # the quote behind it.
    single = word.replace("'", """'"'"'""").replace("\\", """'\\\\'""")
    return f"'{single}'"


def last_value(words: Sequence[str], option: str) -> str | None:
    """The value of an option among the words of a command line, the last of several; None where none gives it."""
    found = None
    for word, following in itertools.pairwise([*words, ""]):
        name, equals, value = word.partition("=")
        found = (value if equals else following) if name == option else found
    return found
