"""`vcluster dashboard` in a real browser, on a cluster that serves, while a rank and a node go and return."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.breaks import root
from tests.support.browser import Browser
from tests.support.hosts import Sandbox
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.deep]

LONG = 300.0
# What a script that got into the page might try: each is a request that must not arrive.
ELSEWHERE = """(async to => {
  window.refused = [];
  document.addEventListener("securitypolicyviolation", event => refused.push(event.effectiveDirective));
  document.body.append(Object.assign(document.createElement("script"), {textContent: "window.got_in = true"}));
  document.body.append(Object.assign(new Image(), {src: to}));
  await fetch(to, {mode: "no-cors"}).catch(() => 0);
})"""
UNKNOWN = "\N{EN DASH}"
REFUSED = {"script-src-elem", "img-src", "connect-src"}
WRITES = "Promise.all(['POST', 'PUT', 'DELETE'].map(method => fetch('data', {method}).then(answer => answer.status)))"
CARD = "#hosts .card[data-host={}]"
BOX = "one.getBoundingClientRect()"
TOO_WIDE = (
    f"[...document.querySelectorAll('body *')].filter(one => {BOX}.right > innerWidth + 1).map(one => one.outerHTML)"
)
TOO_SMALL = f"[...document.querySelectorAll('svg text')].filter(one => {BOX}.height < 9).map(one => one.textContent)"
TILES = "[...document.querySelectorAll('#tiles .card')].map(one => [one.lastChild.data, one.firstChild.innerText])"


@contextmanager
def opened(sandbox: Sandbox) -> Iterator[tuple[Browser, str]]:
    """The page in a browser, and its URL; ends with Ctrl-C, as people end it."""
    process = sandbox.start("dashboard", "--json")
    try:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        with Browser() as browser:
            browser.open(url)
            yield browser, url
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
            assert (process.returncode, errors) == (130, "")
            browser.until(lambda text: "vcluster dashboard has ended" in text, "#phase")
    finally:
        process.kill()
        process.communicate()


def tiles(browser: Browser) -> dict[str, str]:
    """The figures by their names."""
    return dict(browser.run(TILES))


@pytest.mark.cluster("served", leaves="changed")
def test_the_page_shows_a_rank_and_a_node_that_go_and_return(sandbox: Sandbox) -> None:
    hosts = sandbox.vcluster("status", "--json").json()["hosts"]
    gpus = {row["host"]: row["gpus"] for row in hosts}
    with opened(sandbox) as (browser, url):
        browser.until(lambda text: text == "sandbox is up", "#title")
        assert "sandbox/tiny-llama: ready" in browser.text("#phase")
        assert browser.text("#failure") == ""
        until(lambda: all(f"{number} rank" in browser.text(CARD.format(host)) for host, number in gpus.items()), LONG)
        drawn = browser.run("document.querySelector('#topology').textContent")
        assert all(f"{host}{number}/{number} GPUs" in drawn for host, number in gpus.items())
        assert all(" MB/s in, " in browser.text(CARD.format(host)) for host in gpus)
        assert not browser.run("document.querySelectorAll('#topology .bad').length")
        # Figures of a request: tokens, and the time to the first one.
        sandbox.vcluster("complete", "Hello", "--max-tokens", "64").ok()
        until(
            lambda: tiles(browser)["tokens/s out"] not in (UNKNOWN, "0") and "s" in tiles(browser)["TTFT median"], LONG
        )
        assert browser.run("document.querySelector('#charts polyline').points.numberOfItems") > 2

        root(sandbox, "gpu2", "docker exec vcluster-sandbox pkill -9 -f RayWorker")
        browser.until(lambda text: "ready" not in text and "sandbox/tiny-llama: " in text, "#phase")
        failed = browser.until(lambda text: "First failure" in text, "#failure", LONG)
        assert len(failed.splitlines()) > 2, "it has lines of the log"
        assert tiles(browser)["tokens/s out"] == UNKNOWN
        browser.until(lambda text: "sandbox/tiny-llama: ready" in text, "#phase", LONG)
        until(lambda: tiles(browser)["requests running"] == "0", LONG)
        assert "sandbox/tiny-llama: ready" in browser.text("#events"), "it was ready before the page was open"

        root(sandbox, "gpu2", "docker stop -t 0 vcluster-sandbox")
        browser.until(lambda text: "stopped" in text, CARD.format("gpu2"), LONG)
        browser.until(lambda text: text == "sandbox is not up", "#title", LONG)
        assert "gpu2: the node is stopped" in browser.text("#problems")
        assert browser.run("document.querySelectorAll('#topology line.bad').length") == 1
        root(sandbox, "gpu2", "docker start vcluster-sandbox")
        browser.until(lambda text: text == "sandbox is up", "#title", LONG)
        browser.until(lambda text: "sandbox/tiny-llama: ready" in text, "#phase", LONG)
        browser.until(lambda text: text == "", "#problems")
        assert {one.removeprefix(url) for one in browser.asked} <= {"", "data"}
        assert browser.lines == []


@pytest.mark.cluster("served")
def test_it_is_readable_on_a_phone_and_nothing_gets_in_or_out(sandbox: Sandbox) -> None:
    with opened(sandbox) as (browser, url):
        browser.until(lambda text: text == "sandbox is up", "#title")
        for width in (400, 1400):
            browser.width(width)
            until(lambda: browser.run("innerWidth") == width)  # noqa: B023
            assert browser.run(TOO_WIDE) == []
            until(lambda: browser.run(TOO_SMALL) == [])
        assert {one.removeprefix(url) for one in browser.asked} <= {"", "data"}
        assert browser.run("[...document.querySelectorAll('input, form, button, a')].length") == 0
        with socket.create_server(("127.0.0.1", 0)) as elsewhere:
            browser.run(f"{ELSEWHERE}('http://127.0.0.1:{elsewhere.getsockname()[1]}/')")
            until(lambda: set(browser.run("refused")) == REFUSED)
            elsewhere.setblocking(False)
            with pytest.raises(BlockingIOError):
                elsewhere.accept()
        assert browser.run("window.got_in ?? false") is False
        assert browser.run(WRITES) == [501, 501, 501]
