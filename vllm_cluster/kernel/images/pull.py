"""An image for a host, by the host's own `docker pull` and its login: Docker's API knows no login of the host."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import CommandFailed, TimedOut
from vllm_cluster.kernel.hosts.connection import HostConnection
from vllm_cluster.kernel.hosts.program import OnHost, RemoteProgram, start
from vllm_cluster.kernel.plan.images import registry
from vllm_cluster.kernel.shell_line import command_line

# An image has at most 127 layers.
MAX_LAYERS = 1000


def pull(connection: HostConnection, image: str, deadline: Deadline, progress: Callable[[str], None]) -> None:
    """Pull an image. Nothing of the laptop's logins takes part: a private image needs `docker login` on the host.

    Raises:
        CommandFailed: with what would help.
    """
    program = RemoteProgram("pull", ("docker", "pull", image), deadline.left(), changes=True)
    with start(connection, program, OnHost(), deadline) as running:
        try:
            _follow(running.lines(deadline), image, progress)
        except TimedOut as error:
            raise TimedOut(connection.name, f"pull {image}: docker pull did not end in time", again=()) from error
        code, stderr = running.code, running.stderr_tail()
    if code != 0:
        reason = stderr.strip().rpartition("\n")[2] or "docker pull gave no reason"
        where = registry(image)
        login = command_line("docker", "login", *([where] if where else []))
        hint = f"Check the name. If the image is private, run on {connection.name}: {login}"
        if connection.ssh:
            hint += f"\nOr copy it there: {command_line('docker', 'save', image)} | {connection.ssh} docker load"
        raise CommandFailed(connection.name, f"cannot pull {image}: {reason}", exit_code=1, stderr=reason, hint=hint)


def _follow(lines: Iterable[bytes], image: str, progress: Callable[[str], None]) -> None:
    """Report how many layers are there, until the command ends."""
    layers: dict[str, bool] = {}
    shown = ""
    for line in lines:
        layer, _, status = line.decode("utf-8", "replace").strip().partition(": ")
        if status in ("Pulling fs layer", "Already exists", "Pull complete"):
            if layer in layers or len(layers) < MAX_LAYERS:
                layers[layer] = status != "Pulling fs layer"
            text = f"pulling {image}: {sum(layers.values())} of {len(layers)} layers"
            if text != shown:
                progress(text)
            shown = text
