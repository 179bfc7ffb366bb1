"""The docker SDK without HTTP under it: its calls and its errors, ten times faster than over a stream."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import docker
import docker.auth
import requests
from docker.utils.proxy import ProxyConfig

from tests.support.sim.carrier import EngineStream
from tests.support.sim.engine import Answer, Request
from vllm_cluster.core.errors import Lost


class _Raw:
    """What the SDK reads of a reply that it takes as a stream."""

    chunked, chunk_left, closed = True, 0, False

    def __init__(self, answer: Answer) -> None:
        self._chunks = list(answer.chunks or [])
        self._rest = io.BytesIO(answer.body)
        self.chunked = answer.chunks is not None

    @property
    def _fp(self) -> _Raw:
        return self

    def read(self, size: int = -1) -> bytes:
        """A whole chunk at a time."""
        if self.chunked:
            return self._chunks.pop(0) if self._chunks else b""
        return self._rest.read(size)

    def close(self) -> None:
        """Nothing is held."""

    release_conn = close


class DirectClient(docker.APIClient):
    """Asks the fake engine under the stream that it would have spoken HTTP over."""

    def __init__(self, *, base_url: str, version: str) -> None:
        self._version, self.base_url, self.timeout = version, base_url, 60
        self._general_configs: dict[str, Any] = {}
        self._auth_configs = docker.auth.AuthConfig({"auths": {"nowhere": {}}})  # empty, it would read files
        self._proxy_configs, self.credstore_env = ProxyConfig(), None
        self._stream: EngineStream | None = None

    def mount(self, _prefix: Any, adapter: Any) -> None:
        self.close()
        self._open, self._before = adapter._pool._open_stream, adapter.before

    def close(self) -> None:
        if self._stream:
            self._stream.close()
            self._stream = None

    def _ask(self, method: str, url: str, params: Mapping[str, Any] | None, data: Any) -> requests.Response:
        self._before(method)
        if self._stream is None or self._stream.ended:
            self._stream = cast(EngineStream, self._open())
        stream = self._stream
        stream.settimeout(self.timeout)
        if stream.ended:
            raise requests.ConnectionError("Remote end closed connection without response")
        if stream.transport.cut:
            raise Lost(stream.transport.host, stream.transport.cut)
        body = data.read() if hasattr(data, "read") else data.encode() if isinstance(data, str) else data or b""
        query = {key: str(value) for key, value in (params or {}).items() if value is not None}
        path = "/" + unquote(urlsplit(url).path).split("/", 2)[2]
        answer = stream.ask(Request(method, path, query, body))
        if answer is not None:
            stream.ended = stream.ended or answer.raw
            return _response(url, answer)
        self._stream = None  # urllib3 keeps none that failed: the next call opens another, or finds no connection
        if not stream.transport.cut and not stream.ended:
            stream.world.clock.sleep(self.timeout)
            raise requests.ReadTimeout("timed out")
        raise requests.ConnectionError(stream.transport.cut or "Remote end closed connection without response")

    def _stream_raw_result(self, response: Any, *_: Any) -> Iterator[bytes]:
        yield response.content

    def _get(self, url: str, params: Any = None, **_: Any) -> Any:
        return self._ask("GET", url, params, None)

    def _post(self, url: str, data: Any = None, params: Any = None, **_: Any) -> Any:
        return self._ask("POST", url, params, data)

    def _put(self, url: str, data: Any = None, params: Any = None, **_: Any) -> Any:
        return self._ask("PUT", url, params, data)

    def _delete(self, url: str, params: Any = None, **_: Any) -> Any:
        return self._ask("DELETE", url, params, None)


def _response(url: str, answer: Answer) -> requests.Response:
    made = requests.Response()
    made.status_code, made.url, made.reason = answer.status, url, "said so"
    made.headers.update(answer.headers)
    made.raw = _Raw(answer)
    if answer.chunks is None and not answer.raw:
        made._content = answer.body
        made._content_consumed = True  # type: ignore[attr-defined]
    return made
