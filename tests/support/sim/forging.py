"""What hosts answer, forged at one place: the answers of a good run are taken apart, so that new fields are among them.

A place is a value, or a key, of a JSON document, or a word of plain text.
"""

from __future__ import annotations

import base64
import io
import json
import re
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Any
from unittest.mock import patch

from tests.support.sim.carrier import FakeTransport
from tests.support.sim.engine import Answer, FakeEngine, Request
from tests.support.sim.programs import Program
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.transport.base import Result

# What a shell would do with them, or a terminal, a path, a program's options, a table.
WORDS = (
    "$(touch RAN)", "`touch RAN`", ";touch RAN;", "\ntouch RAN\n", "|touch RAN", "&touch RAN&", "x>RAN",
    "fix: touch RAN", "  fix: touch RAN", "\nfix: touch RAN",
    "'$(touch RAN)'", '"$(touch RAN)"', "'; touch RAN; '", "\\'; touch RAN #", "(touch RAN)", "\rtouch RAN\r",
    " touch RAN", "#", "!!", "-oProxyCommand=touch RAN",
    "-iRAN", "--inventory=RAN", "--help", "-", "--", "~", "*", "{a,b}", "=ls", "%self",
    "../../../RAN", "/tmp/vcluster-RAN", "a/../../RAN", "\x1b[2J\x1b]52;c;eA==\x07", "\x9b31m", "\x00", "\x7f",
    "[bold]x[/bold]", "[/]", "\u202eexe", "\u200b", "\u2066x", "\U000e0041\U000e0042", "\ufeff", "\x85", "\u2028",
    "\ud800", "local", "gpu1", "gpu3", "10.0.0.3", "0", "-1", "",
)  # fmt: skip
# As they are written in JSON: numbers that are none, or of no use, another type, and what is not JSON.
RAW = (
    b"1" + b"0" * 400, b"1" * 5000, b"1e999", b"-1e999", b"NaN", b"Infinity", b"-1", b"0", b"1", b"0.5", b"1e308",
    b"true", b"false", b"null", b'""', b"[]", b"{}", b"[null]", b'{"a": "b"}', b"[[[]]]", b'"\xff\xfe"', b"\xc3",
    b"[" * 10_000, b"[" * 10_000 + b"]" * 10_000, b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    b'"' + b"x" * 70_000 + b'"', b'"\\ud800"', b'"unfinished', b"9223372036854775808", b"[" + b"0," * 5_000 + b"0]",
)  # fmt: skip
_MARK, _SECTION = "\ufdd0here\ufdd0", re.compile(rb"(?m)^(?=@@)")
_WORD = re.compile(rb"[^\s|,]+")
# The keys and numbers that lead to it.
Where = tuple[Any, ...]


def places(value: Any, at: Where = ()) -> Iterator[Where]:
    """Every place in a document."""
    yield at
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in entries:
        yield from places(entry, (*at, key))


def value_at(value: Any, at: Where) -> Any:
    """The value at a place."""
    for key in at:
        value = value[key]
    return value


def changed(value: Any, at: Where, new: Any) -> Any:
    """The document with another value at a place."""
    if not at:
        return new
    key, *rest = at
    if isinstance(value, dict):
        return {**value, key: changed(value[key], tuple(rest), new)}
    return [changed(entry, tuple(rest), new) if n == key else entry for n, entry in enumerate(value)]


def without(value: Any, at: Where) -> Any:
    """The document without what is at a place."""
    above = value_at(value, at[:-1])
    if isinstance(above, dict):
        return changed(value, at[:-1], {key: one for key, one in above.items() if key != at[-1]})
    return changed(value, at[:-1], [one for n, one in enumerate(above) if n != at[-1]])


def _renamed(value: Any, at: Where, name: str) -> Any:
    above = value_at(value, at[:-1])
    return changed(value, at[:-1], {name if key == at[-1] else key: one for key, one in above.items()})


@dataclass(frozen=True)
class Forgery:
    """Which answer of a run is changed, in which piece of it and where there, and what becomes of it by chance."""

    answer: int
    piece: int
    where: Where
    seed: int

    def apply(self, content: bytes) -> bytes:
        """The answer with the forgery in it; another one than was recorded is left."""
        parts = pieces(content)
        if self.piece >= len(parts):
            return content
        parts[self.piece] = self._changed(parts[self.piece])
        return b"".join(parts)

    def _changed(self, part: bytes) -> bytes:
        random = Random(self.seed)
        document, known = _json(part)
        if not known:
            words = [*_WORD.finditer(part)]
            if not words:
                return part + random.choice(WORDS).encode("utf-8", "surrogatepass")
            found = words[self.where[0] % len(words)]
            forgery = _text(random, found[0].decode("utf-8", "replace")).encode("utf-8", "surrogatepass")
            return part[: found.start()] + forgery + part[found.end() :]
        try:
            old = value_at(document, self.where)
        except (KeyError, IndexError, TypeError):
            return part
        return _of_json(random, document, self.where, old) + (b"\n" if part.endswith(b"\n") else b"")


def _text(random: Random, old: str) -> str:
    word = random.choice(WORDS)
    return random.choice((word, word, old + word, word + old))


def _of_json(random: Random, document: Any, at: Where, old: Any) -> bytes:
    how = random.randrange(12)
    if at and how == 0:
        return json.dumps(without(document, at)).encode()
    if at and isinstance(at[-1], str) and how == 1:
        return json.dumps(_renamed(document, at, _text(random, at[-1]))).encode()
    marked = json.dumps(changed(document, at, _MARK)).encode()
    mark = json.dumps(_MARK).encode()
    text = json.dumps(_text(random, old if isinstance(old, str) else "")).encode()
    if at and isinstance(at[-1], str) and how == 2:  # the key twice
        key = json.dumps(at[-1]).encode()
        return marked.replace(mark, json.dumps(old).encode() + b", " + key + b": " + text)
    raw = random.choice(RAW) if how < 6 or not isinstance(old, str) else text
    return marked.replace(mark, raw)


def pieces(content: bytes) -> list[bytes]:
    """What is taken apart by itself: a document, each line of several, or each section of a script's output."""
    if content.lstrip().startswith(b"@@"):
        return [half for one in _SECTION.split(content) for half in _halves(one)]
    lines = content.splitlines(keepends=True)
    if len(lines) > 1 and any(_json(line)[1] for line in lines):
        return lines
    return [content]


def _halves(section: bytes) -> tuple[bytes, bytes]:
    """A section's name, and what is in it."""
    name, line, rest = section.partition(b"\n")
    return name + line, rest


def _json(part: bytes) -> tuple[Any, bool]:
    if not part.lstrip().startswith((b"{", b"[")):
        return None, False
    try:
        return json.loads(part), True
    except (ValueError, RecursionError):
        return None, False


def forgeries_in(answer: int, content: bytes) -> Iterator[Forgery]:
    """A forgery for each place of an answer."""
    for number, part in enumerate(pieces(content)):
        document, known = _json(part)
        wheres = places(document) if known else ((n,) for n in range(len(_WORD.findall(part))))
        for where in wheres:
            yield Forgery(answer, number, where, 0)


class Forger:
    """Gets the answers of all hosts, in a row, and changes one of them."""

    def __init__(self, forgery: Forgery | None = None) -> None:
        self.forgery = forgery
        self.answers: list[tuple[str, bytes]] = []
        self.forged = ""

    def pass_on(self, host: str, what: str, content: bytes) -> bytes:
        """The answer, or what is forged in its place."""
        self.answers.append((f"{host} {what}", content))
        if self.forgery is None or self.forged or len(self.answers) - 1 != self.forgery.answer:
            return content
        forged = self.forgery.apply(content)
        self.forged = f"{host} {what}" if forged != content else ""
        return forged

    def __str__(self) -> str:
        return f"{self.forgery} of {self.forged}"

    @property
    def host(self) -> str:
        """The host whose answer is forged."""
        return self.forged.partition(" ")[0]


@contextmanager
def forging(forger: Forger) -> Iterator[None]:
    """While this lasts the forger gets what hosts answer: scripts, Docker's API with the files in it, programs."""
    run, answer, end, image = FakeTransport.run, FakeEngine.answer, Program.end, FakeTransport._image_stream

    def forged_run(self: FakeTransport, argv: Any, deadline: Deadline, **more: Any) -> Result:
        found = run(self, argv, deadline, **more)
        return replace(found, stdout=forger.pass_on(self.host, "script", found.stdout))

    def forged_answer(self: FakeEngine, request: Request) -> Answer:
        found = answer(self, request)

        def pass_on(content: bytes, part: str = "") -> bytes:
            return forger.pass_on(self.machine.name, request.what + part, content)

        headers = dict(found.headers)
        if stat := headers.get("X-Docker-Container-Path-Stat"):
            forged = pass_on(base64.b64decode(stat), " header")
            return replace(
                found,
                body=_archive(found.body, lambda name, content: pass_on(content, f" {name}")),
                headers={**headers, "X-Docker-Container-Path-Stat": base64.b64encode(forged).decode()},
            )
        if found.chunks is not None:
            return replace(found, chunks=[pass_on(chunk) for chunk in found.chunks])
        return replace(found, body=pass_on(found.body)) if found.body else found

    def forged_end(self: Program) -> bytes:
        return forger.pass_on(self.machine.name, self.name, end(self))

    def forged_image(self: FakeTransport, *words: Any) -> Any:
        if (stream := image(self, *words)) is None:
            return None
        take = stream.take

        def forged_take(data: bytes) -> None:
            at = len(stream.out)
            take(data)
            stream.out[at:] = forger.pass_on(self.host, "image", bytes(stream.out[at:]))

        stream.out[:] = forger.pass_on(self.host, "image", bytes(stream.out))
        stream.take = forged_take  # type: ignore[method-assign]
        return stream

    with (
        patch.object(FakeTransport, "run", forged_run),
        patch.object(FakeTransport, "_image_stream", forged_image),
        patch.object(FakeEngine, "answer", forged_answer),
        patch.object(Program, "end", forged_end),
        # A host that forges the id of its engine has a lock of its own there, and harms itself.
        patch.object(FakeTransport, "_require_its_lock"),
    ):
        yield


def _archive(archive: bytes, pass_on: Callable[[str, bytes], bytes]) -> bytes:
    """An archive with other contents of its files."""
    out = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(archive)) as old, tarfile.open(fileobj=out, mode="w") as new:
        for member in old:
            content = old.extractfile(member) if member.isfile() else None
            forged = pass_on(member.name, content.read()) if content else b""
            member.size = len(forged)
            new.addfile(member, io.BytesIO(forged))
    return out.getvalue()
