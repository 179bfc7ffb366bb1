"""Asking the endpoint, and the answer that one vLLM process alone would give."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from tests.support.hosts import Sandbox

MODEL = "sandbox/tiny-llama"
PROMPT = "The cluster is one thing, or it is not"
TOKENS = 32

# Runs in a container of the image that serves, on one process, with nothing of vcluster.
ALONE = """
import json, sys
from vllm import LLM, SamplingParams
prompt, tokens, dtype = sys.argv[1], int(sys.argv[2]), sys.argv[3]
llm = LLM(model="sandbox/tiny-llama", dtype=dtype)
(answer,) = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=tokens, logprobs=1))
(output,) = answer.outputs
chosen = [row[token].logprob for token, row in zip(output.token_ids, output.logprobs)]
print("ANSWER " + json.dumps({"text": output.text, "logprobs": chosen}))
"""


class Alone(NamedTuple):
    """What one vLLM process answers at temperature 0, and the logarithm of each token's probability."""

    text: str
    logprobs: list[float]


def alone(sandbox: Sandbox, dtype: str) -> Alone:
    """The answer of one vLLM process at temperature 0."""
    image = "vcluster-sandbox/vllm-cpu:0.32.0"
    where = ["--volume", "/models:/models:ro", "--env", "HF_HOME=/models", "--env", "HF_HUB_OFFLINE=1"]
    argv = ["run", "--rm", "--network", "none", "--shm-size", "1g", *where, "--entrypoint", "python3", image]
    said = sandbox.docker("gpu1", *argv, "-c", ALONE, PROMPT, str(TOKENS), dtype)
    (answer,) = [line.removeprefix("ANSWER ") for line in said.splitlines() if line.startswith("ANSWER ")]
    return Alone(**json.loads(answer))


def serving(sandbox: Sandbox) -> str | None:
    """The phase of what is served."""
    found = sandbox.vcluster("status", "--json").json()["serving"]
    return str(found["phase"]) if found else None


@contextmanager
def tunnel(sandbox: Sandbox) -> Iterator[str]:
    """The endpoint's URL on this machine, as long as it is needed."""
    process = sandbox.start("endpoint", "--tunnel", "0", "--json")
    try:
        assert process.stdout is not None
        for line in process.stdout:
            event = json.loads(line)
            if "url" in event:
                yield event["url"]
                break
        else:
            raise AssertionError("the tunnel ended before it was open")
    finally:
        process.terminate()
        process.communicate(timeout=30)


def complete(url: str, key: str, **changes: object) -> str:
    """The text that the endpoint answers at temperature 0."""
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0, **changes}
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=120) as reply:
        return str(json.load(reply)["choices"][0]["text"])


def status_code(url: str, key: str | None = None) -> int:
    """How the endpoint answers a GET."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


class Asker:
    """A client that asks once and again, beside what happens to the endpoint."""

    def __init__(self, url: str, key: str, models: Sequence[str]) -> None:
        self.answered, self.later, self.wrong = 0, 0, list[str]()
        self._url, self._key, self._models = url, key, models
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Asker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._over.wait(0.5):
            number += 1
            try:
                complete(self._url, self._key, model=self._models[number % len(self._models)], max_tokens=1)
                self.answered += 1
            except urllib.error.HTTPError as error:
                with error:
                    if error.code == 503 and error.headers["Retry-After"]:
                        self.later += 1
                    elif error.code != 404:  # of two names the one that is not served
                        self.wrong.append(f"HTTP {error.code}: {error.read()[:500]!r}")
            except OSError as error:
                self.wrong.append(f"{type(error).__name__}: {error}")
