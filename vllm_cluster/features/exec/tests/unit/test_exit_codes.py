"""The exit code of a command elsewhere, which becomes the program's own."""

from __future__ import annotations

from typing import Any

import pytest

from vllm_cluster.kernel.docker.parse import read_exec
from vllm_cluster.kernel.terminal.edge import run_to_exit_code
from vllm_cluster.wire.reading import RefusedDocument


# fault: kernel/facts/docker_objects.py: exit_code: Annotated[int, between(0, 255)] → exit_code: int
@pytest.mark.parametrize("code", [256, -1, 1 << 32])
def test_a_code_that_no_command_has_is_refused(code: int) -> None:
    """Of `exec --all` it hid the failure of another host: the largest was taken, of which a shell gets 8 bits."""
    assert read_exec({"Running": False, "ExitCode": 255}).exit_code == 255
    with pytest.raises(RefusedDocument):
        read_exec({"Running": False, "ExitCode": code})


# fault: kernel/terminal/edge.py: isinstance(code, int) and 0 <= code <= 255 → isinstance(code, int)
@pytest.mark.parametrize(("code", "ends"), [(None, 0), (0, 0), (255, 255), (256, 1), (-1, 1), (512, 1), ("why", 1)])
def test_no_failure_ends_as_a_success(code: Any, ends: int) -> None:
    def program() -> None:
        raise SystemExit(code)

    assert run_to_exit_code(program) == ends
