"""The request to serve, as it lies in the state volume."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_cluster.remote.node.files import load, sync_file, write_whole
from vllm_cluster.remote.node.process import log_line
from vllm_cluster.remote.node.timing import mark, since

NOTHING = '{"v": 1, "serve": null}'


@dataclass(frozen=True)
class ServeRequest:
    """What is to be served; `nodes` are the GPUs of the cluster (address → number), `ranks` those that it takes.

    `ranks` is empty in the request of an earlier version, which left to Ray which GPUs stay idle.
    """

    generation: str
    model: str
    name: str
    argv: tuple[str, ...]
    env: dict[str, str]
    nodes: dict[str, int]
    host: str
    port: int
    probe_timeout_s: float
    ranks: dict[str, int]

    @classmethod
    def read(cls, text: str) -> ServeRequest | None:
        """The content of the file; None is nothing.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: it is half written, or wrong.
        """
        data = json.loads(text)
        if data["v"] != 1:
            raise ValueError(f"its version is {data['v']}, this node reads 1: run vcluster up")
        serve = data["serve"]
        if serve is None:
            return None
        return cls(
            generation=str(serve["generation"]),
            model=str(serve["model"]),
            name=str(serve["name"]),
            argv=tuple(str(word) for word in (*serve["argv"], *serve.get("loading", []))),
            env={str(name): str(value) for name, value in serve["env"].items()},
            nodes={str(address): int(count) for address, count in serve["nodes"].items()},
            host=str(serve["host"]),
            port=int(serve["port"]),
            probe_timeout_s=float(serve["probe_timeout_s"]),
            ranks={str(address): int(count) for address, count in serve.get("ranks", {}).items()},
        )


class Inbox:
    """wanted.json, in which people ask; the request that was accepted last is kept beside it."""

    def __init__(self, state: Path) -> None:
        self.error: str | None = None
        self._wanted, self._accepted = state / "wanted.json", state / "accepted.json"
        self._read_before: str | None = None

    def news(self) -> dict[str, Any] | None:
        """A request that has come since the last look; one that cannot be read changes nothing, and is an `error`."""
        # Read whole each time: its time stamp comes from the sender's archive, and may not differ from the last one's.
        try:
            # Docker removes a file before it writes it again: only where no request ever came is none wanted.
            asked = self._wanted.exists() or self._accepted.exists()
            text = self._wanted.read_text() if asked else NOTHING
            if text == self._read_before:
                self.error = None
                return None
            ServeRequest.read(text)
            request: dict[str, Any] = json.loads(text)
            ServeRequest.read(json.dumps({"v": 1, "serve": request.get("back_to")}))
            if asked and self._outdated(request):
                return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            # Perhaps half written, or about to be: what was wanted before holds, and the next look decides.
            self.error = f"wanted.json cannot be read: {error!r}"
            return None
        self._read_before, self.error = text, None
        return request

    def _outdated(self, request: Mapping[str, Any]) -> bool:
        """Whether a request is older than one that was accepted, which is put back; a new one is accepted here.

        Each writer counts one up. A laptop that slept while it wrote must not undo what was asked for meanwhile.
        """
        # One that cannot be read is replaced by the next request that comes.
        accepted = load(self._accepted)
        if request == accepted:
            return False
        # One without an epoch was written before requests had one, or by an earlier version of vcluster.
        epoch, before = int(request.get("epoch", 0)), accepted.get("epoch")
        before = before if isinstance(before, int) else 0
        if epoch <= before and before > 0:
            log_line("node", f"refused request {epoch}: {before} was accepted before it")
            write_whole(self._wanted, accepted)
            return True
        sync_file(self._wanted)
        write_whole(self._accepted, request, sync=True)
        return False


# What was ready, newest last, and what became of each request: read by `rollback` and `status --history`.
READY_FILE, RESULTS_FILE = "ready.json", "results.jsonl"
MAX_READY, MAX_RESULTS_BYTES = 5, 1 << 20
Serve = dict[str, Any]
# What is read of each request that was taken.
_KEYS = {"number", "asked", "by", "back_to", "failed", "ready", "ended"}


class Requests:
    """Keeps, beyond this container, what was asked for last, what it replaced, and how it ended.

    `wanted.json` belongs to people; that the request before it is served in its place is written elsewhere, so that no
    laptop's request can be overwritten.
    """

    def __init__(self, state: Path) -> None:
        self._state = state
        kept = load(state / "request.json")
        # Whoever may use the head's Docker can write there.
        self._kept = kept if kept.keys() >= _KEYS else {}
        self._restarted: list[Any] | None = None  # when, until what was restarted is ready

    @property
    def served(self) -> Serve | None:
        """What shall run."""
        found: Serve | None = self._kept.get("back_to" if self._kept.get("failed") else "asked")
        return found

    def accept(self, request: Mapping[str, Any]) -> bool:
        """Take a request; whether it is another one than the last, though it may ask for the same."""
        number, asked = int(request.get("epoch", 0)), request["serve"]
        if self._kept and (number, asked) == (self._kept["number"], self._kept["asked"]):
            return False
        before = dict(self._kept)
        if before.get("asked") and not before["ended"]:
            pending = since(before.get("began"))
            after = "" if pending is None else f" after {pending:.0f} s"
            self._result("replaced", f"another request came{after}")
        # What was being loaded has shown nothing yet: what was ready before it stays the one to go back to.
        back_to = self.served if before.get("ready") else before.get("back_to")
        # After the cluster changed, what was ready before it may wait for hosts that have left.
        back_to = request.get("back_to", back_to)
        self._restarted = None
        if asked is None or (back_to and back_to["generation"] == asked["generation"]):
            back_to = None
        kept = {"number": number, "asked": asked, "by": str(request.get("by", "")), "began": mark()}
        self._kept = {**kept, "back_to": back_to, "failed": None, "ready": False, "ended": False}
        self._save()
        return bool(before)

    def ready(self, seconds: float | None) -> None:
        """What runs has answered; later starts of the same are not new."""
        if self._restarted is not None:
            away, self._restarted = since(self._restarted), None
            self._result("ready again", "", away, of=self.served)
        if self._kept.get("ready") or not self._kept:
            return
        back = bool(self._kept["failed"])
        away = since(self._kept.get("began"))
        self._kept |= {"ready": True, "ended": True, "away_seconds": away if back else None}
        self._save()
        self._result("back" if back else "ready", "", away if back else seconds)
        served = self.served
        if served:
            before = load(self._state / READY_FILE).get("requests")
            kept = [one for one in before if _other(one, served)] if isinstance(before, list) else []
            requests = [*kept, {**served, "ready_at": round(time.time(), 3)}][-MAX_READY:]
            write_whole(self._state / READY_FILE, {"v": 1, "requests": requests}, sync=True)

    def fail(self, failure: Mapping[str, Any] | None) -> bool:
        """What runs has failed for good; whether the one before it shall be served again."""
        kept = self._kept
        if not kept or kept["ready"] or (kept["ended"] and not kept["failed"]):
            return False
        what = failure or {"time": round(time.time(), 3), "summary": "", "lines": []}
        if kept["failed"]:
            if not kept.get("stuck"):
                kept["stuck"] = True
                self._save()
                self._result("not back", str(what["summary"]))
            return False
        self._result("failed", str(what["summary"]))
        kept["ended"] = True
        back = bool(kept["back_to"] and kept["asked"].get("rollback", True))
        if back:
            kept["failed"] = {**what, **{key: kept["asked"][key] for key in ("generation", "model", "name")}}
            log_line("node", f"serves {kept['back_to']['name']} again: {kept['asked']['name']} cannot be served")
        self._save()
        return back

    def restarted(self, why: str, *, final: bool = False) -> None:
        """What was served has ended by itself, and is started again; `final`: too often for another start."""
        if self._kept and self.served:
            self._restarted = None if final else mark()
            self._result("gave up" if final else "restarted", why, of=self.served)

    def status(self) -> dict[str, Any]:
        """Which request is served, in whose place, and what comes back if it fails."""
        kept = self._kept
        before = kept.get("back_to") or {}
        waits = before and not kept["ended"] and kept["asked"].get("rollback", True)
        return {
            "request": kept.get("number", 0),
            "instead_of": kept.get("failed"),
            "rollback_to": before["name"] if waits else None,
            "away_seconds": kept.get("away_seconds"),
        }

    def _save(self) -> None:
        write_whole(self._state / "request.json", self._kept, sync=True)

    def _result(self, result: str, what: str, seconds: float | None = None, of: Serve | None = None) -> None:
        """Append one line to the history; a full disk costs the line alone."""
        asked = of or self._kept["asked"]
        line = {
            "time": round(time.time(), 3),
            "request": self._kept["number"],
            "user": self._kept["by"],
            **{key: asked.get(key) for key in ("generation", "model", "name")},
            "result": result,
            "seconds": seconds,
            "summary": what[:500],
        }
        path = self._state / RESULTS_FILE
        try:
            if path.exists() and path.stat().st_size > MAX_RESULTS_BYTES:
                path.replace(path.with_name(f"{path.name}.1"))
            with path.open("a") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            log_line("node", f"cannot write {path}: {error}")


def _other(one: object, served: Serve) -> bool:
    return isinstance(one, dict) and one.get("generation") != served["generation"]
