"""What the front refuses by itself, and how it answers then: a head that it does not take, a model not served."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

from aiohttp import web

from vllm_cluster.serving.node.front_settings import MAX_BODY
from vllm_cluster.serving.node.key_check import Refusal
from vllm_cluster.wire.front import FrontDeployment

# OpenAI's Python client does not wait longer, or than 120 s where it is new: it gives up within seconds.
MAX_WAIT = 60
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
# Of models in an error, and of characters of a name there.
MAX_NAMES, MAX_SHOWN = 20, 200


class FrontRefusal(Exception):
    """The front answers in the model's place."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.code)
        self.refusal = refusal


def judge(request: web.BaseRequest) -> None:
    """Refuse a head that the parser has taken.

    Raises:
        FrontRefusal: what it asks for is not done here.
    """
    target, expected = request.raw_path, request.headers.getall("Expect", [])
    if (request.version.major, request.version.minor) not in ((1, 0), (1, 1)):
        raise FrontRefusal(Refusal(505, "http_version", "send HTTP/1.1"))
    if request.method not in METHODS:
        raise FrontRefusal(Refusal(405, "method_not_allowed", "this method is not known here"))
    if not target.startswith("/") or "#" in target:
        raise FrontRefusal(Refusal(400, "bad_request", "the target must be a path"))
    codings = [one.strip().lower() for one in request.headers.getall("Transfer-Encoding", [])]
    old = request.version.minor == 0
    if codings and (codings != ["chunked"] or old or "Content-Length" in request.headers):
        raise FrontRefusal(Refusal(400, "bad_request", "the only Transfer-Encoding is chunked"))
    # HTTP/2 is offered, and not asked for: Java's client does so in its first request.
    if any(one.strip().lower() != "h2c" for one in request.headers.getall("Upgrade", [])):
        words = "send plain HTTP/1.1 without Upgrade: this API has no websocket"
        raise FrontRefusal(Refusal(501, "upgrade_not_supported", words))
    if (request.content_length or 0) > MAX_BODY:
        raise FrontRefusal(too_large())
    if any(one.lower() != "100-continue" for one in expected):
        raise FrontRefusal(Refusal(417, "expectation_failed", "only 100-continue can be expected"))


def too_large() -> Refusal:
    """The body is."""
    return Refusal(413, "request_too_large", f"the body has more than {MAX_BODY} bytes")


def answer(refusal: Refusal, *, close: bool) -> web.Response:
    """An answer of the front itself."""
    made = web.Response(status=refusal.status, body=refusal.body(), content_type="application/json")
    if refusal.retry_after:
        made.headers["Retry-After"] = str(refusal.retry_after)
    if refusal.status == HTTPStatus.UNAUTHORIZED:
        made.headers["WWW-Authenticate"] = "Bearer"
    return bare(made, close=close)


def bare(made: web.Response, *, close: bool = False) -> web.Response:
    """Without the name of what has written it."""
    made.headers["Server"] = "vcluster"
    if close:
        made.force_close()
    return made


def not_found(model: str, known: Sequence[str]) -> Refusal:
    """The model is none of those that are served."""
    shown = ", ".join(f"`{name[:MAX_SHOWN]}`" for name in known[:MAX_NAMES]) or "none"
    # A replica may list a million adapters.
    shown += f" and {len(known) - MAX_NAMES} more" if len(known) > MAX_NAMES else ""
    return Refusal(404, "model_not_found", f"the model `{model[:MAX_SHOWN]}` is not served here; served: {shown}")


def not_ready(deployment: FrontDeployment | None) -> Refusal:
    """No replica is ready."""
    if deployment is None:
        return Refusal(503, "no_model", "no model is served: run vcluster serve MODEL", 5)
    phase = deployment.phase or "no replica is ready"
    seconds = deployment.retry_after
    message = f"the model `{deployment.name}` is not ready: {phase}; try again in {seconds} s"
    return Refusal(503, "model_not_ready", message, min(seconds, MAX_WAIT))


def unhealthy(seconds: int | None) -> Refusal:
    """Nothing is ready, for those who have not shown the key."""
    return Refusal(503, "not_ready", "no model is ready", min(seconds or 5, MAX_WAIT))
