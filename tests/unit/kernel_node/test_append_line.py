"""The program that appends a line to the history: the file has a bound."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from vllm_cluster.kernel.node.on_host import append_line


def append(path: Path, line: str) -> None:
    """Run the program."""
    order = json.dumps({"path": str(path), "line": line}) + "\n"
    subprocess.run([sys.executable, append_line.__file__], input=order, text=True, check=True, capture_output=True)


# fault: kernel/node/on_host/append_line.py: st_size > MAX_BYTES → st_size < 0
def test_a_full_file_is_kept_aside_once(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    append(path, "first")
    append(path, "second")
    assert path.read_text() == "first\nsecond\n"
    path.write_bytes(b"x" * (append_line.MAX_BYTES + 1))
    append(path, "third")
    assert path.read_text() == "third\n"
    path.write_bytes(b"y" * (append_line.MAX_BYTES + 1))
    append(path, "fourth")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["audit.jsonl", "audit.jsonl.1"]
    assert path.with_name("audit.jsonl.1").read_bytes()[:1] == b"y"
