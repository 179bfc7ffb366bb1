"""Fetch a secret from where the inventory says it is; errors name the reference, never what was found."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from vllm_cluster.core.errors import InventoryError
from vllm_cluster.inventory.model import SecretRef
from vllm_cluster.text import redact_value

COMMAND_SECONDS = 30.0
MAX_BYTES = 64_000

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]


def read_secret(ref: SecretRef, *, base: Path, environ: Mapping[str, str], run: Run = subprocess.run) -> str:
    """The secret that `ref` points to; relative files lie in `base`.

    Raises:
        InventoryError: it is not there, or is nothing that a token can be.
    """
    if ref.kind == "env":
        found = _from_environment(ref, environ)
    else:
        raw = _from_file(ref, base) if ref.kind == "file" else _from_command(ref, base, environ, run)
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
        raise _refused(ref, "this variable is not set", f"export {ref.value}=… in the shell that runs vcluster")
    return found


def _from_file(ref: SecretRef, base: Path) -> bytes:
    try:
        path = base / Path(ref.value).expanduser()
        # Opening a named pipe would wait for a writer for ever.
        if path.exists() and not path.is_file():
            raise _refused(ref, "is not a plain file")
        with path.open("rb") as stream:
            return stream.read(MAX_BYTES + 1)
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "begins with ~ of an unknown user"
        raise _refused(ref, f"cannot be read: {reason}") from None


def _from_command(ref: SecretRef, base: Path, environ: Mapping[str, str], run: Run) -> bytes:
    try:
        # Standard error stays the user's: prompts and the tool's own words are seen and not kept.
        done = run(
            shlex.split(ref.value),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            cwd=base,
            env=dict(environ),
            timeout=COMMAND_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        # from None: the exception holds what the command had printed.
        raise _refused(ref, f"the command gave no answer in {COMMAND_SECONDS:.0f} s") from None
    except OSError as error:
        raise _refused(ref, f"the command cannot be started: {error.strerror}") from None
    if done.returncode != 0:
        raise _refused(ref, f"the command failed with exit code {done.returncode}", "run it by hand to see why")
    return done.stdout
