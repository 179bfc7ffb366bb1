"""A model's config and weights, from wherever it lies."""

from __future__ import annotations

import json
import struct
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import VclusterError
from vllm_cluster.kernel.text import size
from vllm_cluster.serving.fit.hub.files import ModelFiles, source
from vllm_cluster.serving.fit.model_config import ModelConfig, model_config
from vllm_cluster.serving.fit.weights import Share, Weights, dense, shares, spread, summed
from vllm_cluster.wire.reading import bounded
from vllm_cluster.wire.safetensors import MAX_HEADER, MAX_INDEX, files_of, tensors

READ_SECONDS = 120.0
READERS = 16
CONFIG_BYTES = 1 << 20
# The first read gets all of an ordinary header; those of all files together have this much at most.
FIRST_BYTES, ALL_HEADERS = 1 << 17, 64 << 20


MAX_OF_FORMAT = 100_000_000
_AGAIN = "copy or download it again"


class _NoFile(VclusterError):
    """A file of the model is not there."""


def read(model: str, token: str | None) -> tuple[ModelConfig, Weights]:
    """What a model is and how much it weighs; its weights are never read, only what heads them.

    Raises:
        VclusterError: it cannot be read, and why.
    """
    files = source(model, token, Deadline.after(READ_SECONDS))
    document = _document(files, model, "config.json", CONFIG_BYTES)
    if document is None:
        raise VclusterError(f"{model} has no config.json", hint="give a model in the format of transformers")
    try:
        found = model_config(document)
    except ValueError as error:
        hint = "give a model in the format of transformers"
        raise VclusterError(f"{model}: config.json is incomplete: {error}", hint=hint) from None
    return found, _weights(files, model, found)


def _document(files: ModelFiles, model: str, name: str, limit: int) -> dict[str, object] | None:
    data = files.read(name, 0, limit + 1)
    if data is None:
        return None
    try:
        found = json.loads(bounded(data, limit)) if len(data) <= limit else None
    except (ValueError, RecursionError) as error:
        text = f"{model}: {name} is not complete JSON: {error}"
        raise VclusterError(text[:300], hint="copy or download the model again") from None
    if not isinstance(found, dict):
        raise VclusterError(f"{model}: its {name} is not what it should be", hint="copy or download the model again")
    return found


def _weights(files: ModelFiles, model: str, found: ModelConfig) -> Weights:
    index = files.read("model.safetensors.index.json", 0, MAX_INDEX + 1)
    names, total = ["model.safetensors"], 0
    try:
        if index is not None:
            if len(index) > MAX_INDEX:
                raise ValueError(f"its index has more than {size(MAX_INDEX)}")
            names, total = files_of(index)
    except ValueError as error:
        raise VclusterError(f"{model}: model.safetensors.index.json: {error}", hint=_AGAIN) from None
    headers = _Headers(files, model, len(found.layers))
    try:
        # Not leaving the block early: what runs ends by the source's deadline.
        with ThreadPoolExecutor(READERS) as pool:
            list(pool.map(headers.add, names))
        if headers.error:
            raise headers.error
    except VclusterError as error:
        if total:
            return spread(total, found)
        if not isinstance(error, _NoFile) or index:
            raise
        if counted := dense(found):
            return spread(counted, found)
        hint = "put its model.safetensors.index.json there: config.json alone is enough only without experts"
        raise _NoFile(error.message, hint=hint) from None
    return summed(headers.sums, found)


class _Headers:
    """The sums of what heads the files; of what is large, one is held at a time. Safe to use from several threads."""

    def __init__(self, files: ModelFiles, model: str, layers: int) -> None:
        self._files, self._model, self._layers = files, model, layers
        self._lock = threading.Lock()
        self._left = ALL_HEADERS
        self.sums: Counter[Share] = Counter()
        # The first one: each would keep what was read of its file.
        self.error: VclusterError | None = None

    def add(self, name: str) -> None:
        """Read one, where no other has failed."""
        try:
            if not self.error:
                self._add(name)
        except VclusterError as error:
            self.error = error

    def _add(self, name: str) -> None:
        data = self._files.read(name, 0, FIRST_BYTES)
        if data is None:
            raise _NoFile(f"{self._model} has no {name}", hint="give a model in safetensors")
        length = struct.unpack("<Q", data[:8])[0] if len(data) >= 8 else 0
        if not 2 <= length <= MAX_OF_FORMAT:
            pointer = data.startswith(b"version https://git-lfs")
            how = "git lfs pull: this is only the pointer to it" if pointer else _AGAIN
            raise VclusterError(f"{self._model}: {name} is not a safetensors file", hint=how)
        with self._lock:
            self._left -= length
            if length > MAX_HEADER or self._left < 0:
                most = f"{size(MAX_HEADER)}, and those of all files {size(ALL_HEADERS)}"
                raise VclusterError(
                    f"{self._model}: {name}: its header has {size(length)}; at most {most} are read",
                    hint="give a model in fewer files, or with fewer tensors in each",
                )
            if length + 8 > len(data):
                data += self._files.read(name, len(data), length + 8 - len(data)) or b""
            try:
                self.sums += shares(tensors(data[8 : 8 + length]), self._layers)
            except ValueError as error:
                raise VclusterError(f"{self._model}: {name}: {error}", hint=_AGAIN) from None
