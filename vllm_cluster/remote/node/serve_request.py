"""The request to serve, as it lies in the state volume."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_cluster.remote.node.files import load, sync_file, write_whole
from vllm_cluster.remote.node.process import log_line

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
