"""An S3 server with faults: moto's, behind what looks at signed addresses and cuts, slows and refuses answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

if TYPE_CHECKING:
    from botocore.config import Config

KEYS = {
    "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE0TESTS000",
    "AWS_SECRET_ACCESS_KEY": "not-a-secret-of-anyone-0123456789abcdefg",
}
PIECE = 1 << 18
_Start = Callable[..., Any]


def _server(address: str, port: int, answer: Callable[..., Iterable[bytes]]) -> Any:
    """A server that prints nothing; what it needs is loaded now, as tests that need none are loaded with this."""
    from werkzeug.serving import WSGIRequestHandler, make_server

    quiet = type("Quiet", (WSGIRequestHandler,), {"log": lambda *_: None})
    return make_server(address, port, answer, threaded=True, request_handler=quiet)


class Bucket:
    """The server, with one bucket; `asked` has method, path and headers of each request, `sent` bytes of objects."""

    def __init__(self, address: str, port: int = 0) -> None:
        self.name = "lab"
        self.asked: list[tuple[str, str, Mapping[str, str]]] = []
        self.sent = 0
        # After so many bytes of an answer it is cut, once; 0: not.
        self.cut = 0
        # In bytes a second of each answer; 0: as fast as it goes.
        self.rate = 0.0
        # So many requests for objects get 503; `refused` makes it 403 for each.
        self.busy, self.refused = 0, False
        # With which status and code a listing is refused.
        self.listing: tuple[int, str] | None = None
        # Whether a part of an object can be asked for.
        self.ranges = True
        # Signed addresses are this much older than they are.
        self.older = timedelta()
        # Called once an answer has begun.
        self.begun: Callable[[], None] = lambda: None
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

        self._app = DomainDispatcherApplication(create_backend_app)
        self._server = _server(address, port, self._answer)
        self.url = f"http://{address}:{self._server.port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def environment(self) -> dict[str, str]:
        """What a laptop has to use it."""
        nowhere = {"AWS_CONFIG_FILE": "/nowhere", "AWS_SHARED_CREDENTIALS_FILE": "/nowhere"}
        return {**KEYS, **nowhere, "AWS_ENDPOINT_URL": self.url, "AWS_DEFAULT_REGION": "us-east-1"}

    def signing(self, config: Config | None = None) -> Any:
        """A client of it."""
        import boto3

        keys = {"aws_access_key_id": "k", "aws_secret_access_key": "s", "region_name": "us-east-1"}
        return boto3.client("s3", endpoint_url=self.url, config=config, **keys)

    @property
    def client(self) -> Any:
        """A client that signs no addresses."""
        return self.signing()

    def put(self, files: Mapping[str, bytes], folder: str = "mine/") -> None:
        """Put objects below a folder."""
        client = self.client
        for name, content in files.items():
            client.put_object(Bucket=self.name, Key=f"{folder}{name}", Body=content)

    def close(self) -> None:
        """End it, with its objects."""
        from moto.moto_api._internal.models import moto_api_backend

        self._server.shutdown()
        self._server.server_close()
        moto_api_backend.reset()

    def _answer(self, environ: dict[str, Any], start: _Start) -> Iterable[bytes]:
        query = parse_qs(environ.get("QUERY_STRING", ""))
        method, signed = environ["REQUEST_METHOD"], "X-Amz-Signature" in query
        headers = {name[5:]: value for name, value in environ.items() if name.startswith("HTTP_")}
        self.asked.append((method, environ["PATH_INFO"], headers))
        if wrong := self._wrong(query) if signed else self.listing if "list-type" in query else None:
            status, code = wrong
            body = f"<?xml version='1.0'?><Error><Code>{code}</Code></Error>".encode()
            start(f"{status} Refused", [("Content-Length", str(len(body)))])
            return [body]
        if not self.ranges:
            environ.pop("HTTP_RANGE", None)
        found: Iterable[bytes] = self._app(environ, start)
        return self._sending(found) if signed and method == "GET" else found

    def _wrong(self, query: Mapping[str, list[str]]) -> tuple[int, str] | None:
        made = datetime.strptime(query["X-Amz-Date"][0], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        lasts = timedelta(seconds=int(query["X-Amz-Expires"][0]))
        if datetime.now(UTC) > made - self.older + lasts:
            return 403, "AccessDenied</Code><Message>Request has expired</Message><Code>AccessDenied"
        if self.refused:
            return 403, "AccessDenied"
        if self.busy:
            self.busy -= 1
            return 503, "SlowDown"
        return None

    def _sending(self, found: Iterable[bytes]) -> Iterator[bytes]:
        passed = 0
        for content in found:
            for at in range(0, len(content), PIECE):
                piece = content[at : at + PIECE]
                if self.cut and passed + len(piece) > self.cut:
                    self.cut = 0
                    raise ConnectionAbortedError("cut by the test")
                if self.rate:
                    time.sleep(len(piece) / self.rate)
                passed += len(piece)
                self.sent += len(piece)
                yield piece
                self.begun()


@contextmanager
def bucket(address: str = "127.0.0.1", files: Mapping[str, bytes] = {}, port: int = 0) -> Iterator[Bucket]:
    """Serve a bucket with these objects."""
    made = Bucket(address, port)
    try:
        made.client.create_bucket(Bucket=made.name)
        made.put(files)
        yield made
    finally:
        made.close()
