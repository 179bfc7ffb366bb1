"""Gives a folder and all in it to a user; the arguments are the folder, the user's number and the group's."""

from __future__ import annotations

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    folder, user, group = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    for path, folders, files in os.walk(folder):
        for name in (path, *(str(Path(path, entry)) for entry in folders + files)):
            os.lchown(name, user, group)
