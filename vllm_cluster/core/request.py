"""The request to serve, as the head's wanted.json holds it, and as people read it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm_cluster.backends import vllm
from vllm_cluster.errors import UsageError
from vllm_cluster.shell_line import shell_line
from vllm_cluster.text import redact

FILE = "wanted.json"
# The request that the node program took last: it refuses one whose epoch is not higher.
ACCEPTED_FILE = "accepted.json"
NOTHING = b'{"v": 1, "serve": null}'
# What the node program knows of the request that it took: what is served if that cannot be, and whether it is.
TAKEN_FILE = "request.json"
# What a node knows that is not the head: what it took when it was one is over.
FRESH = {FILE: NOTHING, ACCEPTED_FILE: b"{}", TAKEN_FILE: b"{}"}
# What was ready, newest last, to go back to; and what became of each request.
READY_FILE, RESULTS_FILE = "ready.json", "results.jsonl"
# For vLLM, where every host has all files.
OFFLINE = {"HF_HUB_OFFLINE": "1"}
# What does not change what runs.
_UNNAMED = ("nodes", "generation", "by_default", "rollback", "ranks", "loading")
TP, PP, HOST = "--tensor-parallel-size=", "--pipeline-parallel-size=", "--host="
_NAME = "--served-model-name="
_LOOPBACK = "127.0.0.1"


def request(argv: Sequence[str], *, by_default: bool, rollback: bool = True, **rest: Any) -> dict[str, Any]:
    """What is written where the head looks. `by_default`: the layout followed from the hosts; `rollback`:
    what was ready before is served again where this cannot be; `ranks`: the GPUs that it takes (address → number);
    `hosts`: the addresses of those that a person named, absent where none were. Flags of `loading`, which follow from
    where the weights lie, are added before it is written.

    Named by its content without the GPUs of the members: the same request twice is one, also when a host joined
    meanwhile, and then nothing restarts.
    """
    content = {**rest, "nodes": dict(rest["nodes"]), "argv": list(argv), "env": vllm.environment()}
    content |= {"by_default": by_default, "rollback": rollback, "probe_timeout_s": 600}
    return {**content, "generation": generation(content)}


def written(wanted: Mapping[str, Any] | None, before: bytes | None, by: str = "", **more: Any) -> bytes:
    """The file of a request, or of none, in place of the one before: each writer counts one up.

    The node program refuses what a laptop writes that has lost the lease meanwhile; it writes `by` into the history.
    With `back_to` it does not itself choose what to serve where this cannot be.
    """
    return json.dumps({"v": 1, "epoch": number(before) + 1, "by": by, "serve": wanted, **more}).encode()


def number(raw: bytes | None) -> int:
    """Which request this is, counted from 1; the same model asked for again is another one."""
    try:
        epoch = json.loads(raw or NOTHING).get("epoch")
    except (ValueError, AttributeError, RecursionError):
        return 0
    # One more must still be a number that JSON can be written with.
    return epoch if type(epoch) is int and 0 <= epoch < 1 << 53 else 0


def asked(raw: bytes | None) -> Mapping[str, Any] | None:
    """What such a file asks for; None where it asks for nothing, or cannot be read."""
    try:
        serve = json.loads(raw or NOTHING).get("serve")
    except (ValueError, RecursionError, AttributeError):
        return None
    return serve if isinstance(serve, dict) else None


def layout(serve: Mapping[str, Any]) -> tuple[int, int]:
    """Its TP and PP."""
    return int(_option(serve["argv"], TP)), int(_option(serve["argv"], PP))


def command(serve: Mapping[str, Any], names: Mapping[str, str], *, layout: bool = True) -> str:
    """The command line that asks for a request, to paste; without its layout where another one is to be chosen.

    `names` are those of the hosts, by address.
    """
    argv = serve["argv"]
    extra = argv[3 : argv.index(next(word for word in argv if word.startswith(_NAME)))]
    words = ["vcluster", "serve", str(serve["model"])]
    words += ["--name", str(serve["name"])] if serve["name"] != serve["model"] else []
    if layout and not serve.get("by_default"):
        words += ["--tp", _option(argv, TP), "--pp", _option(argv, PP)]
    if hosts := [names[address] for address in serve.get("hosts", ()) if address in names]:
        words += ["--hosts", ",".join(hosts)]
    words += ["--expose"] if serve["host"] != _LOOPBACK else []
    words += [] if serve.get("rollback", True) else ["--no-rollback"]
    return redact(shell_line([*words, *(["--", *extra] if extra else [])]))


def command_with(asked: object, names: Mapping[str, str], model: str, *, expose: bool = False, flag: str = "") -> str:
    """The command line that asks for a request again, with an option or a flag (--NAME=VALUE) of vLLM more.

    Of the model alone, where the request cannot be read.
    """
    serve = whole_request(asked)
    if serve is None:
        behind = ["--", flag] if flag else []
        return shell_line(["vcluster", "serve", model, *(["--expose"] if expose else []), *behind])
    # Of two equal flags the last one counts.
    own = next(at for at, word in enumerate(serve["argv"]) if word.startswith(_NAME))
    argv = [*serve["argv"][:own], *([flag] if flag else []), *serve["argv"][own:]]
    return command({**serve, "argv": argv, **({"host": ""} if expose else {})}, names)


def summary(serve: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """A request in a line, for the history: what it asks for, and the layout that was chosen."""
    tp, pp = layout(serve)
    return f"{command(serve, names, layout=False).removeprefix('vcluster serve ')} (TP={tp} × PP={pp})"


def whole_request(serve: Any) -> Mapping[str, Any] | None:
    """A request with all that is read of it."""
    try:
        argv = serve["argv"]
        sizes = layout(serve)
        named = any(word.startswith(_NAME) for word in argv)
        texts = [*argv, serve["host"], serve["name"], serve["model"]]
        ranks, hosts = serve.get("ranks", {}), serve.get("hosts", [])
        texts += [*ranks, *hosts, *serve.get("loading", [])]
        numbers = all(type(count) is int and count > 0 for count in ranks.values())
        whole = isinstance(argv, list) and named and min(sizes) > 0 and all(isinstance(text, str) for text in texts)
        whole = whole and numbers and isinstance(hosts, list)
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    return dict(serve) if whole else None


def generation(content: Mapping[str, Any]) -> str:
    """The name of a request's content."""
    named = {key: content[key] for key in sorted(content) if key not in _UNNAMED}
    named["env"] = {name: value for name, value in content["env"].items() if name not in OFFLINE}
    return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:16]


def _option(argv: Sequence[str], name: str) -> str:
    return next((word.removeprefix(name) for word in reversed(argv) if word.startswith(name)), "1")


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


# Who restarts a model where no person does.
RESTARTER = "vcluster"


@dataclass(frozen=True)
class Entry:
    """One run of a verb, and for a request to serve what became of it; `time` in seconds since 1970.

    Also a restart of the served model by the head's node program (`restart`): `failure` is why, `seconds` how long it
    took until the model was ready again.
    """

    time: float
    user: str
    verb: str
    operations: tuple[str, ...]
    request: int | None = None
    result: str | None = None
    seconds: float | None = None
    failure: str | None = None
