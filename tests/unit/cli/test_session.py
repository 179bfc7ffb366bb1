"""How a call of the program is interrupted, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Each raises Ctrl-C at a moment of its own, in the only thread that hears of it, and then would wait for ever.
COURSES = {
    "at work": "ctrl_c()",
    "in a weak reference's callback": "it = It(); heard = weakref.ref(it, lambda _: ctrl_c()); del it",
    "in a finalizer": "It.__del__ = lambda _: ctrl_c(); It()",
}
PROGRAM = """
import signal, weakref
from vllm_cluster.cli.session import Session

class It:
    pass

def ctrl_c():
    signal.raise_signal(signal.SIGINT)

def action(session):
    {course}
    signal.pause()

Session(None, as_json=False, changes=True).run(action)
"""


@pytest.mark.parametrize("course", COURSES)
def test_ctrl_c_is_heard_wherever_it_comes(course: str) -> None:
    """Python goes on after an exception in a callback or a finalizer as if nothing had been raised."""
    program = PROGRAM.format(course=COURSES[course])
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 130, done.stderr
    assert done.stderr.startswith("Interrupted. Completed steps are kept.\nfix: vcluster")
