"""Where an exception was raised: the last frame of its traceback, and how tracebacks are chained."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from vllm_cluster.kernel.explain.catalogue import LineKind, LogPattern
from vllm_cluster.kernel.explain.log_line import MAX_LINE, LogLine, parse_line
from vllm_cluster.kernel.explain.progress import may_fail
from vllm_cluster.kernel.text import redact

MAX_ABOVE = 4096
MAX_BELOW = 16384
MAX_FRAMES = 32  # frames of other processes that are passed over, where several write side by side
MAX_BETWEEN = 3  # lines of others between the beginning of a traceback and its first frame
MAX_QUOTED = 8  # lines from one of source code up to its frame, where it has several or processes write side by side
SHOWN = 400  # characters of a line that are kept, and bytes below one that may continue it
MORE_LINES = 3
INDENTED = b"]   "  # where a logger's prefix ends, before an indented line
_FRAME = re.compile(r'File "([^"]{1,300})", line (\d{1,7})(?:, in ([\w.<>]{1,120}))?')
_INSTALLED = re.compile(r"^.*/(?:site|dist)-packages/")
# Python's own modules raise for whoever has called them.
_PYTHON = re.compile(r"^(?:.*/python3\.\d{1,2}/(?!(?:site|dist)-packages/)|<frozen )")
# Of Triton and Dynamo only the module shows that it is one: triton.runtime.errors.OutOfResources.
_EXCEPTION = re.compile(
    r"(?:[A-Za-z_][\w.]{0,120}(?:Error|Exception|Exit|Interrupt|Expired)|(?:\w{1,40}\.){1,8}(?:errors|exc|exceptions)\.\w+)"
    r"(?:: |:?$)"
)
# Any class, where a traceback shows that it is one: queue.Empty, filelock._error.Timeout.
_CLASS = re.compile(r"[A-Za-z_]\w{0,80}(?:\.\w{1,80}){0,8}(?:: |$)")
# What a process raises because another one has failed, or because it is ended.
_ECHO = re.compile(
    r"(?:\w{1,40}\.){0,6}(?:(?:Timeout|Cancelled|Connection|ConnectionReset|ConnectionRefused|BrokenPipe|EOF"
    r"|DistBackend|DistStore|DistNetwork|EngineDead|EngineGenerate)?Error|Exception|KeyboardInterrupt|SystemExit)"
    r"(?:: |:?$)"
    # Who polls a socket that its own process has closed.
    r"|(?:zmq\.)?(?:error\.)?ZMQError: (?:Operation not supported|Socket operation on non-socket)$"
    # Whose loop, pool, queue or interpreter is already closed.
    r"|RuntimeError: (?:Event loop is closed|cannot schedule new futures|No response returned|Session is closed)"
    r"|ValueError: Queue .{0,80}is closed|ImportError: sys\.meta_path is None|OSError: \[Errno 9\] Bad file"
    r"|ChildProcessError: |(?:[\w.]{0,60}\.)?(?:BrokenProcessPool: |(?:Empty|EndOfStream|ClientDisconnect)$)"
)
_STARTED = re.compile(r"EngineCore|Worker|\brank\d")
# What follows replaces what is above: it is how the process ended.
TRACEBACK = "Traceback (most recent call last)"
# Where vLLM checks what it was given, before anything runs.
_CHECKS = re.compile(
    r"(?:^|/)vllm/(?:config/|engine/arg_utils\.py|envs\.py|platforms/|entrypoints/(?:cli/|openai/cli_args))"
)
# Who reads the files of a model, and what a file raises that is not whole.
_READS = re.compile(r"(?:^|/)(?:transformers/(?!cli/)|vllm/(?:transformers_utils|tokenizers|renderers)/)")
_UNREADABLE = re.compile(r"(?:\w{1,40}\.){0,3}(?:JSONDecodeError|UnicodeDecodeError): ")
_REFUSES = re.compile(r"(?:ValueError|AssertionError|NotImplementedError|TypeError|argparse\.\w+): \S")
# The flag to change is in the message: then vLLM refuses its settings, wherever it raises that.
_OF_VLLM = re.compile(r"(?:^|/)vllm/")
_NAMES_A_FLAG = re.compile(
    r"(?:Runtime|Value|Assertion|NotImplemented|Type)Error: .{0,600}"
    r"(?:(?<![\w-])--[a-z]\w*-[a-z]"
    # Or the name of its setting in Python.
    r"|\b(?:(?:increas|decreas|reduc|rais)(?:e|ing)|(?:lower|adjust|set)(?:t?ing)?) (?:the )?`?"
    r"[a-z]{2,20}_[a-z_]{2,40}\b)"
)
# Python ignores what a destructor raises, as a process ends; the traceback of it follows.
IGNORED = "Exception ignored in"
MAX_IGNORED = 64  # lines of such a traceback, and processes that write one at a time
# What a message of several lines lists: the errors that together are why.
_LISTED = re.compile(r"[-*•] {1,4}(?=(?:\w{1,40}\.){0,6}\w{1,80}(?:Error|Exception): \S)")
MAX_LISTED = 40  # lines of such a message
# What only carries the exception that another process or a compiler has raised: its own words are below.
_WRAPS = re.compile(r"\b(?:[Ss]ubprocess|raised|exception (?:is|was)|error|caused by)\W{0,2}:$")
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")


@dataclass(frozen=True)
class Frame:
    """A line of source code, its path as it is installed."""

    file: str
    line: int
    function: str


Judged = tuple[tuple[LogPattern, ...], bool]  # the signs of a line that count, and whether it reports a failure


class Nearby(NamedTuple):
    """A line of a piece of a log, with what is above and below it, and the signs that it and the piece may hold."""

    part: bytes
    start: int
    end: int
    signs: tuple[LogPattern, ...]
    kind: LineKind = LineKind(())
    judged: list[Judged] | None = None  # the signs of all lines of this form, once known
    single: bool = False  # no other line of the piece is of its form

    def indents(self, words: str) -> bool:
        """Whether the line is inside a traceback: its words are indented behind what its logger repeats."""
        return self.text.rstrip().endswith(b"   " + words.encode()) or INDENTED in self.text

    @property
    def text(self) -> bytes:
        """The line itself, as far as it counts."""
        return self.part[self.start : min(self.end, self.start + MAX_LINE)]

    def quotes(self, who: str, words: str) -> bool:
        """Whether the line is source code that a traceback quotes: indented, below the frame that names its file."""
        indented = b"    " + words.encode()
        if not self.text.rstrip().endswith(indented):
            return False
        named, end = who.rpartition(" ")[2].encode(), self.start - 1
        for _ in range(MAX_QUOTED):
            begin = self.part.rfind(b"\n", 0, max(0, end)) + 1
            above, end = self.part[begin : max(begin, min(end, begin + MAX_LINE))], begin - 1
            if b", line " in above and b'File "' in above and named in above:
                return True
            # Another process writes in between; a statement may take several lines.
            if end < 0 or (named in above and b"    " not in above):
                return False
        return False

    def may_fail(self, line: LogLine, names: frozenset[str]) -> bool:
        """Whether the line has a word of failure, and is not what the warning right above it announces with a colon."""
        if not may_fail(line.words, self.below):
            return False
        end = max(0, self.start - 1)
        begin = max(self.part.rfind(b"\n", 0, end) + 1, end - MAX_LINE)
        above = parse_line(self.part[begin:end], names=names)
        return not (above.calm and above.who == line.who and above.words.endswith(":"))

    @property
    def below(self) -> bytes:
        """What may continue the line."""
        return self.part[self.end + 1 : self.end + 1 + SHOWN]

    def continued(self, above: LogLine, names: frozenset[str]) -> tuple[str, ...]:
        """The lines right below that continue a line: a version mismatch lists the versions there."""
        lines = []
        for raw in self.below.split(b"\n")[:MORE_LINES]:
            parsed = parse_line(raw, names=names)
            # Loggers repeat their prefix; what continues a message is indented behind it.
            own = parsed.level == above.level and parsed.who == above.who and INDENTED in raw
            stamped = not own and (parsed.level or parsed.time)
            if not parsed.words or stamped or parsed.words.startswith(("File ", "Traceback", "^", "+-")):
                break
            lines.append(redact(parsed.words)[:SHOWN])
        return tuple(lines)

    def listed(self, above: LogLine, names: frozenset[str]) -> tuple[int, LogLine] | None:
        """The first error that the message lists which begins below: how far below, and its words."""
        rest = self.part[self.end + 1 : self.end + 1 + MAX_ABOVE].split(b"\n") if _is_bare(above.words) else []
        for below, raw in enumerate(rest[:MAX_LISTED], 1):
            parsed = parse_line(raw, names=names)
            if parsed.words.startswith(TRACEBACK):
                break
            if found := _LISTED.match(parsed.words):
                return below, parsed._replace(words=parsed.words[found.end() :])
        return None

    def statement(self, last: LogLine, names: frozenset[str]) -> tuple[str, ...]:
        """The statement that raised an exception without words, where it holds more than its name: an assertion."""
        above = self.part[max(0, self.start - MAX_ABOVE) : self.start].splitlines()[-MAX_QUOTED:]
        lines = (parse_line(raw, names=names) for raw in reversed(above)) if _is_bare(last.words) else ()
        code = next((line.words for line in lines if line.who == last.who and line.words.strip("^~ ")), "")
        return () if not code or code.startswith(("raise", 'File "')) else (redact(code)[:SHOWN],)

    def alone(self) -> Nearby:
        """The same without the rest of the piece, which need not be kept for it."""
        above = max(0, self.start - MAX_ABOVE - MAX_LINE)
        part = self.part[above : self.end + 1 + SHOWN]
        return Nearby(part, self.start - above, self.end - above, self.signs)

    def frame(self, who: str, names: frozenset[str]) -> Frame | None:
        """The nearest frame above that the same process has written; Python's own only where there is no other."""
        at, least, own = self.start, max(0, self.start - MAX_ABOVE), None
        # What is above the traceback is of another one; of processes side by side its beginning may be another's.
        head = self.part.rfind(b"Traceback (most", least, at)
        if head >= 0 and parse_line(self.part[self.part.rfind(b"\n", 0, head) + 1 : head], names=names).who == who:
            least = head
        # Where several processes write side by side, most frames are not of this one.
        named = who.rpartition(" ")[2].encode()
        for _ in range(MAX_FRAMES):
            at = self.part.rfind(b'File "', least, at)
            if at < 0:
                break
            begin = self.part.rfind(b"\n", 0, at) + 1
            raw = self.part[begin : begin + MAX_LINE].split(b"\n", 1)[0]
            if named not in raw and b"\\" not in raw:
                continue
            parsed = parse_line(raw, names=names)
            found = _FRAME.match(parsed.words.lstrip())
            if found and parsed.who == who:
                frame = Frame(_INSTALLED.sub("", found[1]), int(found[2]), found[3] or "")
                if not _PYTHON.match(found[1]):
                    return frame
                own = own or frame
        return own

    def last(self, who: str, names: frozenset[str]) -> tuple[int, LogLine, Nearby] | None:
        """The line that ends the traceback which begins here: how far below, and what is near it."""
        start, frames = self.end + 1, 0
        for below, raw in enumerate(self.part[start : start + MAX_BELOW].split(b"\n")[:-1], 1):
            parsed = parse_line(raw, names=names)
            begun = frames or below > MAX_BETWEEN or b'  File "' in raw
            if begun and parsed.who == who and parsed.words:
                if not raw.rstrip().endswith(b"  " + parsed.words.encode()):
                    found = frames and _CLASS.match(parsed.words)
                    return (below, parsed, Nearby(self.part, start, start + len(raw), self.signs)) if found else None
                frames += bool(_FRAME.match(parsed.words))
            start += len(raw) + 1
        return None


def broken_off(part: bytes, names: frozenset[str]) -> tuple[int, ...]:
    """Where the last frame and its code are of a traceback within which the text ends: its exception was not copied."""
    at = part.rfind(b'  File "', max(0, len(part) - MAX_ABOVE)) + 2
    start = part.rfind(b"\n", 0, at) + 1
    raw, *below = part[start:].split(b"\n") if at > 1 else [b""]
    frame, places, place = parse_line(raw[:MAX_LINE], names=names), [start], start + len(raw) + 1
    if len(below) > MAX_QUOTED or not _FRAME.match(frame.words):
        return ()
    for raw in below:
        code = parse_line(raw[:MAX_LINE], names=names)
        if code.words.strip("^~ "):
            if code.who != frame.who or not raw.rstrip().endswith(b"    " + code.words.encode()):
                return ()
            places.append(place)
        place += len(raw) + 1
    return tuple(places)


def _is_bare(words: str) -> bool:
    """Whether an exception has no message, or one that begins in the line below."""
    return ": " not in words


def is_exception(words: str) -> bool:
    """Whether a line is the last of a traceback: the exception and its message."""
    return bool(_EXCEPTION.match(words))


def may_refuse(words: str) -> bool:
    """Whether an exception is of a class by which code refuses what it was given, and has a message."""
    return bool(_REFUSES.match(words) or _NAMES_A_FLAG.match(words))


def refuses(words: str, frame: Frame | None) -> bool:
    """Whether such an exception is of those that check vLLM's settings, or vLLM's and names the flag to change."""
    if frame is None:
        return False
    checked = _REFUSES.match(words) and _CHECKS.search(frame.file)
    return bool(checked or (_NAMES_A_FLAG.match(words) and _OF_VLLM.search(frame.file)))


def may_be_half(words: str) -> bool:
    """Whether an exception is of a class by which a file is not what it should be."""
    return bool(_UNREADABLE.match(words))


def reads_a_model(frame: Frame | None) -> bool:
    """Whether a line of source code is of those that read the files of a model."""
    return bool(frame and _READS.search(frame.file))


class IgnoredExceptions:
    """The exceptions of one host that Python itself has ignored."""

    def __init__(self) -> None:
        self._begun: dict[str, int] = {}

    def holds(self, number: int, parsed: LogLine, nearby: Nearby) -> bool:
        """Whether a line is of one: what announces it, its traceback with source code, or the exception."""
        if parsed.words.startswith(IGNORED):
            if len(self._begun) < MAX_IGNORED:
                self._begun[parsed.who] = number
            return True
        begun = self._begun.get(parsed.who)
        if begun is None:
            return False
        if number - begun > MAX_IGNORED or is_exception(parsed.words):
            del self._begun[parsed.who]
            return number - begun <= MAX_IGNORED
        return parsed.words.startswith(TRACEBACK) or nearby.quotes(parsed.who, parsed.words)


def is_echo(words: str) -> bool:
    """Whether an exception is of a class that the end of another process raises."""
    return bool(_ECHO.match(words))


def leads(who: str) -> bool:
    """Whether a process is none of those that vLLM starts for its engine and its ranks."""
    return not _STARTED.search(who)


def wraps(words: str) -> bool:
    """Whether an exception only carries another one, whose words are below it."""
    return bool(_WRAPS.search(words[-SHOWN:]))


def is_chained(words: str) -> bool:
    """Whether the next exception of this process came of the one above."""
    return words.startswith(_CHAINED)
