"""The sandbox's hosts, and the program as its users run it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.support.paths import VCLUSTER
from vcluster_sandbox import names


@dataclass(frozen=True)
class Run:
    """What one call of the program left behind."""

    code: int
    out: str
    err: str

    def ok(self) -> Run:
        """Itself, when it succeeded."""
        assert self.code == 0, f"exit {self.code}\n{self.out}\n{self.err}"
        return self

    def json(self) -> Any:
        """Standard output as one document."""
        return json.loads(self.out)

    def events(self) -> list[dict[str, Any]]:
        """Standard output as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]

    def event(self, kind: str) -> dict[str, Any]:
        """The one event of a kind."""
        (found,) = [event for event in self.events() if event["event"] == kind]
        return found


@dataclass(frozen=True)
class Sandbox:
    """The hosts, and the inventory that names them."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def inventory(self) -> Path:
        """The one that its environment names, else the one that the sandbox wrote."""
        return Path(self.environment.get("VCLUSTER_INVENTORY", self.folder / "inventory.yaml"))

    def vcluster(self, *argv: str, inventory: Path | None = None, seconds: float = 400, **environment: str) -> Run:
        """Run the program to its end."""
        where = {"VCLUSTER_INVENTORY": str(inventory or self.inventory)}
        done = subprocess.run(
            [VCLUSTER, *argv],
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **self.environment, **where, **environment},
        )
        words = argv[: argv.index("--")] if "--" in argv else argv
        if "--json" in words:
            # pytest loads this module at every start, and the schemas take a second.
            from tests.support.json_schemas import validate

            validate(words, done.stdout)
        return Run(done.returncode, done.stdout, done.stderr)

    def start(self, *argv: str, inventory: Path | None = None) -> subprocess.Popen[str]:
        """Start the program and leave it running; its standard output is a pipe."""
        where = {"VCLUSTER_INVENTORY": str(inventory or self.inventory), "PYTHONUNBUFFERED": "1"}
        return subprocess.Popen(
            [VCLUSTER, *argv],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **self.environment, **where},
        )

    def on(self, host: str, *argv: str, root: bool = False) -> str:
        """Run a command on a host: over ssh as the inventory's user, or as root from this machine's Docker."""
        if root:
            command = ["docker", "exec", self.container(host), *argv]
        else:
            command = ["ssh", "-F", str(self.folder / "ssh_config"), host, shlex.join(argv)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, f"{host}: {shlex.join(argv)}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def by(self, inventory: Path) -> Sandbox:
        """The same hosts as another inventory names them."""
        return replace(self, environment={**self.environment, "VCLUSTER_INVENTORY": str(inventory)})

    def docker(self, host: str, *argv: str) -> str:
        """Run docker on a host."""
        return self.on(host, "docker", *argv)

    def container(self, host: str) -> str:
        """The container that is a host."""
        return names.Sandbox(self.folder).container(host)

    def nodes(self) -> dict[str, str]:
        """The ids of the nodes' containers by host; hosts without one are left out."""
        ids = {host: self.docker(host, "ps", "-aq", "--filter", "name=^vcluster-") for host in ("gpu1", "gpu2")}
        return {host: found.strip() for host, found in ids.items() if found.strip()}

    def rewrite(self, path: Path, *, replace: Sequence[tuple[str, str]] = (), add: str = "") -> Path:
        """Its inventory with words changed, as another file beside it."""
        text = self.inventory.read_text()
        for old, new in replace:
            assert old in text, f"{old!r} is not in the inventory"
            text = text.replace(old, new)
        target = self.folder / path
        target.write_text(text + add)
        return target
