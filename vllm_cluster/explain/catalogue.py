"""All rows, and what to look for in a line."""

from __future__ import annotations

import re
from dataclasses import dataclass

from vllm_cluster.explain import noise, rows_host, rows_model, rows_network, rows_ray, rows_serve, rows_start
from vllm_cluster.explain.row import Row, Weight

_EVERY = (*rows_host.ROWS, *rows_network.ROWS, *rows_ray.ROWS, *rows_serve.ROWS, *rows_model.ROWS, *rows_start.ROWS)


def _order(row: Row) -> tuple[int, str]:
    digits = row.number.rstrip("ab")
    return int(digits), row.number


ROWS = {row.number: row for row in sorted(_EVERY, key=_order)}


@dataclass(frozen=True, eq=False)
class Known:
    """One thing to look for: of a row, or a look-alike with the reason why it is harmless."""

    row: str
    needle: str
    matches: re.Pattern[str] | None
    weight: Weight
    explains: tuple[str, ...] = ()
    host: bool = False
    why: str = ""


SIGNS = (
    *(
        Known(
            row.number,
            sign.needle,
            re.compile(sign.pattern) if sign.pattern else None,
            sign.weight,
            sign.explains,
            row.host,
        )
        for row in ROWS.values()
        for sign in row.signs
    ),
    *(Known(like.row, like.needle, None, Weight.HARMLESS, why=like.why) for like in noise.LOOKALIKES),
)

# Pieces of words that many signs and most lines of trouble share, and whole needles for the rest: see `interesting`.
_SHARED = ("rror", "not ", "ailed", "nable", "emory", "annot", "imed out", "NCCL", "ibv_", "xception", "ERROR")
_TROUBLE = ("CRITICAL", "FATAL", "Traceback", "panic:", "Segmentation fault", "core dumped", "Killed", "Aborted")
_WHOLE = dict.fromkeys(
    (*(known.needle for known in SIGNS), *noise.START, noise.OWN_START, noise.OWN_STOP, *noise.RAY_START, *_TROUBLE)
)
KEYS = tuple(
    key.encode() for key in (*_SHARED, *(word for word in _WHOLE if not any(part in word for part in _SHARED)))
)
