"""The commands of a shell text as words with their lines. Nothing is run: what only a run would give has no value."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile

from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.serving.translate.reading import Reading
from vllm_cluster.serving.translate.words import Layers, ShellWord, WordPart, joined

_ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
_PARAMETER = re.compile(r"(?:[A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#?$!-])")
_BRACED = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*|[0-9@*#])(?P<all>\[[@*]\])?(?::?[-=](?P<otherwise>[^{}]*))?\Z")
_HERE = re.compile(r"<<-?[ \t]*(['\"]?)([A-Za-z_][A-Za-z0-9_]*)\1")
_PLAIN = re.compile(r"[^\s;&|()<>\\'\"$`]+")
_PLAIN_FILLED = re.compile(r"[^$]+")
_PLAIN_QUOTED = re.compile(r'[^\\"$`\n]+')
_CONTINUED = re.compile(r"\\[ \t]*(?:\n|\Z)")
_DECLARES = frozenset({"export", "local", "readonly", "declare", "typeset"})
# Between these a command may be left out, and what it assigns with it.
_OPENS, _CLOSES = frozenset({"if", "for", "while", "until", "case"}), frozenset({"fi", "done", "esac"})
_AROUND = _OPENS | _CLOSES | {"then", "else", "elif", "do", "{", "}", "!", "$", "exec", "time"}


@dataclass(frozen=True)
class ShellCommand:
    """A simple command: its words, the variables that are set for it, and its line."""

    words: tuple[ShellWord, ...]
    variables: Layers
    line: int


def without_fences(text: str) -> str:
    """The text without the marks that Markdown puts around code; every line keeps its number."""
    text = text.replace("\r\n", "\n")
    if (bare := text.strip()).count("`") == 2 and bare[0] == bare[-1] == "`":
        return bare[1:-1]
    return re.sub(r"^[ \t]*(?:```|~~~).*$", "", text, flags=re.MULTILINE)


def commands(text: str, reading: Reading, line: int = 1) -> Iterator[ShellCommand]:
    """The commands of a text in their order; `line` is where it begins.

    Raises:
        UsageError: a quote does not end, or it is too long for a script with one command.
    """
    for command in _Reader(without_fences(text), reading, line).commands():
        reading.spend("commands", 1, command.line)
        yield command


def words_of(text: str, reading: Reading, line: int) -> list[ShellWord]:
    """The words of a text that is one command.

    Raises:
        UsageError: as `commands`.
    """
    return [word for command in commands(text, reading, line) for word in command.words]


def filled(text: str, reading: Reading, line: int) -> ShellWord:
    """A text in which compose would fill in variables: those with a default have it, the others have no value."""
    reader = _Reader(text, reading, line)
    parts = []
    while reader.more:
        dollar = reader.next == "$"
        twice = dollar and reader.text.startswith("$$", reader.at)
        if twice:
            reader.at += 2
            parts.append(WordPart("$"))
        else:
            parts += [reader.dollar(quoted=True)] if dollar else [reader.run(_PLAIN_FILLED)]
    return next(joined(parts, line), ShellWord("", line))


@dataclass
class _Reader:
    """One pass over a text."""

    text: str
    reading: Reading
    line: int
    at: int = 0
    values: dict[str, tuple[ShellWord, ...] | None] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    # Those with their values, until one changes.
    shared: dict[str, ShellWord] | None = None
    # Within a condition: of how many, and behind && or ||.
    depth: int = 0
    perhaps: bool = False
    here: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reading.spend("characters", len(self.text) + 1, self.line)

    @property
    def more(self) -> bool:
        return self.at < len(self.text)

    @property
    def next(self) -> str:
        return self.text[self.at : self.at + 1]

    def take(self) -> str:
        char = self.next
        self.at += 1
        self.line += char == "\n"
        return char

    def error(self, what: str, line: int = 0) -> UsageError:
        return UsageError(f"{self.reading.place}:{line or self.line}: {what}")

    def commands(self) -> Iterator[ShellCommand]:
        """The simple commands, each by itself."""
        words: list[ShellWord] = []
        own: dict[str, tuple[ShellWord, ...]] = {}
        # Whether the words so far only lead to the command.
        leads = True
        while True:
            self.skip()
            if not self.more or self.next in "\n;&|()":
                yield from self.ended(words, own)
                words, own, leads = [], {}, True
                if not self.more:
                    return
                self.separator()
            elif self.next in "<>":
                self.redirect()
            elif leads and (found := _ASSIGNED.match(self.text, self.at)):
                own[found[1]] = self.assigned(found)
            else:
                more = self.word(words)
                leads = leads and all(word.text in _AROUND for word in more)
                words += more

    def separator(self) -> None:
        """Go past what ends a command."""
        self.perhaps = self.text.startswith(("&&", "||"), self.at) or (self.perhaps and self.next in "&|")
        if self.take() == "\n":
            self.skip_here()

    def skip(self) -> None:
        """Go past blanks, comments, and ends of lines that continue."""
        while self.more:
            if self.next in " \t":
                self.at += 1
            elif found := _CONTINUED.match(self.text, self.at):
                self.line += found[0].count("\n")
                self.at = found.end()
            elif self.next == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return

    def skip_here(self) -> None:
        """Go past the texts that a command gets in place of a file."""
        for mark in self.here:
            while self.more:
                end = self.text.find("\n", self.at)
                line = self.text[self.at : end if end >= 0 else len(self.text)]
                self.at = end + 1 if end >= 0 else len(self.text)
                self.line += end >= 0
                if line.strip() == mark:
                    break
        self.here = []

    def redirect(self) -> None:
        """Go past where a command reads and writes."""
        if found := _HERE.match(self.text, self.at):
            self.here.append(found[2])
            self.at = found.end()
            return
        while self.more and self.next in "<>&|":
            self.at += 1
        self.skip()
        if self.more and self.next not in "\n;&|()":
            self.parts()

    def assigned(self, found: re.Match[str]) -> tuple[ShellWord, ...]:
        """The value that a variable gets."""
        self.at, line = found.end(), self.line
        if self.next == "(":
            value = tuple(self.array(line))
        else:
            value = tuple(joined([replace(part, split=False) for part in self.parts()], line)) or (ShellWord("", line),)
        if not found[2]:
            return self.bounded(value)
        before = self.values.get(found[1]) or (ShellWord("", line, (f"${found[1]}",)),)
        self.fill(*before)
        if self.text[found.end() : found.end() + 1] == "(":
            return self.bounded((*before, *value))
        longer = ShellWord(before[0].text + value[0].text, line, (*before[0].missing, *value[0].missing))
        return self.bounded((longer, *before[1:]))

    def bounded(self, made: tuple[ShellWord, ...]) -> tuple[ShellWord, ...]:
        """These words, where the text has not too many."""
        self.reading.spend("words", len(made), self.line)
        return made

    def array(self, begun: int) -> Iterator[ShellWord]:
        """The words between the brackets of an array."""
        self.take()
        while True:
            self.skip()
            if not self.more:
                raise self.error("an array that does not end", begun)
            if self.next == ")":
                self.take()
                return
            if self.next in "\n;&|<>(":
                self.take()
                continue
            yield from self.word(())

    def word(self, before: list[ShellWord] | tuple[()]) -> list[ShellWord]:
        """The next word: several where a variable in it holds several; none where it only numbers a redirection."""
        line = self.line
        parts = self.parts()
        if self.next in ("<", ">") and len(parts) == 1 and parts[0].text.isdigit() and not parts[0].split:
            return []
        made = list(self.bounded(tuple(joined(parts, line))))
        name = before[0].text if before else ""
        if name in _DECLARES and made and (declared := _ASSIGNED.match(made[0].text)):
            value = replace(made[0], text=made[0].text[declared.end() :])
            self.exported |= {declared[1]} if name == "export" else set()
            self.keep({declared[1]: (value,)})
        elif name == "export" and made:
            self.exported.add(made[0].text)
            self.shared = None
        return made

    def keep(self, own: Mapping[str, tuple[ShellWord, ...]]) -> None:
        """Keep variables for the commands that follow; what a condition may leave out has no value."""
        unsure = self.depth or self.perhaps
        self.values.update(dict.fromkeys(own) if unsure else own)
        if not self.exported.isdisjoint(own):
            self.shared = None

    def ended(self, words: list[ShellWord], own: Mapping[str, tuple[ShellWord, ...]]) -> Iterator[ShellCommand]:
        """The command that these words are, without those that only lead to it."""
        around = [word.text for word in takewhile(lambda word: word.text in _AROUND, words)]
        self.depth += sum((word in _OPENS) - (word in _CLOSES) for word in around)
        words = words[len(around) :]
        if not words:
            self.keep(own)
        elif words[0].text not in _DECLARES:
            variables = (self.inherited(), {name: value[0] for name, value in own.items() if value})
            yield ShellCommand(tuple(words), variables, words[0].line)

    def inherited(self) -> Mapping[str, ShellWord]:
        """The variables that every command has from here on."""
        if self.shared is None:
            self.reading.spend("characters", len(self.exported), self.line)
            self.shared = {name: value[0] for name in sorted(self.exported) if (value := self.values.get(name))}
        return self.shared

    def parts(self) -> list[WordPart]:
        """The pieces of the word that begins here."""
        found: list[WordPart] = []
        while self.more and self.next not in " \t\n;&|()<>":
            char = self.next
            if char == "\\":
                self.take()
                following = self.take()
                found += [] if following == "\n" else [WordPart(following)]
            elif char == "'":
                found.append(WordPart(self.until("'")))
            elif char == '"':
                found += self.double()
            elif char in "$`":
                found.append(self.dollar(quoted=False))
            else:
                found.append(self.run(_PLAIN))
        return found

    def run(self, plain: re.Pattern[str]) -> WordPart:
        """The characters from here on that have no meaning of their own; one at least."""
        if not (found := plain.match(self.text, self.at)):
            return WordPart(self.take())
        self.at = found.end()
        return WordPart(found[0])

    def until(self, mark: str) -> str:
        """The text between two marks."""
        begun = self.line
        end = self.text.find(mark, self.at + 1)
        if end < 0:
            raise self.error(f"a {mark} that does not end", begun)
        inside = self.text[self.at + 1 : end]
        self.at, self.line = end + 1, self.line + inside.count("\n")
        return inside

    def double(self) -> list[WordPart]:
        """The pieces between double quotes; also of nothing, which is a word too."""
        begun = self.line
        self.take()
        found = [WordPart("")]
        while self.next != '"':
            if not self.more:
                raise self.error('a " that does not end', begun)
            if self.next == "\\":
                self.take()
                following = self.take()
                found += (
                    [] if following == "\n" else [WordPart(following if following in '$`"\\' else f"\\{following}")]
                )
            elif self.next in "$`":
                found.append(self.dollar(quoted=True))
            else:
                found.append(self.run(_PLAIN_QUOTED))
        self.take()
        return found

    def dollar(self, *, quoted: bool) -> WordPart:
        """A variable or a command in a word: its value, where the text has it."""
        if self.next == "`":
            return WordPart("", (f"`{self.until('`')}`",))
        self.take()
        if self.next == "(":
            return WordPart("", (self.command(),))
        if self.next == "{":
            return self.braced(quoted=quoted)
        if self.next in ("'", '"') and not quoted:
            return WordPart(self.until("'") if self.next == "'" else "")
        found = _PARAMETER.match(self.text, self.at)
        if not found:
            return WordPart("$")
        self.at = found.end()
        return self.value(found[0], quoted=quoted)

    def braced(self, *, quoted: bool) -> WordPart:
        inside = self.until("}")
        found = _BRACED.match(inside)
        if not found:
            return WordPart("", (f"${{{inside}}}",))
        name, otherwise = found["name"], found["otherwise"]
        known = self.values.get(name)
        if known is None and name not in self.values and otherwise is not None:
            nested, parts = _Reader(otherwise, self.reading, self.line, values=self.values), []
            while nested.more:
                parts += nested.parts() or [WordPart(nested.take())]
            whole = [replace(part, split=False) for part in parts]
            default = next(joined(whole, self.line), ShellWord("", self.line))
            return WordPart(default.text, default.missing, split=not quoted)
        if found["all"] and known is not None:
            self.fill(*known)
            return WordPart("", words=known)
        return self.value(name, quoted=quoted)

    def value(self, name: str, *, quoted: bool) -> WordPart:
        known = self.values.get(name)
        if not known:
            return WordPart("", (f"${name}",))
        self.fill(known[0])
        return WordPart(known[0].text, known[0].missing, split=not quoted)

    def fill(self, *words: ShellWord) -> None:
        """Count the characters that a variable brings, before they are put together."""
        size = sum(len(word.text) + 1 + sum(map(len, word.missing)) for word in words)
        self.reading.spend("characters", size, self.line)

    def command(self) -> str:
        """The text of a command in a word, with the brackets within it."""
        begun, start, open_brackets = self.line, self.at, 0
        while self.more:
            char = self.take()
            open_brackets += (char == "(") - (char == ")")
            if not open_brackets:
                return "$" + self.text[start : self.at]
        raise self.error("a $( that does not end", begun)
