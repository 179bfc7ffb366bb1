"""What a user is shown where Docker is missing, stopped or closed to them, and how pip's refusal is put."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from docker.errors import DockerException

from vcluster_sandbox import local_docker, up
from vcluster_sandbox.wheels import _failed
from vllm_cluster.kernel.errors import PreflightFailed, UsageError


def silent(_: str) -> None:
    """No program listens."""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the SDK leaves its socket open
def test_a_missing_docker_is_a_preflight_failure_with_a_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    with pytest.raises(PreflightFailed, match="no Docker engine answers at unix") as stopped:
        up(hosts=2, gpus=2, folder=tmp_path / "sandbox", report=silent)
    assert stopped.value.hint
    assert "Start it" in stopped.value.hint
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(PreflightFailed, match="not installed") as missing:
        up(hosts=2, gpus=2, folder=tmp_path / "sandbox", report=silent)
    assert missing.value.exit_code == 3
    assert not (tmp_path / "sandbox").exists()
    del stopped, missing
    gc.collect()


# fault: vcluster_sandbox/local_docker.py: if "Permission" in causes: → if "permission refused" in causes:
def test_a_closed_socket_has_its_own_error() -> None:
    refused = DockerException("Error while fetching server API version: PermissionError(13, 'Permission denied')")
    assert "group docker" in (local_docker._no_engine(refused).hint or "")


# fault: vcluster_sandbox/lifecycle.py: if not 1 <= hosts <= _MAX_HOSTS or not 1 <= gpus <= _MAX_GPUS: → if hosts < 0:
@pytest.mark.parametrize(("hosts", "gpus"), [(0, 2), (2, 0), (33, 2), (2, 17)])
def test_impossible_sizes_are_refused_before_docker_is_asked(hosts: int, gpus: int, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"not {hosts} of {gpus}"):
        up(hosts=hosts, gpus=gpus, folder=tmp_path / "sandbox", report=silent)


# fault: vcluster_sandbox/wheels.py: found for torch== → for torch
def test_a_missing_torch_reports_where_to_look() -> None:
    error = _failed("ERROR: No matching distribution found for torch==2.13.0+cpu")
    assert "PIP_FIND_LINKS" in (error.hint or "")
    assert "PIP_EXTRA_INDEX_URL" in (error.hint or "")
    assert "connection reset" in str(_failed("ERROR: connection reset"))
