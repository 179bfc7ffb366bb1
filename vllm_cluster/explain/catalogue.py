"""All rows, and what to look for in a line."""

from __future__ import annotations

import re
from dataclasses import dataclass

from vllm_cluster.explain import (
    benign,
    failures_host,
    failures_image,
    failures_model,
    failures_more,
    failures_network,
    failures_ray,
    failures_serve,
    failures_start,
)
from vllm_cluster.explain.failure import KnownFailure, SignKind

_EVERY = (
    *failures_host.FAILURES,
    *failures_network.FAILURES,
    *failures_ray.FAILURES,
    *failures_serve.FAILURES,
    *failures_model.FAILURES,
    *failures_start.FAILURES,
    *failures_image.FAILURES,
    *failures_more.FAILURES,
)


def _order(row: KnownFailure) -> tuple[int, str]:
    digits = row.number.rstrip("ab")
    return int(digits), row.number


FAILURES = {row.number: row for row in sorted(_EVERY, key=_order)}


@dataclass(frozen=True, eq=False)
class LogPattern:
    """One sign to look for: of a failure, or of a harmless line with the reason why it is harmless."""

    row: str
    needle: str
    matches: re.Pattern[str] | None
    weight: SignKind
    explains: tuple[str, ...] = ()
    host: bool = False
    why: str = ""


SIGNS = (
    *(
        LogPattern(
            row.number,
            sign.needle,
            re.compile(sign.pattern) if sign.pattern else None,
            sign.weight,
            sign.explains,
            row.host,
        )
        for row in FAILURES.values()
        for sign in row.signs
    ),
    *(LogPattern(like.row, like.needle, None, SignKind.HARMLESS, why=like.why) for like in benign.BENIGN),
)

# Pieces of words that many signs and most lines of trouble share, whole needles for the rest: see `candidate_lines`.
_SHARED = (
    *("rror", "not ", "ailed", "nable", "emory", "annot", "imed out", "NCCL", "ibv_", "xception", "ERROR"),
    *("nvalid", "onnect", " than ", "must ", " module", "availabl", "ied ", "river", "manifest", "_STATUS_", "space"),
    *("ound", "ther ", "has ", "unre", " should ", "GPU ", "ted:", "ute ", "ded with", " fatal", "atch"),
)
_TROUBLE = ("CRITICAL", "FATAL", "Traceback", "panic:", "Segmentation fault", "core dumped", "Killed", "Aborted")
_WHOLE = dict.fromkeys(
    (*(known.needle for known in SIGNS), *benign.START, benign.OWN_START, benign.OWN_STOP, *benign.RAY_START, *_TROUBLE)
)
KEYS = tuple(
    key.encode() for key in (*_SHARED, *(word for word in _WHOLE if not any(part in word for part in _SHARED)))
)
