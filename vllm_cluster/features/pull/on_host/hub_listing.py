"""Asks the hub what a model's repository holds, from where it would be downloaded: a JSON line a file, then the end.

The first message has the model, the revision, the token and the endpoint. Uses the image's own huggingface_hub.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from typing import Any

# Set where a person wants nothing downloaded in secret; this is asked for. Read when the library is imported.
os.environ["HF_HUB_OFFLINE"] = "0"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"

from huggingface_hub import HfApi, get_hf_file_metadata, hf_hub_url

# The library reads all that a hub sends, and unpacks it: the list of any model is far smaller.
MEMORY_BYTES = 4 << 30
TRIES, PAUSE_SECONDS = 4, 2.0
LOOK_SECONDS = 20


def problem(error: Exception, endpoint: str) -> dict[str, Any]:
    """What a person can act on; the names of classes are the same since huggingface_hub 0.20."""
    code = getattr(getattr(error, "response", None), "status_code", None)
    names = {kind.__name__ for kind in type(error).__mro__}
    kinds = {
        "GatedRepoError": "gated",
        "RepositoryNotFoundError": "missing",
        "RevisionNotFoundError": "revision",
        "HFValidationError": "name",
    }
    kind = next((kind for name, kind in kinds.items() if name in names), "answer" if code else "unreachable")
    words = str(error).strip().split("\n")[0][:300] or type(error).__name__
    return {"problem": kind, "code": code, "words": words, "endpoint": endpoint}


def waits(error: Exception) -> bool:
    """Whether the next try may succeed."""
    code = getattr(getattr(error, "response", None), "status_code", None)
    return code == 429 or (code or 0) >= 500


def look(asked: dict[str, Any], endpoint: str) -> None:
    """Print the commit behind the revision and the files."""
    token = asked["token"] or False
    info = HfApi(endpoint=endpoint, token=token).model_info(
        asked["model"], revision=asked["revision"] or None, files_metadata=True, timeout=LOOK_SECONDS
    )
    if not info.sha:
        raise ValueError("no commit")
    files = [(row.rfilename, row.size, row.lfs["sha256"] if row.lfs else row.blob_id) for row in info.siblings or ()]
    if files:
        # A gated repository lists its files to everyone, and gives none.
        last = max(files, key=lambda row: row[1] or 0)[0]
        url = hf_hub_url(info.id or asked["model"], last, revision=info.sha, endpoint=endpoint)
        get_hf_file_metadata(url, token=token)
    for path, size, blob in files:
        print(json.dumps({"path": path, "size": size, "blob": blob}))
    print(json.dumps({"commit": info.sha, "name": info.id or asked["model"], "endpoint": endpoint}))


def main() -> None:
    """Ask as often as it may help."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    asked = json.loads(sys.stdin.readline())
    endpoint = (asked["endpoint"] or os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    for left in reversed(range(TRIES)):
        try:
            look(asked, endpoint)
            return
        except Exception as error:
            if not (left and waits(error)):
                print(json.dumps(problem(error, endpoint)))
                return
        time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    main()
