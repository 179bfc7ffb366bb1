"""Named volumes: made, found and removed by label, so that nobody else's is taken for ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import docker.errors

from vllm_cluster.core.errors import HostError
from vllm_cluster.transport.base import Deadline

# Docker adds up the files of every volume.
LOOK_SECONDS = 120


class Volumes:
    """The volumes of one host's Docker; `call` opens a call of its API."""

    def __init__(self, host: str, call: Callable[..., AbstractContextManager[Any]]) -> None:
        self._host = host
        self._call = call

    def labelled(self, label: str) -> tuple[str, ...]:
        """The names of the volumes that have the label."""
        with self._call("list volumes") as api:
            return tuple(row["Name"] for row in api.volumes(filters={"label": [label]})["Volumes"] or ())

    def create(self, name: str, labels: Mapping[str, str]) -> None:
        """Create a volume; no error where it is there.

        Raises:
            HostError: it is there without these labels, so it is somebody else's.
        """
        has = self._created(name, labels)
        if not has and self.remove_blank([name]):
            has = self._created(name, labels)
        if any(has.get(key) != value for key, value in labels.items()):
            hint = f"on {self._host}: docker volume rm {name}, if nobody needs it; or give the cluster another name"
            raise HostError(self._host, f"the volume {name} is there and is not ours", hint=hint)

    def _created(self, name: str, labels: Mapping[str, str]) -> Mapping[str, str]:
        with self._call(f"create volume {name}") as api:
            # Docker answers with the one that is there, whatever labels were asked for.
            has: Mapping[str, str] | None = api.create_volume(name, labels=dict(labels)).get("Labels")
            # An engine that was restarted forgets to tell the labels here, and knows them all the same.
            return has or api.inspect_volume(name)["Labels"] or {}

    def remove(self, name: str) -> None:
        """Remove a volume; no error where it is gone."""
        with self._call(f"remove volume {name}") as api:
            try:
                api.remove_volume(name)
            except docker.errors.NotFound:
                return

    def remove_blank(self, names: Iterable[str]) -> int:
        """Remove those volumes of these names that have no label, option, byte or user; how many were removed.

        Docker makes a volume's folder first and notes its labels after: one that is killed in between leaves such a
        volume (4 of 24 kills of Docker 20.10 while it made volumes did), which would be taken for somebody else's.
        """
        wanted, removed = set(names), 0
        with self._call("list volumes") as api:
            rows = api.volumes(filters={"name": sorted(wanted)})["Volumes"] or ()
            suspects = {row["Name"] for row in rows if not (row.get("Labels") or row.get("Options"))} & wanted
        if not suspects:
            return 0
        with self._call("look into volumes", Deadline.after(LOOK_SECONDS)) as api:
            # The SDK's own df() would add up all images and containers too.
            found = api._result(api._get(api._url("/system/df"), params={"type": "volume"}), True)
            for row in found["Volumes"] or ():
                usage = row.get("UsageData") or {}
                if row["Name"] in suspects and (usage.get("Size"), usage.get("RefCount")) == (0, 0):
                    api.remove_volume(row["Name"])
                    removed += 1
        return removed
