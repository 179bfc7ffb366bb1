"""What lies here of a model, and what the hub would give: asked in the node, from where vLLM would download."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import struct
import threading
import urllib.error
import urllib.parse
import urllib.request
from concurrent import futures
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from vllm_cluster.wire.inside import beginning, open_plain
from vllm_cluster.wire.pull import Manifest
from vllm_cluster.wire.reading import RefusedDocument, bounded, read
from vllm_cluster.wire.safetensors import MAX_HEADER, MAX_INDEX, Tensor, files_of, tensors
from vllm_cluster.wire.values import Size, Url, without_logins

HUB_SECONDS = 8.0
MAX_CONFIG, MAX_MANIFEST, MAX_LIST = 1 << 20, 64 << 20, 16 << 20
# Rows of tensors that one answer carries; of more there is only the sum of their bytes.
MAX_TENSORS = 15_000
MAX_NEAR = 200
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[\w.-]{1,96})?")
_TRUE = ("1", "true", "yes", "on")


def find_model(model: str, revision: str = "main", *, ask_hub: bool = True) -> dict[str, object]:
    """Where the model is (`folder`, `cache`, `hub`, `nowhere` with the problem, `unknown`) and what it holds."""
    home = Path(os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME") or "~/.cache/huggingface") / "hub")
    home = home.expanduser()
    found: dict[str, object] = {"where": "unknown", "problem": "", "offline": offline(), "free": _free(home)}
    found |= {"carrier": _carrier(home), "memory": _memory()}
    if "://" in model or os.environ.get("VLLM_USE_MODELSCOPE", "").lower() in _TRUE:
        return found
    folder = Path(model)
    if folder.is_dir():
        proved = _proved(folder, folder / ".vcluster" / "manifest.json")
        return {**found, "where": "folder", "carrier": _carrier(folder), **_held(folder), **proved}
    if not _REPOSITORY.fullmatch(model):
        text = "there is no such folder in the node" if model[0] in "/.~" else "it is neither a folder nor ORG/NAME"
        return {**found, "where": "nowhere", "problem": text, "near": _cached(home)}
    snapshot = _snapshot(home, model, revision)
    if snapshot and (snapshot / "config.json").exists():
        held = _held(snapshot)
        if not held["lacking"]:
            manifest = snapshot.parents[1] / ".vcluster" / f"{snapshot.name}.json"
            return {**found, "where": "cache", **held, **_proved(snapshot, manifest)}
    if offline():
        text = "its cache has only a part of it" if snapshot else "it is not in the model cache"
        if not snapshot and model in _cached(home):
            text = f"its revision {revision} is not in the model cache"
        return {**found, "where": "nowhere", "problem": f"{text}, and HF_HUB_OFFLINE is set", "near": _cached(home)}
    there = _sizes(snapshot) if snapshot else {}
    found["held"] = sum(there.values())
    if not ask_hub:
        return {**found, "where": "hub"}
    hub, sizes = _ask_hub(model, revision)
    if hub["where"] == "hub":
        missing = sum(size for name, size in sizes.items() if there.get(name) != size)
        return {**found, **hub, "weights": sum(sizes.values()) or None, "missing": missing}
    return {**found, **hub, "near": _cached(home)}


def offline() -> bool:
    """Whether no hub may be asked."""
    return os.environ.get("HF_HUB_OFFLINE", "").lower() in _TRUE


def _free(path: Path) -> int | None:
    while not path.exists() and path != path.parent:
        path = path.parent
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


def _carrier(path: Path) -> str:
    """The kind of the file system that a path is on: of the mounts above it the longest, of equal ones the last."""
    try:
        rows = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
        whole = str(path.resolve())
    except OSError:
        return ""
    mounts = [(row[1].encode().decode("unicode_escape"), row[2]) for row in rows if len(row) > 2]
    above = [(len(at), number, kind) for number, (at, kind) in enumerate(mounts) if _below(whole, at)]
    return max(above, default=(0, 0, ""))[2]


def _below(path: str, mount: str) -> bool:
    return path == mount or path.startswith(mount.rstrip("/") + "/")


def _memory() -> int | None:
    """Bytes that programs could take without swapping."""
    try:
        rows = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return int(rows["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, KeyError, IndexError):
        return None


def _cached(home: Path) -> list[str]:
    """The repositories in the cache and the folders of models beside it, as people name them."""
    names = sorted(path.name for path in home.glob("models--*"))[:MAX_NEAR]
    folders = sorted(f"./{path.parent.name}" for path in home.parent.glob("*/config.json"))[:MAX_NEAR]
    return [*(name.removeprefix("models--").replace("--", "/", 1) for name in names), *folders]


def _snapshot(home: Path, model: str, revision: str) -> Path | None:
    folder = home / f"models--{model.replace('/', '--')}"
    try:
        commit = beginning(folder / "refs" / revision, 200).decode().strip()
    except (OSError, ValueError):
        commit = revision
    snapshot = folder / "snapshots" / commit
    return snapshot if commit and "/" not in commit and snapshot.is_dir() else None


def _proved(folder: Path, path: Path) -> dict[str, str]:
    """The digest of the manifest of a pull that the files agree with by name, size and time, else the first other."""
    try:
        manifest = read(Manifest, beginning(path, MAX_MANIFEST), "the manifest", MAX_MANIFEST)
    except (OSError, RefusedDocument):
        return {}
    for name, size, _, when in manifest.files:
        with suppress(OSError):
            seen = (folder / name).stat()
            if (seen.st_size, seen.st_mtime_ns) == (size, when):
                continue
        return {"changed": name}
    return {"proved": manifest.digest} if manifest.files else {}


def _sizes(folder: Path) -> dict[str, int]:
    """The files with weights and their bytes, where they are whole."""
    found = {}
    for path in folder.iterdir():
        if _is_weights(path.name):
            try:
                found[path.name] = path.stat().st_size
            except OSError:
                continue  # a link that leads nowhere: a download that broke off
    return found


def _is_weights(name: str) -> bool:
    return name.endswith((".safetensors", ".bin", ".pt", ".gguf")) and not name.startswith(("consolidated", "training"))


def _document(path: Path, limit: int) -> dict[str, object] | None:
    try:
        # Not `document`: configs have Infinity.
        found = json.loads(bounded(beginning(path, limit), limit))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _held(folder: Path) -> dict[str, object]:
    named: list[str] = []
    with suppress(OSError, ValueError):
        named, _ = files_of(beginning(folder / "model.safetensors.index.json", MAX_INDEX))
    sizes = _sizes(folder)
    tensors = [name for name in sizes if name.endswith(".safetensors")]
    counted = {name: sizes[name] for name in (named or tensors or sizes) if name in sizes}
    return {
        "config": _document(folder / "config.json", MAX_CONFIG),
        "weights": sum(counted.values()) or None,
        "missing": 0,
        "lacking": [name for name in named if name not in sizes],
        "tensors": _tensors([folder / name for name in counted]),
    }


def _tensors(files: list[Path]) -> list[Tensor] | None:
    """Name, dtype and bytes of every tensor by the headers of safetensors files; None where they cannot be had."""
    rows: list[Tensor] = []
    try:
        for path in files:
            with open_plain(path) as file:
                size = struct.unpack("<Q", file.read(8))[0]
                header = file.read(size) if 2 <= size <= MAX_HEADER else b""
            for row in tensors(header):
                rows.append(row)
                if len(rows) > MAX_TENSORS:
                    return None
    except (OSError, ValueError, struct.error):
        return None
    return rows or None


class _Stay(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer: the file is there, and our token is not for whoever holds it."""

    def redirect_request(self, *_: object) -> None:
        return None


@dataclass(frozen=True)
class _HubFile:
    rfilename: str
    size: Size | None = None


@dataclass(frozen=True)
class _HubFiles:
    siblings: tuple[_HubFile, ...] | None = None


def _ask_hub(model: str, revision: str) -> tuple[dict[str, str], dict[str, int]]:
    """Whether the hub would give the model, and the bytes of its files with weights."""
    endpoint = (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    there = Url(endpoint)
    name, at = urllib.parse.quote(model), urllib.parse.quote(revision, safe="")
    try:
        # What is there and its size; then whether we may have it: a gated repository lists its files to everyone.
        code, body = _get(f"{endpoint}/api/models/{name}/revision/{at}?blobs=true", limit=MAX_LIST)
        if code == 200:
            code, _ = _get(f"{endpoint}/{name}/resolve/{at}/config.json", limit=0)
    except (OSError, ValueError, http.client.HTTPException) as error:
        why = without_logins(str(getattr(error, "reason", error)))
        text = f"it is not in the model cache, and {there} cannot be asked: {why}"
        return {"where": "nowhere", "problem": text}, {}
    where, problem = "hub", ""
    if code in (401, 403):
        how = "with the token that is set" if _token() else "without a token"
        where, problem = "nowhere", f"it is gated, private or not there: {there} answers {code} {how}"
    elif code == 404 and not body:
        # One without a config.json has a list of files all the same: it is in another format.
        where, problem = "nowhere", f"{there} has no such model" + ("" if revision == "main" else f" at {revision}")
    elif code >= 400 and code != 404:
        where, problem = "unknown", f"{there} answers {code}"
    return {"where": where, "problem": problem}, _listed(body)


def _listed(body: bytes) -> dict[str, int]:
    """The files with weights that vLLM would download: safetensors where there are any."""
    try:
        rows = read(_HubFiles, body or b"{}", "the hub", MAX_LIST).siblings or ()
    except RefusedDocument:
        return {}
    names = ((row.rfilename, row.size or 0) for row in rows)
    sizes = {name: size for name, size in names if "/" not in name and _is_weights(name)}
    return {name: size for name, size in sizes.items() if name.endswith(".safetensors")} or sizes


def _get(url: str, limit: int) -> tuple[int, bytes]:
    """What a URL answers within the seconds: a time-out of urllib is for each receive, and a hub may drip."""
    found: Future[tuple[int, bytes]] = Future()

    def ask() -> None:
        try:
            found.set_result(_answer(url, limit))
        except Exception as error:
            found.set_exception(error)

    threading.Thread(target=ask, daemon=True).start()
    try:
        return found.result(HUB_SECONDS)
    except futures.TimeoutError:
        raise TimeoutError("timed out") from None


def _answer(url: str, limit: int) -> tuple[int, bytes]:
    request = urllib.request.Request(url, headers={"User-Agent": "vcluster"})  # noqa: S310 - of HF_ENDPOINT
    if token := _token():
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.build_opener(_Stay).open(request, timeout=HUB_SECONDS) as reply:
            return reply.status, reply.read(limit)
    except urllib.error.HTTPError as error:
        return error.code, b""


def _token() -> str:
    if value := os.environ.get("HF_TOKEN"):
        return value.strip()
    path = Path(os.environ.get("HF_TOKEN_PATH") or "~/.cache/huggingface/token")
    try:
        return beginning(path.expanduser(), 1000).decode().strip()
    except (OSError, ValueError):
        return ""
