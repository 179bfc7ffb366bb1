"""The roll: which nodes are here now, as their own programs report to the head's, and the lines between the two."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from vllm_cluster.wire.reading import read
from vllm_cluster.wire.signature import same, sign
from vllm_cluster.wire.values import Address, Count, Line, Number, between, first, shaped

# A hello with the longest names; and a beat of one that has proved itself, with the parts that run or shall run.
MAX_HELLO, MAX_LINE = 4 << 10, 256 << 10
MAX_GPUS = 1024
# More than a head lets in.
MAX_NODES = 1024
Nonce = Annotated[str, shaped("[0-9a-f]{32}", "a nonce of 32 hex digits")]
# Silent: connected, without beats; gone: its connection has ended, which its host's end or another way may have done.
Presence = Literal["here", "silent", "gone"]
WORKER, HEAD = "worker", "head"


# As an inventory names hosts: what a node gives itself is printed beside it.
HostName = Annotated[str, shaped("[A-Za-z0-9][A-Za-z0-9._-]{0,62}", "the name of a host")]


@dataclass(frozen=True)
class Offer:
    """The head's first line: what the answer must be signed for."""

    v: Literal[1]
    nonce: Nonce


@dataclass(frozen=True)
class Hello:
    """The node's first line: who it is, and what the head's answers must be signed for."""

    host: HostName
    address: Address
    # As many as the head's status may have of a node: with more, no command could read that.
    gpus: Annotated[int, between(0, MAX_GPUS)]
    nonce: Nonce
    # Of the node program that runs; what an earlier version sends has none.
    instance: Annotated[str, shaped("[0-9a-f]{0,32}", "the id of a program that runs")] = ""

    def meets(self, host: str, address: str) -> bool:
        """Whether its name or its address is that of another node."""
        return self.host == host or self.address == address


@dataclass(frozen=True)
class RollNode:
    """One node on the head's roll; `since` is when its state began, by the head's clock."""

    host: HostName
    address: Address
    gpus: Count
    state: Presence
    since: Number


@dataclass(frozen=True)
class Roll:
    """On the head: every node that has been here. `error` is what keeps this node, or others, from being on it."""

    nodes: Annotated[tuple[RollNode, ...], first(MAX_NODES)] = ()
    error: Line = ""


class Unsigned(ValueError):
    """A line that this cluster's key has not signed, or that came before or after its turn."""


class Signed:
    """One end of a connection whose every line is signed with the key, both nonces and its number."""

    def __init__(self, key: str, me: str, other: str, nonces: tuple[str, str]) -> None:
        self._key, self._me, self._other, self._nonces = key, me, other, nonces
        self._sent = self._received = 0

    def line(self, body: Mapping[str, object]) -> bytes:
        """Return the next line to send."""
        raw = json.dumps(body)
        self._sent += 1
        return f"{sign(self._key, self._me, *self._nonces, str(self._sent), raw)} {raw}\n".encode()

    def body(self, line: bytes) -> bytes:
        """Return what the next line that came has.

        Raises:
            Unsigned: it is not the next line of the other end.
        """
        proof, _, raw = line.partition(b" ")
        self._received += 1
        wanted = sign(self._key, self._other, *self._nonces, str(self._received), raw)
        if not same(proof.decode("ascii", "replace"), wanted):
            raise Unsigned("is not signed with the token of this cluster")
        return raw


def new_nonce() -> str:
    """Make a nonce."""
    return secrets.token_hex(16)


def hello_line(key: str, offer: str, hello: Mapping[str, object]) -> bytes:
    """Return the node's first line, signed for the head's nonce."""
    raw = json.dumps(hello)
    return f"{sign(key, 'hello', offer, raw)} {raw}\n".encode()


def read_hello(key: str, offer: str, line: bytes) -> Hello:
    """Read a node's first line.

    Raises:
        Unsigned: its node has not the token of this cluster.
        RefusedDocument: it is none.
    """
    proof, _, raw = line.partition(b" ")
    if not same(proof.decode("ascii", "replace"), sign(key, "hello", offer, raw)):
        raise Unsigned("is not signed with the token of this cluster")
    return read(Hello, raw, "a node", MAX_HELLO)
