"""The key that the front shows to replicas: every node makes it of the cluster's token; clients do not have it."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path


def replica_key(token: Path) -> str:
    """The key, of the cluster's token: whoever has it cannot make the token of it."""
    return hashlib.sha256(b"replica " + token.read_bytes().strip()).hexdigest()


def write_replica_key(token: Path) -> str:
    """Write the key where only this container's programs read it, as vLLM reads keys from a file; return its path."""
    # Not in the state's volume, which outlives the container and its token.
    path = Path(tempfile.mkdtemp(prefix="vcluster-")) / "replica-key"
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(replica_key(token))
    return str(path)
