"""Start-up files of login shells that spoil a command: one error has the reason, and a remedy that works."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.carriers import REMOTE, Client
from tests.support.login_shells import Connect, first_words, login_shell, refused, soon
from tests.support.sshd import Sshd
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.transport import Kind, ssh_master

pytestmark = pytest.mark.promise("P39")

GUARDS = {
    "bash": ("cat > /dev/null", "[[ $- == *i* ]] || return", "~/.bashrc"),
    "zsh": ("cat > /dev/null", "[[ -o interactive ]] || return", "~/.zshenv"),
    "fish": ("cat > /dev/null", "status is-interactive; or return", "~/.config/fish/config.fish"),
    "tcsh": ("cat > /dev/null", "if (! $?prompt) exit", "~/.tcshrc"),
    "bsd-csh": ("cat > /dev/null", "if (! $?prompt) exit", "~/.cshrc"),
}


@pytest.mark.parametrize("shell", GUARDS)
def test_a_start_up_file_that_takes_the_input_is_reported_and_its_remedy_works(
    *, kind: Kind, shell: str, client: Client, connect: Connect, tmp_path: Path, started: list[Sshd]
) -> None:
    eats, guard, file = GUARDS[shell]
    started.append(login_shell(tmp_path / "bad", client.key, shell, eats))
    client.add("bad", started[-1])
    error = refused(connect, client.target("bad"), kind, first_words)
    assert f"/usr/bin/{shell} reads the input of a command" in error.message
    assert error.hint and guard in error.hint and file in error.hint
    started.append(login_shell(tmp_path / "good", client.key, shell, f"{guard}\n{eats}"))
    client.add("good", started[-1])
    assert connect(client.target("good"), kind).run(["echo", "x"], soon()).stdout == b"x\n"


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_a_start_up_file_that_does_not_end_is_reported(
    *, kind: Kind, shell: str, client: Client, connect: Connect, tmp_path: Path, started: list[Sshd],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(ssh_master, "STEP_SECONDS", 3.0)
    started.append(login_shell(tmp_path / "bad", client.key, shell, "sleep 60"))
    client.add("bad", started[-1])
    error = refused(connect, client.target("bad"), kind, lambda host: host.run(["true"], Deadline.after(5)))
    assert "it began no command within" in error.message
    assert error.hint and error.hint.startswith(f"this must print ok at once: ssh -F {client.config} bad 'echo ok'\n")


@pytest.mark.parametrize("kind", REMOTE)
def test_a_start_up_file_that_becomes_another_shell_is_reported(
    kind: Kind, client: Client, connect: Connect, tmp_path: Path, started: list[Sshd]
) -> None:
    started.append(login_shell(tmp_path / "h", client.key, "bash", "exec fish"))
    client.add("h", started[0])
    error = refused(connect, client.target("h"), kind, first_words)
    assert error.hint and f"ssh -F {client.config} h 'echo ok'" in error.hint
    assert "start-up files" in error.hint
