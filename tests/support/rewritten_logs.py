"""What people do to a log before they send it, and what none of it may change: the answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime

from tests.support.logs import NEWEST
from vllm_cluster.kernel.explain.diagnosis import Diagnosis, diagnose
from vllm_cluster.kernel.explain.log_line import parse_time
from vllm_cluster.kernel.explain.scan import LogSource, scan

Change = Callable[[bytes], bytes]
_OLD_ANSWER = b'2020-03-01T10:00:00Z INFO:     10.0.0.9:5 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
_OLD_START = b"2020-03-01 10:00:00 INFO 03-01 10:00:00 [utils.py:286] non-default args: {'model': 'm'}\n"
_OLD_RAY = b"2020-03-01 10:00:00,000\tSUCC scripts.py:1081 -- Ray runtime started.\n"


def _before(prefix: str) -> Change:
    def change(log: bytes) -> bytes:
        return b"".join(prefix.encode() + line for line in log.splitlines(keepends=True))

    return change


def _stamped(prefix: str) -> Change:
    def change(log: bytes) -> bytes:
        rows = enumerate(log.splitlines(keepends=True))
        return b"".join(prefix.format(n // 60 % 60, n % 60).encode() + line for n, line in rows)

    return change


def _json(log: bytes) -> bytes:
    lines = log.decode("utf-8", "replace").splitlines(keepends=True)
    rows = [json.dumps({"log": line, "stream": "stderr"}) for line in lines]
    return "\n".join((*rows, "")).encode()


def _other_host(log: bytes) -> bytes:
    """What another host of the same start wrote: it loaded the model and then waited."""
    times = (parse_time(line, NEWEST) for line in log.decode("utf-8", "replace").splitlines())
    first = next((at for at in times if at is not None), NEWEST)
    at = datetime.fromtimestamp(first, UTC).strftime("%m-%d %H:%M:%S")
    return (
        f"INFO {at} [utils.py:286] non-default args: {{'model': 'm'}}\n"
        f"INFO {at} [gpu_model_runner.py:1] Starting to load model m...\n"
        f"INFO {at} [kv_cache_utils.py:1] GPU KV cache size: 100,000 tokens\n"
    ).encode()


def _whole(log: bytes) -> bytes:
    return log if log.endswith(b"\n") else log + b"\n"


def _colours(log: bytes) -> bytes:
    return b"".join(b"\x1b[36m(vllm)\x1b[0m " + line.rstrip(b"\r\n") + b"\x1b[0m\r\n" for line in log.splitlines())


PREFIXES: Mapping[str, Change] = {
    "name:": _before("gpu-03: "),
    "[name]": _before("[gpu-03] "),
    "pod": _before("pod/vllm-0 "),
    "syslog": _before("Nov 03 10:00:00 gpu-03 vllm[812]: "),
    "mpirun": _before("[1,0]<stderr>: "),
    "srun": _before("0: "),
}
CHANGES: Mapping[str, Change] = {
    **PREFIXES,
    "stern": _before("vllm-7d4b9 vllm "),
    "compose": _before("vllm-1  | "),
    "build service": _stamped("2026-11-21T09:{:02}:{:02}.1234567Z "),
    "json": _json,
    "old answer after it": lambda log: _whole(log) + _OLD_ANSWER,
    "other host's answer after it": lambda log: _whole(log) + b"gpu-9: " + _OLD_ANSWER,
    "old start after it": lambda log: _whole(log) + _OLD_START,
    "old Ray after it": lambda log: _whole(log) + _OLD_RAY,
    "after another host's log": lambda log: b"===== gpu-8 =====\n" + _other_host(log) + b"===== gpu-9 =====\n" + log,
    "before another host's log": lambda log: (
        b"### gpu-8 ###\n" + _whole(log) + b"### gpu-9 ###\n" + _before("gpu-9: ")(_other_host(log))
    ),
    "CRLF": lambda log: log.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"),
    "colours": _colours,
    "last line cut": lambda log: log.rstrip()[:-1],
}
COPIED_LATER = "copied at another time"
COPIED = [datetime(year, month, 2, tzinfo=UTC).timestamp() for year, month in ((2026, 1), (2026, 6), (2027, 3))]


def read(log: bytes, newest: float = NEWEST) -> Diagnosis:
    """The diagnosis of one file."""
    return diagnose([scan(LogSource("0", [(1, log)], newest=newest))])


def answer(found: Diagnosis) -> tuple[str, str]:
    """What must stay the same."""
    return found.result, found.named.failure.slug if found.named else ""


def lost(log: bytes) -> Collection[str]:
    """The changes by which a log loses its answer; what is in its last line alone is gone with it."""
    plain = read(log)
    if not plain.named:
        return ()
    gone = {name for name, change in CHANGES.items() if answer(read(change(log))) != answer(plain)}
    if any(answer(read(log, newest)) != answer(plain) for newest in COPIED):
        gone.add(COPIED_LATER)
    in_last = any(place.line >= plain.lines for place in plain.named.places)
    return gone - {"last line cut"} if in_last else gone
