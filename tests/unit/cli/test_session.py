"""How a call of the program is interrupted, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.terminal import Terminal
from vllm_cluster.kernel.errors import Aborted, Interrupted, VclusterError
from vllm_cluster.kernel.events import Event
from vllm_cluster.kernel.terminal.session import Session

# Each raises Ctrl-C at a moment of its own, in the only thread that gets it, and then would wait without end.
COURSES = {
    "at work": "ctrl_c()",
    "in a weak reference's callback": "it = It(); heard = weakref.ref(it, lambda _: ctrl_c()); del it",
    "in a finalizer": "It.__del__ = lambda _: ctrl_c(); It()",
    # What Event.wait() leaves behind where it is interrupted while it takes its lock again.
    "in Python's own locking": "lock = threading.Lock()\n    with lock:\n        lock.release(); ctrl_c()",
}
PROGRAM = """
import signal, threading, weakref
from vllm_cluster.kernel.terminal.session import Session

class It:
    pass

def ctrl_c():
    signal.raise_signal(signal.SIGINT)

with Session(None, as_json=False, changes=True):
    {course}
    signal.pause()
"""


@pytest.mark.parametrize("course", COURSES)
def test_ctrl_c_is_handled_at_any_moment(course: str) -> None:
    """Python continues after an exception in a callback or a finalizer as if nothing had been raised."""
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
    assert done.stderr.startswith("Interrupted. Completed steps are kept.\ncontinue: vcluster")


def ended(action: Callable[[Session], object], capsys: pytest.CaptureFixture[str], *, after_plan: bool = False) -> str:
    """What a verb prints that ends so."""
    with pytest.raises(SystemExit), Session(None, as_json=False, changes=True, after_plan=after_plan) as session:
        action(session)
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("kinds", "after_plan", "said"),
    [
        (["phase", "note"], True, "Nothing was changed."),
        (["phase", "plan", "start"], True, "Completed steps are kept."),
        (["phase"], False, "Completed steps are kept."),
    ],
)
def test_ctrl_c_claims_no_steps_before_the_plan_begins(
    kinds: list[Any], after_plan: bool, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def action(session: Session) -> None:
        for kind in kinds:
            session.emit(Event(kind, ""))
        raise KeyboardInterrupt

    assert ended(action, capsys, after_plan=after_plan).startswith(f"Interrupted. {said}\n")


def test_what_a_person_decided_needs_no_fix_and_no_log(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["vcluster", "serve", "org/model"])

    def refuse(error: VclusterError, *, kept: bool = True) -> Callable[[Session], object]:
        def action(session: Session) -> None:
            session._log = tmp_path / "log"
            if kept:
                session._log.touch()
            raise error

        return action

    assert ended(refuse(Aborted()), capsys) == "Aborted. Nothing was changed.\n"
    # A log that twenty later runs have removed is not listed.
    (tmp_path / "log").unlink()
    assert "log: " not in ended(refuse(VclusterError("it failed"), kept=False), capsys)
    assert "log: " in ended(refuse(VclusterError("it failed")), capsys)
    left = Interrupted("Interrupted.", hint="vcluster status\nvcluster stop", again=())
    assert ended(refuse(left), capsys).splitlines() == [
        "Interrupted.",
        "follow: vcluster serve org/model",
        "look: vcluster status",
        "stop: vcluster stop",
    ]


QUESTION = """
import sys
from vllm_cluster.kernel.terminal.session import Session

sys.stderr.write("ready\\n")
while not select.select([sys.stdin], [], [], 60)[0]:
    pass
print("answered", Session(None, as_json=False).confirm(False)("Stop org/model?"))
"""


# fault: kernel/terminal/session.py: termios.tcflush(sys.stdin, termios.TCIFLUSH) → pass
def test_what_is_typed_before_a_question_does_not_answer_it() -> None:
    with Terminal([sys.executable, "-c", f"import select{QUESTION}"]) as terminal:
        terminal.until("ready")
        terminal.press("y\n")
        terminal.until("Stop org/model? [y/N] ")
        terminal.press("n\n")
        assert terminal.end() == 0
        assert "answered False" in terminal.shown
