"""What the lines of torch and vLLM show of each rank: how far it got, whether it began to join, and where it ended."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType

from vllm_cluster.kernel.explain.progress import LEAVES
from vllm_cluster.kernel.text import count

# How far a start is. The line by which vLLM's processes leave ends it, too.
STARTING = (
    *("distributed_init_method=", "is assigned as DP rank", "Starting to load model", "Loading weights took"),
    *("Dynamo bytecode transform", "Available KV cache memory", "KV cache size:", "Graph capturing finished"),
    *("init engine (profile", "core engine proc", "Capturing a cudagraph", "Loading weights on "),
    *("LLM engine (v", "Loading weights from ", "Automatically detected platform", "platform is available"),
    *("Found nccl from library", "vLLM is using nccl", "message queue communication handle", "Supported tasks: "),
    *("Reducing Torch parallelism", "NCCL INFO Bootstrap", " nRanks ", "- Init START", "Resolved architecture: "),
    "Defaulting to use ",
)
# What a test of NCCL or a client that measures writes at its end: it serves nothing.
DONE = ("Avg bus bandwidth", "Benchmark Result", "Benchmark duration", "Throughput: ")
RANK_WORDS = ("SeqNum=", "clients joined", LEAVES, *DONE, *STARTING)
MAX_RANKS = 4096
MAX_NAMED = 8
_COLLECTIVE = re.compile(r"\[((?:PG [^\]]{1,80} )?)Rank (\d{1,6})\].{0,120}\bSeqNum=(\d{1,15})\b")
_BEGINS = re.compile(r"\bworld_size=(\d{1,6}) rank=(\d{1,6}) .{0,80}distributed_init_method=")
_CLIENTS = re.compile(r"\b(\d{1,6})/(\d{1,6}) clients joined")

# What sees a rank end: vLLM's executor on the same host, or on the head for the ranks of every host; and Ray.
_DIED = re.compile(r"\bVllmWorker-(\d{1,6}) died\b|\bRayWorkerProc rank=\[(\d{1,6})\] died\b")
_CODE = re.compile(r" unexpectedly \(exit code: -(\d{1,2})\)")
_AT = re.compile(r"\bWorker IP address: ([0-9a-f.:]{2,45})(?= )")
# As the node program names the host of a part that ended, and of what that printed; 128 and more is a signal.
_ON = re.compile(r"\bvLLM ended with exit code \d{1,3}(?: on [\w.-]{1,63};)? on ([A-Za-z0-9][\w.-]{0,62}): ")
# Ray's copy of what a rank printed.
_COPIED = re.compile(r"\bpid=\d{1,9}, ip=([0-9a-f.:]{2,45})\) ")
_PART = re.compile(r"\bvLLM ended with exit code (12[89]|1[3-9]\d) on ([A-Za-z0-9][\w.-]{0,62})")
_SIGNALLED = 128
_ONE = "a rank"

# With a port behind it, or as what it is: four numbers may be a version as well.
_FOUR = r"\d{1,3}(?:\.\d{1,3}){3}"
_ADDRESS = re.compile(
    rf"\btcp://([A-Za-z][\w.-]{{0,200}}):\d|\b({_FOUR})(?:\]?:|<|', )\d{{1,5}}\b"
    rf"|(?:\bip|addr\w{{0,6}})\W{{1,4}}({_FOUR})\b"
)
_OF_EVERY_HOST = re.compile(r"localhost\b|127\.|0\.0\.0\.0|169\.254\.|172\.17\.0\.1$")


def addresses_in(words: str) -> Iterator[str]:
    """The addresses at which ranks meet, or that a failure names; one of the host's own is one of every host."""
    if words.count(".") < 3 and "tcp://" not in words:
        return iter(())
    found = (next(filter(None, one)) for one in _ADDRESS.findall(words))
    return (one for one in found if not _OF_EVERY_HOST.match(one))


class Ranks:
    """The number of the collective in which each rank of a group timed out, and the ranks that began to join.

    `starting`: a part of a server has begun to start, and has not left.
    """

    def __init__(self) -> None:
        self.collectives: dict[tuple[str, int], int] = {}
        self.begun: set[int] = set()
        self.size = 0
        self.joined: tuple[int, int] | None = None
        self.starting = False

    def take(self, words: str) -> None:
        """Look at one line."""
        starts, ends = (any(map(words.__contains__, marks)) for marks in (STARTING, (LEAVES, *DONE)))
        self.starting = not ends and (self.starting or starts)
        if (found := _COLLECTIVE.search(words)) and len(self.collectives) < MAX_RANKS:
            self.collectives.setdefault((found[1], int(found[2])), int(found[3]))
        elif (found := _BEGINS.search(words)) and len(self.begun) < MAX_RANKS:
            self.size = max(self.size, int(found[1]))
            self.begun.add(int(found[2]))
        elif found := _CLIENTS.search(words):
            self.joined = int(found[1]), int(found[2])


def compare_ranks(hosts: Iterable[Ranks]) -> Iterator[str]:
    """What the ranks of all hosts show together: who is behind in a group, and who never began."""
    seen = list(hosts)
    groups: dict[str, dict[int, int]] = {}
    for one in seen:
        for (group, rank), number in one.collectives.items():
            groups.setdefault(group, {})[rank] = number
    for at in groups.values():
        last = max(at.values())
        behind = sorted(rank for rank, number in at.items() if number < last)
        if behind:
            numbers = ", ".join(str(at[rank]) for rank in behind[:MAX_NAMED])
            yield f"behind the others of its group, which are at SeqNum {last}: {_named(behind)} at {numbers}"
    joined = next((one.joined for one in seen if one.joined), None)
    if joined:
        yield f"{joined[0]} of {count(joined[1], 'rank')} joined"
    begun = {rank for one in seen for rank in one.begun}
    size = joined[1] if joined else max((one.size for one in seen), default=0)
    missing = [rank for rank in range(min(size, MAX_RANKS)) if rank not in begun]
    if missing and begun and (joined or groups):
        yield f"never began, by these logs: {_named(missing)}"


@dataclass(frozen=True)
class KnownHosts:
    """The hosts of a cluster: their names by address, and which one is the head."""

    names: Mapping[str, str]
    head: str = ""


UNKNOWN = KnownHosts(MappingProxyType({}))


def ended_ranks(lines: Iterable[tuple[str, str]], hosts: KnownHosts) -> Iterator[str]:
    """Which ranks ended on which host, by which signal, by the hosts and words of lines that report it.

    What no line names is left out. Where it is known which host is the head, another one's lines are of that one alone:
    what they have of further hosts anybody there can have written.
    """
    names, head = hosts.names, hosts.head
    found: dict[str, tuple[str, int]] = {}
    for host, words in lines:
        copied = _COPIED.search(words)
        writer = names.get(copied[1], copied[1]) if copied else host
        for who, named, number in _ends(writer, words):
            at = names.get(named, named)
            if head and writer not in (head, at):
                continue
            place, by = found.get(who, ("", 0))
            found[who] = place or at, by or number
    place, by = found.pop(_ONE, ("", 0))
    unplaced = [who for who, (at, _) in found.items() if not at]
    if place and len(unplaced) == 1:
        found[unplaced[0]] = place, found[unplaced[0]][1]
    elif place and place not in (at for at, _ in found.values()):
        found[_ONE] = place, by
    for who, (at, number) in found.items():
        if at:
            yield f"{who} ended on {at}{_by(number)}"


def _ends(host: str, words: str) -> Iterator[tuple[str, str, int]]:
    """Which rank ended, on which host, by which signal, as far as a line names them."""
    if died := _DIED.search(words):
        # Only what the node program has put before it: the rest of the line is what a rank printed.
        named = _ON.search(words, 0, died.start())
        # The executor that Ray has is on the head, and its ranks are anywhere.
        at = named[1] if named else "" if died[2] else host
        code = _CODE.match(words, died.end())
        yield f"rank {died[1] or died[2]}", at, int(code[1]) if code else 0
    if one := _PART.search(words):
        yield "a part of vLLM", one[2], int(one[1]) - _SIGNALLED
    if address := _AT.search(words):
        yield _ONE, address[1], 0


def _by(number: int) -> str:
    name = ""
    with suppress(ValueError):
        name = f" ({signal.Signals(number).name})" if number else ""
    return f" by signal {number}{name}" if number else ""


def _named(ranks: list[int]) -> str:
    more = f" and {len(ranks) - MAX_NAMED} more" if len(ranks) > MAX_NAMED else ""
    return f"rank {', '.join(map(str, ranks[:MAX_NAMED]))}{more}"
