"""A real Prometheus with the files that `vcluster dashboard --prometheus` wrote."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.ports import free_port
from tests.support.waiting import until

SOON = "1s"


def program(name: str) -> str:
    """A program of Prometheus on this machine.

    Raises:
        AssertionError: it is not there.
    """
    path = shutil.which(name)
    assert path, f"no {name}: run scripts/setup-viewers.sh"
    return path


def accepted(*argv: str | Path) -> None:
    """Run promtool, which must have no objection."""
    done = subprocess.run([program("promtool"), *argv], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@dataclass(frozen=True)
class Prometheus:
    """One that runs."""

    url: str

    def ask(self, path: str, **values: str) -> Any:
        """What its API answers.

        Raises:
            OSError: it does not.
        """
        with urllib.request.urlopen(f"{self.url}/{path}?{urllib.parse.urlencode(values)}", timeout=60) as answer:
            return json.load(answer)["data"]

    def series(self, expression: str) -> list[dict[str, Any]]:
        """The series of an expression, now."""
        found: list[dict[str, Any]] = self.ask("api/v1/query", query=expression)["result"]
        return found

    def ready(self) -> bool:
        """Whether it answers."""
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=60):
                return True
        except OSError:
            return False


@contextmanager
def running(folder: Path) -> Iterator[Prometheus]:
    """Start it with the files of a folder, which it scrapes and judges each second."""
    config = folder / "prometheus.yml"
    text = config.read_text()
    assert text.count("_interval: 15s") == 2
    config.write_text(text.replace("_interval: 15s", f"_interval: {SOON}"))
    at = f"127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory() as data:
        argv = [program("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={data}"]
        process = subprocess.Popen(
            [*argv, f"--web.listen-address={at}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            found = Prometheus(f"http://{at}")
            until(found.ready)
            yield found
        finally:
            process.terminate()
            process.wait(60)
