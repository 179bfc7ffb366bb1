"""Times at the ends of the calendar, as a host may write them: a time everywhere on earth, or refused."""

from __future__ import annotations

import json
import time
from datetime import datetime

import pytest

from vllm_cluster.kernel.docker.parse import container
from vllm_cluster.wire.history import AuditLine
from vllm_cluster.wire.reading import RefusedDocument, read

TIMES = ("0001-01-01", "0001-01-01T00:00:00", "9999-12-31T23:59:59", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z")
ZONES = ("UTC", "Pacific/Kiritimati", "Etc/GMT+12")


@pytest.fixture(params=ZONES)
def _zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    request.addfinalizer(time.tzset)
    request.addfinalizer(monkeypatch.undo)


# fault: kernel/facts/docker_objects.py: datetime.fromisoformat(text).timestamp() → datetime.fromisoformat(text)
@pytest.mark.usefixtures("_zone")
@pytest.mark.parametrize("at", TIMES)
def test_a_container_s_start_is_a_time_or_refused(at: str) -> None:
    try:
        found = container({"Id": "1", "State": {"Status": "running", "StartedAt": at}})
    except RefusedDocument as refused:
        assert "date" in str(refused)
    else:
        assert isinstance(found.started, float)


# fault: wire/history.py: between(0.0, 253_370_764_800.0) → between(0.0, 253_402_300_799.0)
@pytest.mark.usefixtures("_zone")
@pytest.mark.parametrize("at", [0.0, 253_370_764_800.0, 253_402_300_799.0])
def test_a_line_of_the_history_has_a_time_of_every_calendar(at: float) -> None:
    line = {"time": at, "user": "me", "verb": "up", "operations": []}
    try:
        found = read(AuditLine, json.dumps(line).encode(), "gpu1")
    except RefusedDocument:
        assert at > 253_370_764_800.0
    else:
        assert datetime.fromtimestamp(found.time).astimezone().isoformat()
