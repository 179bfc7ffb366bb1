"""A model's config and weights, from wherever it lies."""

from __future__ import annotations

import json
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from vllm_cluster.clock import Deadline
from vllm_cluster.errors import VclusterError
from vllm_cluster.fit.model_config import ModelConfig, model_config
from vllm_cluster.fit.weights import Weights, dense, spread, tensors, weigh
from vllm_cluster.hub.files import ModelFiles, source

READ_SECONDS = 120.0
READERS = 16
CONFIG_BYTES, INDEX_BYTES = 4 << 20, 64 << 20
# The format's own limit; the first read gets all of an ordinary header.
HEADER_BYTES, FIRST_BYTES = 100_000_000, 1 << 17
MAX_FILES = 4096


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


def _document(files: ModelFiles, model: str, name: str, limit: int) -> dict[str, Any] | None:
    data = files.read(name, 0, limit + 1)
    if data is None:
        return None
    try:
        found = json.loads(data) if len(data) <= limit else None
    except (ValueError, RecursionError) as error:
        text = f"{model}: {name} is not complete JSON: {error}"
        raise VclusterError(text[:300], hint="copy or download the model again") from None
    if not isinstance(found, dict):
        raise VclusterError(f"{model}: its {name} is not what it should be")
    return found


def _weights(files: ModelFiles, model: str, found: ModelConfig) -> Weights:
    index = _document(files, model, "model.safetensors.index.json", INDEX_BYTES) or {}
    mapped = index.get("weight_map")
    names = sorted({str(name) for name in mapped.values()}) if isinstance(mapped, dict) else ["model.safetensors"]
    metadata = index.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    try:
        if len(names) > MAX_FILES:
            raise VclusterError(f"{model}: its index names {len(names)} files")
        # Not leaving the block early: what runs ends by the source's deadline.
        with ThreadPoolExecutor(READERS) as pool:
            headers = list(pool.map(lambda name: _header(files, model, name), names))
    except VclusterError as error:
        if isinstance(total, int) and 0 < total < 1 << 48:
            return spread(total, found)
        counted = dense(found)
        if isinstance(error, _NoFile) and not index and counted:
            return spread(counted, found)
        raise
    return weigh((row for header in headers for row in header), found)


def _header(files: ModelFiles, model: str, name: str) -> list[tuple[str, str, int]]:
    data = files.read(name, 0, FIRST_BYTES)
    if data is None:
        hint = "give a model in safetensors"
        raise _NoFile(f"{model} has no {name}", hint=hint)
    size = struct.unpack("<Q", data[:8])[0] if len(data) >= 8 else 0
    if not 2 <= size <= HEADER_BYTES:
        pointer = data.startswith(b"version https://git-lfs")
        how = "git lfs pull: this is only the pointer to it" if pointer else "copy or download it again"
        raise VclusterError(f"{model}: {name} is not a safetensors file", hint=how)
    if size + 8 > len(data):
        data += files.read(name, len(data), size + 8 - len(data)) or b""
    try:
        return tensors(data[8 : 8 + size])
    except ValueError as error:
        raise VclusterError(f"{model}: {name}: {error}", hint="copy or download it again") from None
