"""Keeps the folder that a process of a job is started in out of its imports: the job was submitted there.

Python imports it by this name as each process begins, and none of the site's own: that one is run from here. From
Python 3.11 on, PYTHONSAFEPATH would do the same.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from types import ModuleType


def start_folders() -> frozenset[str]:
    """How Python adds that folder to `sys.path`: as nothing with -c, whole with -m; not what PYTHONPATH has there."""
    try:
        here = os.getcwd()  # noqa: PTH109 - pathlib would cost each process some milliseconds
    except OSError:  # it is gone
        here = ""
    return frozenset({"", here} - {*sys.path})


class WithoutStart(PathFinder):
    """Finds modules without the folder of the start, which Python adds to `sys.path` after this file."""

    start = start_folders()

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module. `sys.path` itself is changed, as the entry points of plugins are looked for there, too."""
        if not cls.start.isdisjoint(sys.path):
            sys.path[:] = [one for one in sys.path if one not in cls.start]
        return super().find_spec(fullname, path, target)


if __name__ == "sitecustomize":
    sys.meta_path[:] = [WithoutStart if one is PathFinder else one for one in sys.meta_path]
    others = [one for one in sys.path if one != __file__.rpartition("/")[0]]
    if (of_site := PathFinder.find_spec(__name__, others)) and of_site.loader:
        of_site.loader.exec_module(module_from_spec(of_site))
