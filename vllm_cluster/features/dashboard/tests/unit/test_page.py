"""What the page of the dashboard is given, and that it needs nothing from elsewhere."""

from __future__ import annotations

import errno
import gc
import json
import re
import socket
import weakref
from dataclasses import replace
from typing import Any

import pytest

from tests.support.browser import Browser
from tests.support.json_schemas import validator
from tests.support.sim import make
from tests.support.views import HEAD, LOST, MODEL, PAIR, WORKER, serving, view
from vllm_cluster.cli.app import app
from vllm_cluster.features.dashboard import verb
from vllm_cluster.features.dashboard.render import MAX_EVENTS, MAX_MESSAGE, MAX_POINTS, DashboardFeed, Seen, changes
from vllm_cluster.kernel.laptop import STANDARD_OUTPUT
from vllm_cluster.kernel.shell_line import Pasted
from vllm_cluster.kernel.terminal.session import Session
from vllm_cluster.serving.status.local_page import LocalPage
from vllm_cluster.serving.status.watch import View
from vllm_cluster.wire.status import ServeFailure


def test_a_port_in_use_names_the_option_for_another(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Session, "load", lambda _: make.inventory(1))
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SystemExit) as end:
        port = taken.getsockname()[1]
        words = ["dashboard", "--port", str(port)]
        monkeypatch.setattr("sys.argv", ["vcluster", *words])
        app(words, prog_name="vcluster")
    assert end.value.code == 2
    assert capsys.readouterr().err.splitlines() == [
        f"error: cannot listen on 127.0.0.1:{port}: Address already in use",
        "fix: vcluster dashboard --port 0",
    ]


def test_a_closed_standard_output_ends_it_without_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `vcluster dashboard --json | true` writes it."""

    def closed(*_: object) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe", STANDARD_OUTPUT)

    monkeypatch.setattr(Session, "load", lambda _: make.inventory(1))
    monkeypatch.setattr(Session, "emit", closed)
    with pytest.raises(SystemExit) as end:
        verb.dashboard(as_json=True)
    assert (end.value.code, *capsys.readouterr()) == (1, "", "")


def test_a_page_that_is_opened_late_has_what_was_before() -> None:
    feed = DashboardFeed(lambda fix: Pasted(f"{fix} -i a.yaml" if fix else ""))
    assert json.loads(feed.data()[1]) == {}
    feed.show(view(HEAD, WORKER, serve=serving("loading")))
    feed.show(view(HEAD, LOST, serve=serving(), model=MODEL))
    found = json.loads(feed.data()[1])
    assert found["view"]["model"]["requests_running"] == 12
    assert found["view"]["hosts"][1]["fix"] == "ssh gpu2 -i a.yaml"
    assert [point.get("generated_tokens_per_second") for point in found["points"]] == [None, 8.26]
    assert [point["gpu_percent"] for point in found["points"]] == [93.5, 93.5]
    texts = [event["message"] for event in found["events"]]
    assert texts == ["org/model: ready", "gpu2: unreachable: no keepalive reply for 15 s", "lab is not up"]


def keys_of(schema: Any) -> set[str]:
    """The keys of an object, also where there may be none in its place."""
    return set(schema.get("properties", ())).union(*map(keys_of, schema.get("anyOf", ())))


def test_the_page_reads_keys_that_are_there() -> None:
    """A key that is renamed shows as `undefined` in a browser, and as an error nowhere."""
    page = DashboardFeed(Pasted).page()[1].decode()
    top: Any = validator("watch").schema
    parts = {"serve": "serving", "model": "model"}
    objects = {"view": top, **{name: top["properties"][key] for name, key in parts.items()}}
    objects["host"] = top["properties"]["hosts"]["items"]
    objects["replica"] = top["properties"]["replicas"]["items"]
    objects["now"] = top["properties"]["replica_loads"]["additionalProperties"]
    objects["load"] = top["properties"]["loads"]["additionalProperties"]
    for name, schema in objects.items():
        read = set(re.findall(rf"\b{name}\??\.(\w+)", page))
        assert read and read <= keys_of(schema), name


# fault: features/dashboard/render.py: "message": message[:MAX_MESSAGE]} → "message": message}
def test_a_head_with_long_words_fills_no_memory() -> None:
    """A detail of 60,000 characters, another each time, took 266 MB within minutes."""
    feed = DashboardFeed(Pasted)
    for number in range(MAX_EVENTS):
        one = replace(serving("loading"), detail="\U0001f600" * 60_000, attempt=number)
        feed.show(view(HEAD, serve=one))
    assert sum(len(str(event["message"])) for event in feed._events) <= MAX_EVENTS * MAX_MESSAGE


# fault: features/dashboard/render.py: deque(maxlen=MAX_POINTS) → deque()
def test_what_it_keeps_is_bounded() -> None:
    feed = DashboardFeed(Pasted)
    for number in range(MAX_POINTS + 5):
        feed.show(view(HEAD if number % 2 else replace(HEAD, state="stopped"), serve=serving()))
    found = json.loads(feed.data()[1])
    assert (len(found["points"]), len(found["events"])) == (MAX_POINTS, MAX_EVENTS)


# fault: features/dashboard/render.py: self._before = Seen.of(view) → self._before, self._held = Seen.of(view), view
def test_it_keeps_no_view() -> None:
    """Each has all texts of the head's status, and there is one more while the next is read."""
    feed, shown = DashboardFeed(Pasted), view(HEAD, serve=serving())
    feed.show(shown)
    left = weakref.ref(shown)
    del shown
    gc.collect()
    assert left() is None


@pytest.mark.parametrize(
    ("before", "now", "texts"),
    [
        (None, view(HEAD, serve=serving()), []),
        (view(HEAD, serve=serving()), view(HEAD, serve=serving()), []),
        (view(HEAD, serve=serving()), view(HEAD), ["no model is served"]),
        (view(HEAD), view(HEAD, serve=serving("loading")), ["org/model is served", "org/model: loading"]),
        (
            view(HEAD, serve=serving()),
            view(HEAD, serve=replace(serving("backoff"), detail="restarting in 2 s")),
            ["org/model: backoff: restarting in 2 s"],
        ),
        (
            view(HEAD, serve=PAIR[0], several=(PAIR[0], replace(PAIR[1], phase="ready"))),
            view(HEAD, serve=PAIR[0], several=PAIR),
            ["org/model replica 1: loading"],
        ),
    ],
)
def test_what_counts_as_an_event(before: View | None, now: View, texts: list[str]) -> None:
    assert list(changes(Seen.of(before) if before else None, now)) == texts


def test_the_page_is_self_contained_and_makes_no_markup_of_what_hosts_write() -> None:
    kind, body = DashboardFeed(Pasted).page()
    text = body.decode()
    assert kind.startswith("text/html")
    assert (
        re.findall(r"(?:src|href)=|@import|url\(|innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", text) == []
    )
    # The namespace of SVG is a name and no address.
    assert re.findall(r"https?://[^\"']+", text) == ["http://www.w3.org/2000/svg"]
    assert len(re.findall(r"<script|<style", text)) == text.count('nonce="@NONCE@"') == 2


# fault: features/dashboard/dashboard.js: const load = loadOf(host.host), → const load = view.loads[host.host],
# fault: features/dashboard/dashboard.js: hostCard(host, of(view.loads)(host.host)) → hostCard(host, view.loads[host.host])
# fault: features/dashboard/dashboard.js: Object.hasOwn(rows, name) ? rows[name] : undefined → rows[name]
def test_no_row_is_looked_up_by_a_name_that_each_object_has() -> None:
    """A host called `constructor` had a load that was a function, and the page drew nothing any more."""
    script = DashboardFeed(Pasted).page()[1].decode().partition("<script")[2]
    by_name = re.findall(r"(?:\.|\b)(?:view|loads|replica_loads|rows)\[[a-z][\w.]*\]", script)
    assert by_name == ["rows[name]"]
    assert "Object.hasOwn(rows, name) ? rows[name]" in script


# fault: features/dashboard/dashboard.js: `this page cannot draw what it was given → `vcluster dashboard has ended
def test_what_cannot_be_drawn_does_not_end_the_program() -> None:
    script = DashboardFeed(Pasted).page()[1].decode().partition("async function again()")[2]
    asked, drawn = script.split("draw(last", 1)
    assert "has ended" in asked and "has ended" not in drawn
    assert "cannot draw" in drawn


def test_health_failure_and_hosts_come_before_the_charts() -> None:
    page = DashboardFeed(Pasted).page()[1].decode()
    ids = re.findall(r'id="([a-z-]+)"', page)
    assert ids[: ids.index("charts") + 1] == [
        *("title", "phase", "changed", "last-failure", "problems", "overview", "tiles", "replicas", "charts"),
    ]


def luminance(color: str) -> float:
    """How light a colour is, by WCAG: 0 to 1."""
    whole = "".join(digit * 2 for digit in color) if len(color) == 3 else color
    parts = [int(whole[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("place", [0, 1], ids=["light", "dark"])
def test_every_colour_of_text_is_readable_on_its_background(place: int) -> None:
    """By WCAG AA, 4.5 to 1."""
    page = DashboardFeed(Pasted).page()[1].decode()
    rule = re.findall(r":root \{(.*?)\}", page, re.DOTALL)[place]
    colors = dict(re.findall(r"(background|color|--[a-z]+): #([0-9a-f]+)", rule))
    assert colors.keys() == {"background", "color", "--muted", "--bad", "--good", "--line"}
    ground = luminance(colors.pop("background"))
    for name, color in colors.items():
        light, dark = sorted((ground, luminance(color)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, name


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), [(360, 740), (1280, 800)])
def test_a_failure_and_the_hosts_are_seen_without_a_scroll(width: int, height: int) -> None:
    """In a real browser; nothing is wider than the window, and every picture has a name."""
    failed = ServeFailure(1_799_999_000.0, "Ray has lost 10.0.0.2", tuple(f"line {n}" for n in range(30)))
    feed = DashboardFeed(Pasted)
    for phase in ("ready", "loading"):
        feed.show(view(HEAD, LOST, serve=replace(serving(phase), first_failure=failed, failure=failed)))
    with LocalPage({"": feed.page, "data": feed.data}) as page, Browser() as browser:
        browser.width(width, height)
        browser.open(page.url)
        browser.until(str.strip, "#overview", seconds=30)
        assert "last failure " in (failure := browser.text("#last-failure")) and failure.endswith(
            "Ray has lost 10.0.0.2"
        )
        assert browser.text("#overview tr:nth-child(3)").split()[:2] == ["gpu2", "unreachable"]
        box = "document.getElementById('overview').getBoundingClientRect()"
        assert browser.run(f"{box}.bottom < innerHeight && {box}.right <= innerWidth")
        assert browser.run("document.documentElement.scrollWidth <= innerWidth")
        assert browser.run("[...document.querySelectorAll('svg')].every(one => one.getAttribute('aria-label'))")
        assert browser.lines == []
