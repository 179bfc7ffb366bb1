"""What a pull reads of a cache that another user of the host may write too, such as one on NFS."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.spread import folder_plan, planned
from vllm_cluster.kernel.spread.plan import PullError
from vllm_cluster.kernel.spread.store import Store

pytestmark = pytest.mark.timeout(10)
CONTENT = b"weights" * 100
FILES = (planned("model.safetensors", CONTENT), planned("empty", b""))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    # In this thread: no time limit ends another one.
    monkeypatch.setattr(ThreadPoolExecutor, "map", lambda _, look, *of: map(look, *of))
    made = Store(folder_plan(tmp_path / "cache", FILES))
    made.root.mkdir(parents=True)
    (made.root / "model.safetensors").write_bytes(CONTENT)
    (made.root / "empty").touch()
    return made


# fault: kernel/spread/store.py: return open_inside(self.root, str(path.relative_to(self.root)), self._cache) → return path.open("rb")
@pytest.mark.parametrize("name", ["model.safetensors", ".model.safetensors.vcluster-partial"])
def test_no_other_host_gets_what_a_link_leads_to(store: Store, tmp_path: Path, name: str) -> None:
    """The token of the hub lies in the container of the pull, and what other hosts get all of their users may read."""
    store.prove()
    (tmp_path / "token").write_text("hf_secret")
    (store.root / "model.safetensors").unlink()
    (store.root / name).symlink_to(tmp_path / "token")
    with pytest.raises(OSError, match="not a file of the folder"):
        store.open(FILES[0])


# fault: kernel/spread/store.py: return open_inside(self.root, str(path.relative_to(self.root)), self._cache) → return path.open("rb")
# fault: kernel/spread/store.py: and error.errno != errno.ELOOP → and error
@pytest.mark.parametrize("how", ["pipe", "device"])
def test_a_pipe_in_the_place_of_a_file_is_replaced(store: Store, how: str) -> None:
    """A pipe was waited for, a device hashed without end: no time limit is over the phase of that."""
    (store.root / "empty").unlink()
    if how == "pipe":
        os.mkfifo(store.root / "empty")
    else:
        (store.root / "empty").symlink_to("/dev/zero")
    store.prove()
    assert not store.complete(FILES[1]) and store.complete(FILES[0])
    store.append(FILES[1]).close()
    store.finish(FILES[1])
    assert (store.root / "empty").is_file()


# fault: kernel/spread/store.py: beginning(self._manifest_path(), MAX_PLAN + 1) → self._manifest_path().read_bytes()
def test_a_pipe_vouches_for_nothing(store: Store) -> None:
    (store.root / ".vcluster").mkdir()
    os.mkfifo(store.root / ".vcluster" / "manifest.json")
    store.prove()
    assert all(map(store.complete, FILES))


# fault: kernel/spread/no_links.py: os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC → os.O_NOFOLLOW | os.O_CLOEXEC
def test_a_pipe_in_the_place_of_a_partial_file_is_not_waited_for(store: Store) -> None:
    (store.root / "empty").unlink()
    os.mkfifo(store.partial(FILES[1]))
    with suppress(OSError, PullError):
        store.finish(FILES[1])
