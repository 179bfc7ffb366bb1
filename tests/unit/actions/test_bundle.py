"""Names come from hosts, and nothing may lead out of the folder where a bundle is unpacked."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from vllm_cluster.actions import bundle
from vllm_cluster.errors import UsageError


@pytest.mark.parametrize(
    ("name", "packed"),
    [
        ("gpu1/serve.log", "gpu1/serve.log"),
        ("gpu1/../../etc/cron.d/x", "gpu1/etc/cron.d/x"),
        ("/etc/passwd", "etc/passwd"),
        ("gpu1/ray/\x1b[2Jx\n.err", "gpu1/ray/[2Jx.err"),
    ],
)
def test_a_name_stays_in_its_folder(tmp_path: Path, name: str, packed: str) -> None:
    path = tmp_path / "x.tar.gz"
    bundle._write(path, {name: b"content"})
    with tarfile.open(path) as tar:
        assert tar.getnames() == [f"vcluster-bundle/{packed}"]


def test_a_path_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        bundle._write(tmp_path / "none" / "x.tar.gz", {})
