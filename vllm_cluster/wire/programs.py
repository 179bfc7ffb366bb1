"""What programs on hosts print: a message of each, as its reader takes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from vllm_cluster.wire.reading import KEY
from vllm_cluster.wire.values import Count, Line, Long, Name, Port, Positive, Shown, Size, Word, between, shaped

# What an image reports ends in pip's command line and in a file in which a line may be an option.
WORD = "[A-Za-z0-9][A-Za-z0-9._+!-]{0,127}"
Plain = Annotated[str, shaped(WORD, "a name or a version")]
Version = Annotated[str, shaped(r"([0-9]{1,9}(\.[0-9]{1,9}){1,9})?", "a version of numbers")]
# pip gets a word for each minor number up to it.
Glibc = Annotated[str, shaped(r"([0-9]{1,2}(\.[0-9]{1,3}){1,2})?", "a version of glibc")]
PythonVersion = Annotated[str, shaped(r"[0-9]{1,2}(\.[0-9]{1,3}){1,2}([a-z+][a-z0-9.+]{0,20})?", "a version of Python")]
# More than a host can have.
Gpus = Annotated[int, between(0, 1024)]
# Of the fastest interface there is, 800,000, with room.
Megabits = Annotated[int, between(1, 100_000_000)]


@dataclass(frozen=True)
class ImageReport:
    """What is in an image, and what a container of it can reach; a distribution may have no version."""

    python: PythonVersion
    machine: Plain
    glibc: Glibc
    have: Mapping[Line, Line | None]
    lacking: tuple[Plain, ...] = ()
    unknown: tuple[Plain, ...] = ()
    cuda: Version = ""
    gpus: Gpus | None = None
    problem: Line = ""
    driver: Version = ""
    unwritable: Line = ""


@dataclass(frozen=True)
class LinkPorts:
    """Where a host listens for the test of links: the ports it was asked to open, and those that it chose."""

    open: tuple[Port, ...]
    taken: tuple[Port, ...]
    chosen: tuple[Port, ...]
    udp: Port


@dataclass(frozen=True)
class RanksReady:
    """The host has loaded torch; `speed` is that of the interface between the hosts, None where it is not known."""

    torch: Line = ""
    speed: Megabits | None = None


@dataclass(frozen=True)
class FedRow:
    """A line of what takes a laptop's files: what is there of each, or what became of one; neither while it hashes."""

    have: tuple[Size, ...] | None = None
    whole: tuple[bool, ...] = ()
    wrong: Count | None = None
    error: Shown | None = None


@dataclass(frozen=True)
class EngineLoad:
    """The host's clock, and the requests that each replica works on, by its number, where that is known."""

    now: Positive
    requests: Mapping[Line, Count]


@dataclass(frozen=True)
class ExcerptRow:
    """A piece of a node's log: the file's name, the number of the first line, and the text."""

    file: Name
    line: Count
    text: Long


@dataclass(frozen=True)
class CheckQuestion:
    """What a node is asked about a model, and its vLLM about an `argv`, whose last `own` words are not a person's."""

    model: Word
    revision: Word = ""
    ask_hub: bool = True
    argv: tuple[Word, ...] = ()
    own: Count = 0
    ask: tuple[Name, ...] = ()
    env: Mapping[Name, Word] = field(default_factory=dict)
    seconds: Positive = 0.0
    model_here: bool = False


@dataclass(frozen=True)
class BenchStarted:
    """The benchmark has loaded vLLM; `context` is how many tokens the server takes, None where it is not known."""

    vllm: Line = ""
    context: Count | None = None


@dataclass(frozen=True)
class BenchReply:
    """One run of the benchmark: vLLM's own figures, or why there are none."""

    result: Mapping[Name, object] | None = None
    error: Shown = "no result"
    reasons: tuple[Shown, ...] = ()


@dataclass(frozen=True)
class BenchCounts:
    """How many requests of a run were answered."""

    completed: Count = 0
    failed: Count = 0
    asked: Count = field(default=0, metadata={KEY: "num_prompts"})
