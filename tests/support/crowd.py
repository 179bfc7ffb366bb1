"""Clients that stream so many requests a second with OpenAI's own library, and what became of each."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType

import openai

# As many as may wait at once: with less than a second an answer, ten a second need no more.
OPEN = 32


@dataclass
class Crowd:
    """While it is entered `a_second` requests begin; `retries` are those of the library, whose default is two."""

    url: str
    key: str
    model: str
    a_second: float = 10.0
    retries: int = 0
    tokens: int = 8
    outcomes: Counter[str] = field(default_factory=Counter)
    _over: threading.Event = field(default_factory=threading.Event)
    _counting: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> Crowd:
        self._client = openai.OpenAI(
            base_url=f"{self.url}/v1", api_key=self.key, max_retries=self.retries, timeout=120.0
        )
        self._thread = threading.Thread(target=self._begin)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()
        self._client.close()

    @property
    def wrong(self) -> dict[str, int]:
        """What is neither an answer nor 503 with Retry-After."""
        return {what: count for what, count in self.outcomes.items() if what not in ("answered", "later")}

    def _begin(self) -> None:
        began = time.monotonic()
        with ThreadPoolExecutor(OPEN) as pool:
            for number in itertools.count():
                if self._over.wait(max(0.0, began + number / self.a_second - time.monotonic())):
                    break
                pool.submit(self._one, number)
            # What waits for a free client has not been asked.
            pool.shutdown(cancel_futures=True)

    def _one(self, number: int) -> None:
        outcome = self._ask(f"{number} The cluster is one thing")
        with self._counting:
            self.outcomes[outcome] += 1

    def _ask(self, prompt: str) -> str:
        """One request; "cut" is one that ended within its answer."""
        begun = False
        try:
            answer = self._client.completions.create(
                model=self.model, prompt=prompt, max_tokens=self.tokens, stream=True
            )
            for piece in answer:
                begun, last = True, piece
            return "answered" if begun and last.choices[0].finish_reason else "cut"
        except openai.APIStatusError as error:
            later = error.status_code == 503 and error.response.headers.get("Retry-After")
            return "later" if later else f"HTTP {error.status_code}"
        except openai.APIConnectionError as error:
            return "cut" if begun else f"{type(error.__cause__ or error).__name__} before the first byte"
        except openai.APIError:
            return "ended by an error"
