"""A place in a YAML file that is read with its types: what is of another one is an error with file, line and key."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.inventory.document import Document
from vllm_cluster.kernel.inventory.problems import Loc, key_of
from vllm_cluster.kernel.inventory.words import quote_value
from vllm_cluster.serving.translate.reading import Reading
from vllm_cluster.serving.translate.words import ShellWord

_OPTION = re.compile(r"--?[A-Za-z][\w.-]*\s")
_KINDS = {dict: "a mapping", list: "a list", bool: "yes or no", int: "a number", float: "a number"}


@dataclass(frozen=True)
class YamlNode:
    """A value of a document, where it is; None where the file has none."""

    document: Document
    reading: Reading
    loc: Loc = ()
    value: object = None

    @classmethod
    def of(cls, document: Document, reading: Reading) -> YamlNode:
        """Return the root of a document."""
        return cls(document, reading, (), document.data)

    def get(self, *keys: str) -> YamlNode:
        """Return what is below these keys; each but the last must hold a mapping, or nothing."""
        found = self
        for key in keys:
            value = found.mapping().get(key)
            found = YamlNode(found.document, found.reading, (*found.loc, key), value)
        return found

    def mapping(self) -> dict[str, object]:
        """Return the mapping; an empty one where there is nothing."""
        if self.value is None:
            return {}
        if not isinstance(self.value, dict):
            raise self.error("must be a mapping")
        return self.value

    def text(self) -> str:
        """Return the text; an empty one where there is nothing."""
        if self.value is None:
            return ""
        if not isinstance(self.value, str):
            raise self.error("must be text")
        return self._taken(self.value)

    def names(self) -> tuple[str, ...]:
        """Return the texts of a list."""
        return tuple(one.text() for one in self._items())

    def words(self) -> tuple[ShellWord, ...]:
        """Return the words of a list, each with its line; an option and its value may be one text."""
        found = []
        for one in self._items():
            text = one.word()
            option = text.split(maxsplit=1)
            found += [ShellWord(word, one.line) for word in (option if _OPTION.match(text) else [text])]
        return tuple(found)

    def word(self) -> str:
        """Return a text, a number or a switch as a command line has it."""
        if isinstance(self.value, bool):
            return str(self.value).lower()
        if isinstance(self.value, str | int | float):
            return self._taken(str(self.value))
        raise self.error("must be text or a number")

    def number(self) -> int:
        """Return the number; 0 where there is nothing."""
        if self.value is None:
            return 0
        if isinstance(self.value, bool) or not isinstance(self.value, int | float) or not 0 <= self.value < 1 << 32:
            raise self.error("must be a number from 0")
        return int(self.value)

    @property
    def line(self) -> int:
        """The line where it is."""
        return self.document.line(self.loc)

    def error(self, what: str) -> UsageError:
        """Return the error of this place, with what is there."""
        kind = "nothing" if self.value is None else _KINDS.get(type(self.value), "")
        got = kind or f"text ({quote_value(self.value)})"
        key = f" {key_of(self.loc)}:" if self.loc else ""
        return UsageError(f"{self.reading.place}:{self.line}:{key} {what}, got {got}")

    def _taken(self, text: str) -> str:
        """A text, counted each time: an alias repeats one of any length."""
        self.reading.spend("characters", len(text) + 1, self.line)
        return text

    def _items(self) -> Iterator[YamlNode]:
        if self.value is None:
            return
        if not isinstance(self.value, list):
            raise self.error("must be a list")
        for at, value in enumerate(self.value):
            yield YamlNode(self.document, self.reading, (*self.loc, at), value)
