"""The model's API seen from the head's own container: its state and its key are files there."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp

from vllm_cluster.batch.client import MAX_ERROR, OK, ApiAddress, ApiClient
from vllm_cluster.batch.problems import BatchProblem

POLL_SECONDS, PROBE_SECONDS = 2.0, 30.0
# A node program that has just started writes its request a moment after its first status.
STOPPED_SECONDS = 10.0
# What begins a key file that has several keys (remote/node/key_file.py); the first one is the one to use.
SEVERAL_KEYS = "#vcluster-keys\n"


class NodeApi:
    """The API on this host; `note` gets what is waited for, empty once it answers."""

    def __init__(
        self, client: ApiClient, state: Path, key_file: Path, wait: float, note: Callable[[str], None]
    ) -> None:
        self._client, self._state, self._key_file, self._wait, self._note = client, state, key_file, wait, note
        self.model, self.names, self._generation = "", frozenset[str](), ""

    async def open(self, models: set[str]) -> None:
        """Wait until a model answers; it has to be the one of the answers so far.

        Raises:
            BatchProblem: it is not, or does not come in time.
        """
        await self.recover("it is not ready")
        if other := sorted(models - self.names):
            raise BatchProblem(f"the answers so far are of {other[0]}, and {self.model} is served now")

    async def recover(self, why: str) -> None:
        """Wait until it answers again.

        Raises:
            BatchProblem: it was stopped or replaced, has failed, or is away for too long.
        """
        until, stopped, shown = time.monotonic() + self._wait, 0.0, ""
        while True:
            now = self._read()
            stopped = 0.0 if now else stopped or time.monotonic()
            if now is None and time.monotonic() - stopped > STOPPED_SECONDS:
                raise BatchProblem(f"{self.model or 'the model'} was stopped")
            if now and (end := self._ended(now)):
                raise BatchProblem(end)
            news = await self._try(now) if now else "no model is served"
            if news != shown:
                shown = news
                self._note(news)
            if not news:
                return
            if time.monotonic() > until:
                model = self.model or "the model"
                raise BatchProblem(f"{model} has not answered for {self._wait:.0f} s: {news or why}")
            await asyncio.sleep(POLL_SECONDS)

    def _read(self) -> Mapping[str, Any] | None:
        """What the node program reports to be served."""
        try:
            found = json.loads((self._state / "status.json").read_text()).get("serve")
        except (OSError, ValueError, AttributeError):
            return None
        return found if isinstance(found, dict) else None

    def _ended(self, now: Mapping[str, Any]) -> str | None:
        if self._generation and now["generation"] != self._generation:
            return f"{self.model} was replaced by {now['name']} ({now['phase']})"
        if now["phase"] == "failed":
            why = now.get("first_failure") or now.get("failure") or {}
            return f"{now['name']} failed: {why.get('summary') or now.get('detail')}"
        return None

    async def _try(self, now: Mapping[str, Any]) -> str:
        """Try whether it answers; what is waited for, empty where it does."""
        if now["phase"] != "ready":
            detail = now.get("detail")
            return f"{now['phase']}: {detail}" if detail else str(now["phase"])
        self.model, self._generation = str(now["name"]), str(now["generation"])
        self._client.address = ApiAddress(str(now["host"]), int(now["port"]), self._key())
        try:
            status, raw = await self._client.get("/v1/models", MAX_ERROR, PROBE_SECONDS)
            if status != OK:
                return f"HTTP {status}"
            self.names = frozenset(row["id"] for row in json.loads(raw)["data"])
        except (OSError, asyncio.TimeoutError, aiohttp.ClientError, ValueError, LookupError, TypeError) as error:
            return str(error) or type(error).__name__
        return ""

    def _key(self) -> str:
        try:
            text = self._key_file.read_text()
        except OSError:
            return ""
        # While it is replaced it may hold its mark alone.
        return next(iter(text.removeprefix(SEVERAL_KEYS).split()), "")
