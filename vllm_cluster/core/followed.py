"""The request to serve after the cluster changed: on the hosts, in the layout and at the address that there are now."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm_cluster.backends import vllm
from vllm_cluster.core.request import (
    HOST,
    NOTHING,
    PP,
    TP,
    command,
    generation,
    layout,
    number,
    whole_request,
    written,
)
from vllm_cluster.errors import UsageError

Serve = Mapping[str, Any]


@dataclass(frozen=True)
class Followed:
    """A request after the cluster changed: its file, and what that means, for people."""

    content: bytes
    text: str


@dataclass(frozen=True)
class ChangedCluster:
    """The cluster as it is now: its GPUs by address, the head's first, and the names of its hosts by address.

    `head` are the addresses of the head before and now, `readdressed` has the one that a host has now, by the one
    before.
    """

    gpus: Mapping[str, int]
    head: tuple[str, str]
    names: Mapping[str, str]
    readdressed: Mapping[str, str] = field(default_factory=dict)


def follow(raw: bytes | None, change: ChangedCluster, taken: bytes | None = None) -> Followed | None:
    """The request for a cluster that changed; `taken` is what its head knows of the request before.

    None where the request stays as it is. What does not fit any more gets the default layout if it had that, and else
    goes. Where the last request cannot be served, what is served in its place is what is wanted from now on; and what
    is to be served where a request that is being loaded cannot be, follows too: on hosts that have left it would wait
    without end.
    """
    known = _object(taken or b"{}")
    if raw is not None and not _object(raw):
        # The head still has what it took where a power cut broke the file.
        raw = json.dumps({"epoch": known.get("number"), "serve": known.get("asked")}).encode()
    asked = _whole(_object(raw or NOTHING).get("serve"))
    if asked is None:
        return None
    serve, spare = _in_force(asked, known, number(raw))
    wanted, texts = _fit(serve, change)
    back_to, moved = _fit(spare, change) if spare else (None, [])
    if not (texts or moved):
        return None
    if wanted is None and back_to:
        wanted, back_to = back_to, None
        texts.append(f"{wanted['name']} is served again")
    if serve is not asked:
        texts.append(f"{asked['name']}, which could not be served, is not wanted any more")
    elif not texts:
        texts.append(f"where {asked['name']} cannot be served: {'; '.join(moved)}")
    return Followed(written(wanted, raw, back_to=back_to), "; ".join(texts))


def carried(taken: bytes | None) -> bytes:
    """What a head knows of its request, for the host that becomes the head: nothing is ready there yet."""
    known = _object(taken or b"{}")
    serves = known.get("ready") and not known.get("failed")
    return json.dumps({**known, "ready": False} if known and not serves else {}).encode()


def _in_force(asked: Serve, taken: Mapping[str, Any], epoch: int) -> tuple[Serve, Serve | None]:
    """What the head serves, or shall; and what it goes back to where that cannot be, None where it would not."""
    failed, ready = bool(taken.get("failed")), bool(taken.get("ready"))
    back_to = _whole(taken.get("back_to"))
    if taken.get("number") == epoch:
        if failed and back_to:
            return back_to, None
        spare = None if ready else back_to
    else:
        # The head has not taken this request yet: it goes back to what is ready.
        spare = _whole(taken.get("asked")) if ready and not failed else back_to
    if not asked.get("rollback", True) or (spare and spare.get("generation") == asked.get("generation")):
        spare = None
    return asked, spare


def _fit(serve: Serve, change: ChangedCluster) -> tuple[Serve | None, list[str]]:
    """The request as it fits, None where it does not; with what has changed of it, for people."""
    moved = _readdressed(serve, change.readdressed)
    named = moved.get("hosts", ())
    there = {address: count for address, count in change.gpus.items() if not named or address in named}
    texts, name, head = list[str](), serve["name"], change.head
    if serve["host"] == head[0] != head[1]:
        moved |= {"host": head[1], "argv": _with(serve["argv"], HOST, head[1])}
        texts.append(f"{name} is served at {head[1]}")
    try:
        if left := [address for address in named if address not in there]:
            known = ",".join(change.names.get(address, address) for address in named)
            raise UsageError(f"{', '.join(left)} of --hosts {known} has left; {_again(moved, change.names)}")
        tp, pp = _sizes(moved, there, change.names)
    except UsageError as error:
        return None, [f"{name} is not served any more: {error.message}"]
    if (tp, pp) != (before := layout(serve)):
        moved["argv"] = _with(_with(moved["argv"], TP, str(tp)), PP, str(pp))
        texts.append(f"{name} is served with TP={tp} × PP={pp}, before TP={before[0]} × PP={before[1]}")
    ranks = moved.get("ranks") or {}
    if ranks and (sum(ranks.values()) != tp * pp or any(change.gpus.get(host, 0) < n for host, n in ranks.items())):
        moved["ranks"] = vllm.place(there, tp, pp)
    for places in ("ranks", "hosts"):
        # Another layout has other ranks anyway, and they name their hosts.
        if (tp, pp) == before and moved.get(places, ()) != serve.get(places, ()):
            now, then = (", ".join(one[places]) for one in (moved, serve))
            texts.append(f"{name} is served on {now}, before on {then}")
            break
    if not texts:
        return serve, []
    moved["nodes"] = dict(change.gpus)
    return {**moved, "generation": generation(moved)}, texts


def _readdressed(serve: Serve, now: Mapping[str, str]) -> dict[str, Any]:
    """The same with the addresses that its hosts have now."""
    moved = dict(serve)
    if serve.get("hosts"):
        moved["hosts"] = [now.get(address, address) for address in serve["hosts"]]
    if serve.get("ranks"):
        moved["ranks"] = {now.get(address, address): count for address, count in serve["ranks"].items()}
    return moved


def _sizes(serve: Serve, there: Mapping[str, int], names: Mapping[str, str]) -> tuple[int, int]:
    """The layout of a request over these GPUs.

    Raises:
        UsageError: there are too few, and a person asked for this layout.
    """
    (tp, pp), total = layout(serve), sum(there.values())
    if tp * pp <= total:
        return tp, pp
    if not serve.get("by_default"):
        raise UsageError(f"TP={tp} × PP={pp} needs {tp * pp} GPUs, and there are {total}; {_again(serve, names)}")
    chosen = vllm.choose_parallelism(list(there.values()), None, None)
    return chosen.tp, chosen.pp


def _again(serve: Serve, names: Mapping[str, str]) -> str:
    return f"to serve it again: {command(serve, names, layout=False)}"


def _whole(serve: Any) -> Serve | None:
    found = whole_request(serve)
    return found if found and isinstance(found.get("env"), dict) else None


def _object(raw: bytes) -> Mapping[str, Any]:
    """Empty where no laptop and no node program wrote it: whoever may use the head's Docker can."""
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _with(argv: Sequence[str], name: str, value: str) -> list[str]:
    last = max((index for index, word in enumerate(argv) if word.startswith(name)), default=-1)
    return [f"{name}{value}" if index == last else word for index, word in enumerate(argv)]
