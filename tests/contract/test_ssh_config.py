"""What people have in their ssh_config for their own sessions changes no connection of vcluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.carriers import Client
from tests.support.sshd import Sshd
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.transport import Kind
from vllm_cluster.kernel.transport.base import Target, Transport

pytestmark = pytest.mark.promise("P39")
LINES = {
    "a command": ("RemoteCommand echo mine", "RequestTTY force"),
    "no session": ("SessionType none",),
    "no input": ("StdinNull yes",),
    "a connection of their own": ("ControlMaster auto", "ControlPath {folder}/own", "ControlPersist 60"),
    "a local command": ("PermitLocalCommand yes", "LocalCommand touch {folder}/ran"),
    "forwards": ("RemoteForward 39998 127.0.0.1:1", "DynamicForward 39997", "ExitOnForwardFailure yes"),
    "a loud Match exec": ('Match exec "echo noise; echo noise >&2"',),
    "keys of another ssh": ("IgnoreUnknown UseKeychain", "UseKeychain yes"),
}


@pytest.mark.parametrize("what", LINES)
def test_ssh_config_changes_no_command_and_no_stream(
    *,
    kind: Kind,
    what: str,
    client: Client,
    shared_server: Sshd,
    connect: Callable[[Target, Kind], Transport],
    tmp_path: Path,
) -> None:
    client.add("h", shared_server, *(line.format(folder=tmp_path) for line in LINES[what]))
    host = connect(client.target("h"), kind)
    assert host.run(["cat"], Deadline.after(10), stdin=b"x").stdout == b"x"
    stream = host.open_stream(["cat"], Deadline.after(10))
    stream.settimeout(10)
    stream.sendall(b"y")
    assert stream.recv(10) == b"y"
    stream.close()
    host.close()
    assert not {"own", "ran"} & {entry.name for entry in tmp_path.iterdir()}
