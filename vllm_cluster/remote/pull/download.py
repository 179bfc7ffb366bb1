"""Downloads from a hub on the one host that reaches it, with the image's own huggingface_hub."""

from __future__ import annotations

from collections.abc import Callable

from huggingface_hub import constants, hf_hub_url
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

from vllm_cluster.remote.pull.fetching import CHUNK, Fetching
from vllm_cluster.remote.pull.partial import Partial
from vllm_cluster.remote.pull.plan import HostPlan, PulledFile, PullError
from vllm_cluster.remote.pull.store import Store

_FINAL = (401, 403, 404)
# It has no byte where the list has more: the file is shorter than listed.
_BEYOND = 416


class Download(Fetching):
    """One download from a hub."""

    def __init__(self, plan: HostPlan, store: Store, token: str | None) -> None:
        super().__init__(plan, store)
        self._token = token

    def get(self, file: PulledFile, stream: Partial, begin: int) -> None:
        """Append what the hub sends from this byte on.

        Raises:
            PullError: the hub does not give it, or has another size.
        """
        constants.DOWNLOAD_CHUNK_SIZE = CHUNK
        url = hf_hub_url(self._plan.model, file.path, revision=self._plan.commit, endpoint=self._plan.endpoint)
        # Its expected size is for its own messages, and makes it refuse files above 50 GB; the real one is in the plan.
        send: Callable[..., None] = http_get
        try:
            send(url, stream, resume_size=begin, headers=build_hf_headers(token=self._token or False))
        except Exception as error:
            if isinstance(error, PullError):
                raise
            code = _code(error)
            if code == _BEYOND:
                self._store.partial(file).unlink(missing_ok=True)
                raise PullError(f"{file.path}: {self._plan.endpoint} sends another size than it lists") from error
            if code in _FINAL:
                raise PullError(f"{file.path}: {self.words(error)}") from error
            raise

    def words(self, error: Exception) -> str:
        """What went wrong: behind the first line are addresses of objects, signed URLs and the request's id."""
        if code := _code(error):
            return f"the hub answers {code}"
        return super().words(error).split("(Request ID")[0].strip()


def _code(error: Exception) -> int | None:
    found = getattr(getattr(error, "response", None), "status_code", None)
    return found if isinstance(found, int) else None
