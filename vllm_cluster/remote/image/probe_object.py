"""Asks for one byte of an object, from the host that would download it; prints one JSON line. Standard library alone.

The message has the signed `address` and the `etag`: neither is printed.
"""

from __future__ import annotations

import http.client
import json
import re
import sys
import urllib.error
import urllib.request
from typing import Any

SECONDS = 20.0
MAX_ERROR = 4096


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """What comes: the status, with the code of a refusal, or why nothing does."""
    headers = {"Range": "bytes=0-0", "If-Match": asked["etag"], "User-Agent": "vcluster"}
    try:
        request = urllib.request.Request(asked["address"], headers=headers)  # noqa: S310 - http, and of this pull
        with urllib.request.urlopen(request, timeout=SECONDS) as found:  # noqa: S310 - as above
            found.read(1)
            return {"status": found.status, "code": ""}
    except urllib.error.HTTPError as error:
        with error:
            code = re.search(rb"<Code>(\w{1,64})</Code>", error.read(MAX_ERROR))
        return {"status": error.code, "code": code[1].decode() if code else ""}
    except (OSError, ValueError, http.client.HTTPException) as error:
        return {"status": 0, "code": str(getattr(error, "reason", "") or error)[:200]}


def main() -> None:
    """Answer the message."""
    print(json.dumps(answer(json.loads(sys.stdin.readline()))))


if __name__ == "__main__":
    main()
