"""Named volumes: made, found and removed by label, so that no other owner's volume is used."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress

from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.docker import parse
from vllm_cluster.kernel.docker.calls import CALL_SECONDS, Call, Calls, NotFound, path
from vllm_cluster.kernel.docker.one_by_one import OneByOne
from vllm_cluster.kernel.errors import HostError
from vllm_cluster.kernel.facts.docker_objects import DockerVolume
from vllm_cluster.kernel.plan.spec import HEAD_ADDRESS, ID
from vllm_cluster.kernel.shell_line import command_line

# Docker adds up the files of every volume.
LOOK_SECONDS = 120


class Volumes:
    """The volumes of one host's Docker."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def labelled(self, label: str) -> Mapping[str, Mapping[str, str]]:
        """The volumes that have the label: their labels by name."""
        return {row.name: row.labels for row in self._listed({"label": [label]})}

    def _listed(self, filters: Mapping[str, object]) -> tuple[DockerVolume, ...]:
        call = Call("list volumes", "GET", "/volumes", {"filters": json.dumps(filters)})
        return self._calls.ask(call, parse.volumes)

    def create(self, name: str, labels: Mapping[str, str]) -> None:
        """Create a volume; no error where it is there.

        Raises:
            HostError: it exists without these labels, so it has another owner.
        """
        has = self._created(name, labels)
        if not has and self.remove_unlabelled(name, name.__eq__):
            has = self._created(name, labels)
        # Earlier versions gave a volume no id; and the head may be another one since it was made.
        same = {key: value for key, value in labels.items() if key != HEAD_ADDRESS}
        if any(has.get(key, value if has and key == ID else None) != value for key, value in same.items()):
            remove = command_line("docker", "volume", "rm", name, on=self._calls.host)
            hint = f"{remove}, if it is not needed; or give the cluster another name"
            raise HostError(self._calls.host, f"volume {name} exists but does not belong to this cluster", hint=hint)

    def _created(self, name: str, labels: Mapping[str, str]) -> Mapping[str, str]:
        what = f"create volume {name}"
        body = {"Name": name, "Labels": dict(labels)}
        # Docker answers with the one that is there, even if other labels were asked for.
        has = self._calls.ask(Call(what, "POST", "/volumes/create", json=body), parse.read_volume).labels
        # A Docker that was restarted leaves out the labels here, and knows them all the same.
        return has or self._calls.ask(Call(what, "GET", path("volumes", name)), parse.read_volume).labels

    def remove(self, name: str, deadline: Deadline | None = None) -> None:
        """Remove a volume; no error where it is gone."""
        deadline = deadline.sooner(CALL_SECONDS) if deadline else None
        with suppress(NotFound):
            self._calls.do(Call(f"remove volume {name}", "DELETE", path("volumes", name)), deadline)

    def remove_unlabelled(self, part: str, wanted: Callable[[str], bool]) -> int:
        """Remove the volumes that have no label, option, byte or user, and a wanted name; how many were removed.

        `part` is what all wanted names contain.

        Docker makes a volume's folder first and notes its labels after: one that is killed in between leaves such a
        volume (4 of 24 kills of Docker 20.10 while it made volumes did), which would look like another owner's.
        """
        suspects = {
            row.name for row in self._listed({"name": [part]}) if not (row.labels or row.options) and wanted(row.name)
        }
        if not suspects:
            return 0
        # Not without `type`: Docker would add up all images and containers too.
        look = Call("look into volumes", "GET", "/system/df", {"type": "volume"})
        rows = self._calls.ask(look, parse.volumes, self._calls.after(LOOK_SECONDS))
        empty = [row.name for row in rows if row.name in suspects and (row.size_bytes, row.users) == (0, 0)]
        time = OneByOne(self._calls.host, "remove volumes", len(empty), self._calls.after)
        for name in empty:
            with time.one() as deadline:
                self.remove(name, deadline)
        return len(empty)
