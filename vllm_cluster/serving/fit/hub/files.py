"""Where a model lies, and how to read the beginning of its files: a folder, or the hub by range requests."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Protocol
from urllib.parse import quote, urljoin, urlsplit

import requests
import urllib3.exceptions

from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import Unreachable, UsageError, VclusterError
from vllm_cluster.kernel.laptop import expanded
from vllm_cluster.kernel.shell_line import command_line
from vllm_cluster.serving.fit.hub.timed import timed_get
from vllm_cluster.wire.values import Url

HUB = "https://huggingface.co"
CONNECT_SECONDS, SILENCE_SECONDS = 10.0, 20.0
MAX_REDIRECTS = 10


class ModelFiles(Protocol):
    """A model's files; each name is relative, and may come from an untrusted index."""

    def read(self, name: str, begin: int, size: int) -> bytes | None:
        """At most `size` bytes of a file from `begin` on, None where there is no such file."""
        ...


def source(model: str, token: str | None, deadline: Deadline) -> ModelFiles:
    """Where the model lies: a folder when there is one, else the hub.

    Raises:
        UsageError: the word can be neither.
    """
    folder = expanded(model)
    if folder.name == "config.json" and folder.is_file():
        folder = folder.parent
    if folder.is_dir():
        return LocalModelFiles(folder)
    if folder.is_file():
        raise UsageError(f"{model!r} is a file: a model is a folder", hint="put it into a folder as config.json")
    if not re.fullmatch(r"\w[\w.-]{0,95}(/\w[\w.-]{0,95})?", model, re.ASCII):
        raise UsageError(f"{model!r} is neither a folder here nor a repository of the hub", hint="ORG/NAME, or a path")
    return Hub(model, token, deadline)


class LocalModelFiles:
    """A model on this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, name: str, begin: int, size: int) -> bytes | None:
        """A part of a file; anything but a regular file counts as missing (opening a pipe would block)."""
        path = self._folder / _inside(name)
        try:
            if not path.is_file():
                return None
            with path.open("rb") as stream:
                stream.seek(begin)
                return stream.read(size)
        except OSError as error:
            raise VclusterError(
                f"{path} cannot be read: {error.strerror}", hint=command_line("stat", str(path))
            ) from None


class Hub:
    """A model on the hub that HF_ENDPOINT names. Safe to use from several threads."""

    def __init__(self, model: str, token: str | None, deadline: Deadline) -> None:
        """Take the words of a person.

        Raises:
            UsageError: the token cannot be one; without it.
        """
        if token and not (token.isascii() and token.isprintable()):
            hint = "copy it again: hf_token of the inventory, else HF_TOKEN, else the file of HF_TOKEN_PATH"
            raise UsageError("the token for the hub has a character that no HTTP header can have", hint=hint)
        self._model, self._token, self._deadline = model, token, deadline
        self._endpoint = (os.environ.get("HF_ENDPOINT") or HUB).rstrip("/")
        self._name = urlsplit(self._endpoint).hostname or str(Url(self._endpoint))

    def read(self, name: str, begin: int, size: int) -> bytes | None:
        """A part of a file.

        Raises:
            Unreachable: the hub does not answer, or has trouble of its own.
            UsageError: there is no such repository.
            VclusterError: it is not given to us.
        """
        url = f"{self._endpoint}/{self._model}/resolve/main/{quote(str(_inside(name)))}"
        # Compressed, the bytes that come would not be those of the range.
        headers = {"Range": f"bytes={begin}-{begin + size - 1}", "Accept-Encoding": "identity"}
        silence = max(0.1, min(SILENCE_SECONDS, self._deadline.left()))
        timeouts = (min(CONNECT_SECONDS, silence), silence)
        try:
            with self._followed(url, headers, timeouts) as reply:
                if reply.status_code == 416:
                    return b""  # the file ends before the range
                if reply.status_code == 404 and reply.headers.get("X-Error-Code") != "RepoNotFound":
                    return None
                self._refuse(reply)
                return self._receive(reply, 0 if reply.status_code == 206 else begin, size)
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            late = isinstance(error, requests.Timeout | urllib3.exceptions.TimeoutError | TimeoutError)
            kind = "it did not answer in time" if late else _last(error)
            hint = "set HF_ENDPOINT to a mirror, or give a folder with its config.json, which needs no network"
            raise Unreachable(self._name, f"cannot connect to the hub: {kind}", hint=hint) from None

    def _followed(self, url: str, headers: Mapping[str, str], timeouts: tuple[float, float]) -> requests.Response:
        """The answer behind redirects; requests itself would read the whole body of each."""
        for _ in range(MAX_REDIRECTS):
            try:
                reply = timed_get(
                    url,
                    self._deadline,
                    headers=headers,
                    auth=self._authorize,
                    stream=True,
                    timeout=timeouts,
                    allow_redirects=False,
                )
                if not reply.is_redirect:
                    return reply
                reply.close()
                url = urljoin(url, reply.headers["Location"])
            except ValueError:  # also of the standard library, of what cannot be a URL
                raise requests.exceptions.InvalidURL from None
        raise requests.TooManyRedirects

    def _authorize(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        # As `auth`, since requests would let a .netrc entry win over a header.
        if self._token and urlsplit(request.url or "")[:2] == urlsplit(self._endpoint)[:2]:
            request.headers["Authorization"] = f"Bearer {self._token}"
        return request

    def _refuse(self, reply: requests.Response) -> None:
        code = reply.status_code
        if code in (401, 403):
            access = "with the token that was given" if self._token else "without a token"
            hint = (
                f"accept its terms at {Url(self._endpoint)}/{self._model}; set HF_TOKEN, or hf_token in the inventory"
            )
            text = f"{self._model} is gated, private or not there: the hub answers {code} {access}"
            raise VclusterError(text, hint=hint)
        if code == 404:
            raise UsageError(f"the hub at {self._name} has no {self._model}", hint="check the name: ORG/NAME")
        if code not in (200, 206):
            raise Unreachable(self._name, f"the hub answers {code}", hint="try again later, or set HF_ENDPOINT")

    def _receive(self, reply: requests.Response, skip: int, size: int) -> bytes:
        """The requested bytes of the body; a server without range support sends all, and the rest is not read."""
        data = bytearray()
        # read1, as iter_content waits for a whole chunk: from a hub that drips, for hours.
        while len(data) < skip + size and (chunk := reply.raw.read1(1 << 16)):
            data += chunk
            if not self._deadline.left():
                raise requests.Timeout
        return bytes(data[skip : skip + size])


def _inside(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name or not path.parts:
        raise VclusterError(
            f"the model names a file outside of itself: {name[:80]!r}", hint="copy or download the model again"
        )
    return path


def _last(error: BaseException) -> str:
    """The innermost words of a chain of wrapped errors: the outer ones repeat addresses of objects."""
    text = str(error)
    reasons = ("refused", "Name or service not known", "failure in name resolution", "CERTIFICATE", "unreachable")
    return next((f"{reason}" for reason in reasons if reason in text), type(error).__name__)
