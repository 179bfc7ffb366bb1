"""The program within the test's own process: one of its own takes 0.2 s of a processor to load what is there here."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from vllm_cluster.cli.main import run as run_program
from vllm_cluster.cli.verbs import VERBS
from vllm_cluster.kernel.terminal import edge
from vllm_cluster.kernel.terminal.called import NAMES, set_called


@dataclass(frozen=True)
class Finished:
    """How it ended, and what it wrote."""

    returncode: int
    stdout: str
    stderr: str


def run(*argv: str, cwd: Path, called: str = NAMES[0], **environment: str) -> Finished:
    """The program, called by a name, with these words in this folder, to its end."""
    with ExitStack() as stack:
        out = stack.enter_context(redirect_stdout(io.StringIO()))
        err = stack.enter_context(redirect_stderr(io.StringIO()))
        stack.enter_context(chdir(cwd))
        stack.enter_context(patch.object(sys, "argv", [called, *argv]))
        stack.enter_context(patch.dict(os.environ, environment))
        stack.enter_context(_signals_kept())
        name = set_called(called, VERBS)
        stack.callback(set_called, NAMES[0], VERBS)
        code = edge.run_to_exit_code(lambda: run_program(name))
    return Finished(code, out.getvalue(), err.getvalue())


@contextmanager
def _signals_kept() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
