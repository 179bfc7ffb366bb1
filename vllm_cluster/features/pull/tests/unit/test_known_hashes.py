"""A folder that was pulled before is read again only where a file of it changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vllm_cluster.features.pull.known_hashes import TICK_NANOSECONDS, KnownHashes, settled, stamp
from vllm_cluster.features.pull.local_folder import hashed, listed

LATER = TICK_NANOSECONDS / 1e9 + 1


def model_in(folder: Path) -> Path:
    """A folder with a config and weights."""
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def read_in(cache: Path, folder: Path, *, later: float = LATER) -> tuple[dict[str, str], int]:
    """The hashes of a folder by name, and how many bytes were read for them; so long after its files were written."""
    counted: list[int] = []
    newest = max(path.stat().st_ctime for path in folder.iterdir())
    clock: Any = SimpleNamespace(time=lambda: newest + later)
    known = KnownHashes(cache, folder)
    files = hashed(folder, listed(folder, ""), counted.append, known, clock)
    known.save()
    return {file.path: file.blob for file in files}, sum(counted)


def replaced(path: Path) -> None:
    new = path.with_name("new")
    new.write_bytes(b"other w")
    new.replace(path)


def rewritten(path: Path) -> None:
    path.write_bytes(b"other w")


def grown(path: Path) -> None:
    path.write_bytes(b"weights and more")


# fault: features/pull/known_hashes.py: self._before = read( → read(
def test_a_folder_that_did_not_change_is_not_read_again(tmp_path: Path) -> None:
    folder = model_in(tmp_path / "mine")
    first, read = read_in(tmp_path / "cache", folder)
    assert read == len(b"{}weights")
    assert read_in(tmp_path / "cache", folder) == (first, 0)
    (kept,) = (tmp_path / "cache" / "hashes").iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600


# fault: features/pull/known_hashes.py: found.st_mtime_ns, found.st_ctime_ns) → found.st_mtime_ns)
@pytest.mark.parametrize("change", [replaced, rewritten, grown])
def test_a_file_that_changed_is_read_again_also_with_its_size_and_time(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    """As a copy with `cp -p`, or a program that sets the time back."""
    folder = model_in(tmp_path / "mine")
    first, _ = read_in(tmp_path / "cache", folder)
    weights = folder / "model.safetensors"
    before = weights.stat()
    change(weights)
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    second, read = read_in(tmp_path / "cache", folder)
    assert read == weights.stat().st_size
    assert second["model.safetensors"] != first["model.safetensors"]
    assert second["config.json"] == first["config.json"]


# fault: features/pull/known_hashes.py: now * 1e9 - TICK_NANOSECONDS → now * 1e9
def test_a_file_that_may_change_within_one_tick_of_its_clock_is_not_kept(tmp_path: Path) -> None:
    folder = model_in(tmp_path / "mine")
    read_in(tmp_path / "cache", folder, later=1.0)
    assert read_in(tmp_path / "cache", folder)[1] == len(b"{}weights")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"v": 2}', b'{"v": 1, "hashes": {"1:2:3": "no hash"}}'])
def test_a_file_that_cannot_be_read_costs_only_time(tmp_path: Path, content: bytes) -> None:
    folder = model_in(tmp_path / "mine")
    first, _ = read_in(tmp_path / "cache", folder)
    (kept,) = (tmp_path / "cache" / "hashes").iterdir()
    kept.write_bytes(content)
    assert read_in(tmp_path / "cache", folder) == (first, len(b"{}weights"))
    assert read_in(tmp_path / "cache", folder) == (first, 0)


def test_a_cache_that_cannot_be_written_costs_only_time(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file in its place")
    assert read_in(tmp_path / "cache", model_in(tmp_path / "mine"))[1] == len(b"{}weights")


def test_a_file_that_changes_while_it_is_read_is_not_kept(tmp_path: Path) -> None:
    folder = model_in(tmp_path / "mine")
    weights = folder / "model.safetensors"
    known = KnownHashes(tmp_path / "cache", folder)
    before = weights.stat()
    grown(weights)
    known.keep(settled(before, weights.stat(), before.st_ctime + LATER), "0" * 64)
    known.save()
    assert KnownHashes(tmp_path / "cache", folder).find(stamp(before)) is None
