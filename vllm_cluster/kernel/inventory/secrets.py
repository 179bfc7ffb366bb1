"""Fetch a secret by its reference; errors name the reference, never the value."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import InventoryError
from vllm_cluster.kernel.laptop import first_bytes
from vllm_cluster.kernel.text import redact_value

if TYPE_CHECKING:
    from vllm_cluster.kernel.inventory.model import SecretRef

COMMAND_SECONDS = 30.0
MAX_BYTES = 64_000


def read_secret(ref: SecretRef, *, base: Path, environ: Mapping[str, str]) -> str:
    """The secret that `ref` points to; relative files lie in `base`.

    Raises:
        InventoryError: it is not there, or is nothing that a token can be.
    """
    if ref.kind == "env":
        found = _from_environment(ref, environ)
    else:
        raw = _from_file(ref, base) if ref.kind == "file" else command_output(ref, base, environ)
        if len(raw) > MAX_BYTES:
            raise _refused(ref, "gives far more than a token")
        try:
            found = raw.decode("utf-8")
        except UnicodeDecodeError:
            # from None: the exception's text quotes bytes of the secret.
            raise _refused(ref, "gives bytes that are not text") from None
    secret = found.removesuffix("\n").removesuffix("\r")
    if not secret.strip():
        raise _refused(ref, "is empty")
    if not secret.isprintable():
        raise _refused(ref, "gives more than one line, or unprintable characters: a token is one line of text")
    if secret != secret.strip():
        raise _refused(ref, "has spaces around the token")
    return secret


def _refused(ref: SecretRef, reason: str, hint: str | None = None) -> InventoryError:
    return InventoryError(f"{redact_value(str(ref))}: {reason}", hint=hint)


def _from_environment(ref: SecretRef, environ: Mapping[str, str]) -> str:
    found = environ.get(ref.value)
    if found is None:
        raise _refused(ref, "this variable is not set", f"set {ref.value} in the shell that runs vcluster")
    return found


def _from_file(ref: SecretRef, base: Path) -> bytes:
    try:
        path = base / Path(ref.value).expanduser()
        # Opening a named pipe would wait for a writer without end.
        if path.exists() and not path.is_file():
            raise _refused(ref, "is not a plain file")
        with path.open("rb") as stream:
            return stream.read(MAX_BYTES + 1)
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "begins with ~ of an unknown user"
        raise _refused(ref, f"cannot be read: {reason}") from None


def command_output(ref: SecretRef, base: Path, environ: Mapping[str, str]) -> bytes:
    """The first bytes that a command prints, in a folder.

    Raises:
        InventoryError: it failed, or gave no answer in time.
    """
    deadline = Deadline.after(COMMAND_SECONDS)
    try:
        # Standard error stays the user's: prompts and the tool's own words are seen and not kept. So does the terminal:
        # in a session of its own a tool could not ask for a passphrase.
        process = subprocess.Popen(
            shlex.split(ref.value), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, cwd=base, env=dict(environ)
        )
    except OSError as error:
        raise _refused(ref, f"the command cannot be started: {error.strerror}") from None
    with process:
        try:
            assert process.stdout is not None  # noqa: S101 - it was asked for as a pipe
            found = first_bytes(process.stdout.fileno(), MAX_BYTES + 1, deadline)
            if len(found) <= MAX_BYTES:
                process.wait(deadline.left())
        except (TimeoutError, subprocess.TimeoutExpired):
            # from None: the exception may hold what the command had printed.
            raise _refused(ref, f"the command gave no answer in {COMMAND_SECONDS:.0f} s") from None
        finally:
            process.kill()
    if len(found) <= MAX_BYTES and process.returncode != 0:
        raise _refused(ref, f"the command failed with exit code {process.returncode}", "run it by hand to see why")
    return found
