"""Asks the hub what a model's repository holds, from where it would be downloaded: a JSON line a file, then the end.

The first message has the model, the revision, the token, the endpoint, the seconds for all of it, and the bytes that
may be printed. Uses the image's own huggingface_hub.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from typing import Any

# Set where a person wants nothing downloaded in secret; this is asked for. Read when the library is imported.
os.environ["HF_HUB_OFFLINE"] = "0"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"

from huggingface_hub import HfApi, get_hf_file_metadata, get_session, hf_hub_url

# The library reads all that a hub sends, and unpacks it: the list of any model is far smaller.
MEMORY_BYTES = 4 << 30
TRIES, PAUSE_SECONDS = 4, 2.0
LOOK_SECONDS = 20
# Errors of a connection: those of requests, and those of httpx in its place.
LOST = {"ConnectionError", "Timeout", "ChunkedEncodingError", "TransportError"}


class TooManyError(Exception):
    """The list is longer than a person's machine takes."""


class OddAnswerError(Exception):
    """The hub sent something, and it cannot be the list of a model."""


def note_answers(came: list[object]) -> None:
    """Note each answer as it begins to come, from now on."""
    session: Any = get_session()
    # Of httpx, which was requests before huggingface_hub 1.0.
    hooks = session.event_hooks if hasattr(session, "event_hooks") else session.hooks
    hooks["response"].append(lambda answer, *_, **__: came.append(answer))


def problem(error: Exception, endpoint: str, *, answered: bool) -> dict[str, Any]:
    """What a person can act on; the names of classes are the same since huggingface_hub 0.20.

    The hub may send anything, in which the library fails in any way: where it answered, that is wrong. Before, as with
    a proxy that the library cannot use, the words are the library's own.
    """
    code = getattr(getattr(error, "response", None), "status_code", None)
    names = {kind.__name__ for kind in type(error).__mro__}
    kinds = {
        "GatedRepoError": "gated",
        "RepositoryNotFoundError": "missing",
        "RevisionNotFoundError": "revision",
        "HFValidationError": "name",
        "TooManyError": "many",
    }
    other = "answer" if code else "wrong" if answered and not names & LOST else "unreachable"
    kind = next((kind for name, kind in kinds.items() if name in names), other)
    words = str(error).strip().split("\n")[0][:300] or type(error).__name__
    return {"problem": kind, "code": code, "words": "" if kind == "wrong" else words, "endpoint": endpoint}


def give_up(endpoint: str) -> None:
    """End this process: the hub gives a byte now and then, which ends no wait for the next one."""
    print(json.dumps({"problem": "slow", "endpoint": endpoint}), flush=True)
    os._exit(0)


def waits(error: Exception) -> bool:
    """Whether the next try may succeed."""
    code = getattr(getattr(error, "response", None), "status_code", None)
    return code == 429 or (code or 0) >= 500


def look(asked: dict[str, Any], endpoint: str, came: list[object]) -> str:
    """The lines of the files, and of the commit behind the revision; what the hub answers is noted."""
    note_answers(came)
    token = asked["token"] or False
    info = HfApi(endpoint=endpoint, token=token).model_info(
        asked["model"], revision=asked["revision"] or None, files_metadata=True, timeout=LOOK_SECONDS
    )
    if not info.sha:
        raise OddAnswerError("no commit")
    files = [(row.rfilename, row.size, row.lfs["sha256"] if row.lfs else row.blob_id) for row in info.siblings or ()]
    rows = [{"path": path, "size": size, "blob": blob} for path, size, blob in files]
    end = {"commit": info.sha, "name": info.id or asked["model"], "endpoint": endpoint}
    listed = "".join(f"{json.dumps(row)}\n" for row in (*rows, end))
    if len(listed) > asked["most"]:
        raise TooManyError(f"{len(files)} files")
    if files:
        # A gated repository lists its files to everyone, and gives none.
        last = max(files, key=lambda row: row[1] or 0)[0]
        try:
            url = hf_hub_url(end["name"], last, revision=info.sha, endpoint=endpoint)
        except (TypeError, ValueError):
            # Not a slip of the person, whose name the library took: the hub's own name, or that of a file.
            raise OddAnswerError("a file that cannot be") from None
        get_hf_file_metadata(url, token=token)
    return listed


def answer(asked: dict[str, Any], endpoint: str) -> str:
    """Ask as often as it may help: what is to be printed."""
    for left in reversed(range(TRIES)):
        came: list[object] = []
        try:
            return look(asked, endpoint, came)
        except Exception as error:
            if not (left and waits(error)):
                return json.dumps(problem(error, endpoint, answered=bool(came))) + "\n"
        time.sleep(PAUSE_SECONDS)
    raise AssertionError


def main() -> None:
    """Print what the hub has, or why that is not known, before the seconds are over."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    asked = json.loads(sys.stdin.readline())
    endpoint = (asked["endpoint"] or os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    watch = threading.Timer(asked["seconds"], give_up, [endpoint])
    watch.daemon = True
    watch.start()
    found = answer(asked, endpoint)
    watch.cancel()
    print(found, end="")


if __name__ == "__main__":
    main()
