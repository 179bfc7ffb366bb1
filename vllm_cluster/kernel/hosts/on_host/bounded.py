"""Runs a Python program until it ends, its input ends or its seconds are over, whichever comes first.

Arguments: the seconds, the program's name, its source, the source of each module that it imports by name (JSON), its
own arguments. Needs Python 3.8.
"""

from __future__ import annotations

import json
import os
import select
import sys
import threading
import types

# As `timeout` and a hang-up end a program.
LATE, HUNG_UP = 124, 129


def watch(seconds: float) -> None:
    """End this process with its input, for `docker exec` ends nothing that it started, or when its time is over."""
    ends = select.poll()
    # It hangs up once the other end is closed, also while the program has not read all of it.
    ends.register(0, select.POLLRDHUP)
    os._exit(HUNG_UP if ends.poll(seconds * 1000) else LATE)


if __name__ == "__main__":
    threading.Thread(target=watch, args=(float(sys.argv[1]),), daemon=True).start()
    name, source, modules = sys.argv[2:5]
    sys.argv[:] = [name, *sys.argv[5:]]
    for module, text in json.loads(modules).items():
        sys.modules[module] = made = types.ModuleType(module)
        exec(compile(text, module, "exec", dont_inherit=True), made.__dict__)  # noqa: S102 - as below
    exec(compile(source, name, "exec", dont_inherit=True))  # noqa: S102 - it is vcluster's own
