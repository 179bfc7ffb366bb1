"""P36: a request that cannot be served, while the model that is served is in use."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from tests.support.attack import attack
from tests.support.endpoint import MODEL, complete, tunnel
from tests.support.hosts import Sandbox
from tests.support.served import BROKEN, cut_off_weights, ready_since

pytestmark = [pytest.mark.e2e, pytest.mark.promise, pytest.mark.deep]

FILE = "/tmp/undoes.yaml"
# What is asked for, and what the refusal has.
BAD = [
    ("a typo in the model", ("sandbox/tiny-lama",), f"did you mean {MODEL}?"),
    ("a path that is none", ("a/b/c",), "it is neither a folder nor ORG/NAME"),
    ("a folder that is not there", ("./foo",), "there is no such folder in the node"),
    ("a typo in a flag", (MODEL, "--", "--max-model-ln", "64"), "unrecognized arguments: --max-model-ln"),
    ("a second model", (MODEL, "--", "sandbox/other"), "unrecognized arguments: sandbox/other"),
    ("a context beyond the model's", (MODEL, "--", "--max-model-len", "100000"), "max_model_len (100000) is greater"),
    ("a layout that its heads do not allow", (MODEL, "--tp", "3", "--pp", "1"), "TP=3 does not divide its 4"),
    ("a file of flags that is not there", (MODEL, "--", "--config", "/n.yml"), "No such file or directory: '/n.yml'"),
    ("a file of flags that undoes ours", (MODEL, "--", "--config", FILE), "--nnodes is set by vcluster"),
]


@dataclass
class Users:
    """How the requests went that were made meanwhile."""

    good: int = 0
    bad: list[str] = field(default_factory=list)


@contextmanager
def users(cluster: Sandbox) -> Iterator[Users]:
    """Someone asks the endpoint all the time."""
    seen, over = Users(), threading.Event()
    key = cluster.vcluster("endpoint", "--key").ok().out.strip()

    def ask(url: str) -> None:
        while not over.is_set():
            try:
                complete(url, key, max_tokens=4)
                seen.good += 1
            except OSError as error:
                seen.bad.append(repr(error))

    with tunnel(cluster) as url:
        thread = threading.Thread(target=ask, args=(url,))
        thread.start()
        try:
            yield seen
        finally:
            over.set()
            thread.join()


@pytest.mark.cluster("serving")
def test_what_can_be_known_is_refused_before_the_model_is_touched(cluster: Sandbox) -> None:
    cluster.docker("gpu1", "exec", "vcluster-sandbox", "sh", "-c", f"echo 'nnodes: 2' >{FILE}")
    since = ready_since(cluster)
    # Where the node's container was made a moment ago, the parser of the image's vLLM is still being imported.
    assert "refuses these flags" in cluster.vcluster("serve", MODEL, "--", "--no-such-flag").err
    slowest = 0.0
    with attack("P36", "serve with a typo in model, path, flag, length, layout, file of flags, under load") as measured:
        with users(cluster) as seen:
            for what, argv, text in BAD:
                began = time.monotonic()
                refused = cluster.vcluster("serve", *argv)
                slowest = max(slowest, time.monotonic() - began)
                assert (refused.code, text in refused.err) == (3, True), (what, refused.err)
        assert (seen.bad, ready_since(cluster)) == ([], since)
        assert seen.good
        asked = f"{seen.good} requests meanwhile, none failed"
        measured.figure = f"{len(BAD)} refused with the reason, the slowest after {slowest:.1f} s; {asked}"


@pytest.mark.cluster("serving")
def test_what_shows_only_at_the_load_brings_the_last_ready_model_back(cluster: Sandbox) -> None:
    cut_off_weights(cluster)
    with attack("P36", "weights that are cut off, which only the load shows") as measured:
        failed = cluster.vcluster("serve", "--yes", BROKEN, "--", "--dtype", "float32")
        assert failed.code == 1, failed.err
        assert f"{BROKEN} cannot be served" in failed.err
        assert f"{MODEL} is served again, after " in failed.err
        back = failed.err.partition(f"{MODEL} is served again, after ")[2].split()[0]
        assert ready_since(cluster) is not None
        key = cluster.vcluster("endpoint", "--key").ok().out.strip()
        with tunnel(cluster) as url:
            assert complete(url, key)
        measured.figure = f"{MODEL} was back by itself, after {back} s without it; exit 1 with both reasons"
    last = cluster.vcluster("status", "--history", "--json").ok().json()["entries"][-1]
    assert last["operations"][0].startswith(f"serve {BROKEN} -- --dtype float32 (TP=")
    assert last["result"] == "back"
