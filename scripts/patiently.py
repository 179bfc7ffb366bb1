"""Run a command that is silent while it works, and write now and then how long: patiently.py SECONDS COMMAND…

SECONDS is how long it takes on two cores with nothing else to do.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence

EVERY_SECONDS = 8.0


def run(command: Sequence[str], usual: float, write: Callable[[str], None], every: float = EVERY_SECONDS) -> int:
    """Run it to its end, and return its exit code."""
    began = time.monotonic()
    with subprocess.Popen(command) as running:
        while True:
            try:
                return running.wait(every)
            except subprocess.TimeoutExpired:
                took = time.monotonic() - began
                late = f"longer than the usual {usual:.0f} s"
                write(f"  {took:.0f} s, {late if took >= usual else f'about {usual - took:.0f} s left'}")


if __name__ == "__main__":
    sys.exit(run(sys.argv[2:], float(sys.argv[1]), lambda line: print(line, flush=True)))
