"""What a layer keeps of a request, in whole blocks, as vLLM's planner deals them out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

BLOCK = 16
# Where latent attention is beside states, blocks are multiples of this.
LATENT_BLOCK = 128
# What vLLM schedules at once by default on large GPUs; window layers keep each such step in flight beside their window.
BATCHED = 8192
# Steps in flight of an engine without stages: the next one is scheduled while one runs. A stage more is a step more.
STEPS = 2
# States of linear attention that vLLM keeps of a request while it caches prefixes, its default from 0.32 on; Mamba 2
# exports one more from within a prefill.
STATES, MAMBA_2_STATES = 2, 3
# Bytes of a token in the packed 8-bit rows of sparse latent attention.
PACKED = 656


@dataclass(frozen=True)
class Rows:
    """A cache of packed rows: bytes of a block of so many tokens, in any dtype; of a window, the last of them."""

    tokens: int
    bytes: int
    window: int | None = None

    def held(self, tokens: int, steps: int) -> int:
        """Bytes for one request of so many tokens."""
        return _blocks_of(tokens, self.tokens, self.window, steps) * self.bytes


def _blocks_of(tokens: int, block: int, window: int | None, steps: int) -> int:
    """How many blocks a request holds; a window begins anywhere in one, and grows by the steps in flight."""
    if window:
        tokens = min(tokens, window - 1 + steps * BATCHED) + block
    return -(-tokens // block)


@dataclass(frozen=True)
class Page:
    """The block of a model that has attention and states: of so many tokens that a state fits in one, too."""

    heads: int
    width: int
    state: int
    multiple: int = BLOCK

    def block(self, tp: int, kv_bytes: int) -> tuple[int, int]:
        """Its tokens, and its bytes on one GPU."""
        token = max(1, self.heads // tp) * self.width * kv_bytes
        tokens = self.multiple * -(-(self.state // tp) // (self.multiple * token))
        return tokens, tokens * token


@dataclass(frozen=True)
class Layer:
    """What one layer keeps of a request: `width` elements a token and KV head, `indexer` bytes a token.

    One head stays whole on every GPU; so does the latent of MLA, which is one head. `state` bytes are one of the
    `states` that linear attention keeps instead, or beside, `rows` what compressed attention does.

    vLLM deals layers of different kinds to groups of one size: of so many `places` a layer (`state_places` for its
    state), the last ones are empty where the size does not divide their number.
    """

    heads: int = 0
    width: int = 0
    window: int | None = None
    indexer: int = 0
    state: int = 0
    rows: tuple[Rows, ...] = ()
    places: Fraction = Fraction(1)
    states: int = STATES
    state_places: Fraction = Fraction(1)
    page: Page | None = None

    def held(self, tokens: int, tp: int, kv_bytes: int, steps: int = STEPS) -> int:
        """Bytes on one GPU for one request of so many tokens, in whole blocks."""
        each = max(1, self.heads // tp) * self.width * kv_bytes + self.indexer
        if self.indexer and kv_bytes == 1:
            each = PACKED + self.indexer
        block, state = BLOCK, self.state // tp
        if self.page:
            block, state = self.page.block(tp, kv_bytes)
        blocks = _blocks_of(tokens, block, self.window, steps) if self.heads else 0
        return (
            math.ceil(blocks * block * each * self.places)
            + (math.ceil(self.states * state * self.state_places) if self.state else 0)
            + sum(rows.held(tokens, steps) for rows in self.rows)
        )


def places(*numbers: int) -> tuple[Fraction, ...]:
    """The places a layer of each kind takes in groups of one size, of so many layers of each."""
    some = [number for number in numbers if number]
    if len(some) < 2:
        return (Fraction(1),) * len(numbers)
    # The smaller number is the size of a group, unless the other one is hardly larger.
    group = max(some) if max(some) < 1.5 * min(some) else min(some)
    return tuple(Fraction(-(-number // group) * group, number) if number else Fraction(1) for number in numbers)
