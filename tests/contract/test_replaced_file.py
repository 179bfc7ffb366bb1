"""A file that a program replaces while Docker reads it: always whole, as it was before or after."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import docker_api
from tests.support.docker_api import Docker

READS = 100
# Seconds.
PACE = 0.002
SHORT = json.dumps({"phase": "download", "files": ["a" * 600]}).encode()
LONG = json.dumps({"phase": "download", "files": ["b" * 900, "c" * 900]}).encode()


@pytest.fixture
def docker() -> Iterator[Docker]:
    """This machine's Docker."""
    docker = docker_api.real()
    yield docker
    docker.clean()
    docker.remove_image()
    docker.close()


@pytest.mark.slow
def test_a_document_that_is_replaced_all_the_time_is_read_whole(docker: Docker, tmp_path: Path) -> None:
    place, enough = tmp_path / "status.json", threading.Event()

    def replace() -> None:
        # Some hundred times as often as any node does.
        for content in itertools.cycle((SHORT, LONG)):
            (tmp_path / "new").write_bytes(content)
            (tmp_path / "new").replace(place)
            if enough.wait(PACE):
                return

    place.write_bytes(SHORT)
    made = docker.create("one", "exit 0", HostConfig={"Binds": [f"{tmp_path}:/kept"]})
    writer = threading.Thread(target=replace)
    writer.start()
    try:
        read = [docker.client.read_file(made, "/kept/status.json") for _ in range(READS)]
    finally:
        enough.set()
        writer.join()
    assert set(read) == {SHORT, LONG}
