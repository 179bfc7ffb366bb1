"""Appends a line to a file of the node: the first message holds both."""

from __future__ import annotations

import json
import sys
from pathlib import Path

if __name__ == "__main__":
    order = json.loads(sys.stdin.readline())
    # One write to the end: the lines of two who append at once do not mix.
    with Path(order["path"]).open("ab", buffering=0) as file:
        file.write(order["line"].encode() + b"\n")
    print(json.dumps({"appended": True}))
