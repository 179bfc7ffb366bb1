"""What `status --watch` shows of a cluster in any state, at any size, to people and to programs."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest

from tests.support.json_schemas import validate
from tests.support.views import GPUS, HEAD, LOAD, LOST, MODEL, PAIR, WORKER, serving, view
from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.shell_line import Pasted
from vllm_cluster.kernel.terminal.table import cut
from vllm_cluster.serving.status import verb
from vllm_cluster.serving.status.counters import ModelLoad
from vllm_cluster.serving.status.load import GpuLoad
from vllm_cluster.serving.status.render_watch import Lines, Picture, line, picture, writer
from vllm_cluster.serving.status.watch import View


def shown(found: View, width: int, height: int = 50) -> list[str]:
    """The lines of a picture."""
    lines = [text for text, _ in picture(found, width, height, Pasted)]
    assert max(map(len, lines)) <= width
    assert len(lines) <= height
    return lines


@pytest.mark.parametrize(
    ("term", "terminal", "kind"),
    [("xterm", True, Picture), ("dumb", True, Lines), ("unknown", True, Lines), ("xterm", False, Lines)],
)
def test_a_terminal_that_cannot_be_drawn_on_gets_lines(
    term: str, terminal: bool, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    assert type(writer(as_json=False, color="auto", paste=Pasted)) is kind


# fault: serving/status/render_watch.py: if len(view.replicas) + len(status.hosts) < room: → if view.replicas:
@pytest.mark.parametrize("width", [40, 80, 200])
def test_each_of_several_replicas_has_a_row_where_there_is_room(width: int) -> None:
    loads = {0: MODEL, 1: replace(MODEL, requests_running=1, kv_cache_percent=None)}
    found = view(HEAD, WORKER, serve=PAIR[0], several=PAIR, model=MODEL, replicas=loads)
    rows = [text for text in shown(found, width) if text.startswith("  replica ") and "tokens/s" in text]
    whole = [
        "  replica 0: tokens/s 1,843 in 8.3 out · 12 running, 3 waiting · KV cache 71%",
        "  replica 1: tokens/s 1,843 in 8.3 out · 1 running, 3 waiting",
    ]
    assert rows == [cut(text, width) for text in whole]
    assert "org/model: degraded: 1 of 2 replicas" in "\n".join(shown(found, width))
    low = shown(view(HEAD, LOST, serve=PAIR[0], several=PAIR, model=MODEL, replicas=loads), 80, 12)
    assert not [text for text in low if "tokens/s" in text and "replica" in text]
    assert any("no keepalive reply" in text for text in low)


# fault: serving/status/render_watch.py: f"{one.name} " * (len(models) > 1) → ""
def test_of_several_models_each_row_names_its_own() -> None:
    other = replace(PAIR[1], name="org/other")
    found = view(HEAD, WORKER, serve=PAIR[0], several=(PAIR[0], other), model=MODEL, replicas={0: MODEL, 1: MODEL})
    rows = [text.partition(":")[0] for text in shown(found, 200) if text.startswith("  ") and "tokens/s" in text]
    assert rows == ["  org/model replica 0", "  org/other replica 1"]
    assert "org/model: ready  org/other: loading  tokens/s" in line(found)


# fault: serving/status/render_watch.py: for row in fitted(plain(text), width) → for row in (text,)
@pytest.mark.promise("P23")
@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_picture_fits_its_terminal(width: int) -> None:
    lines = shown(view(HEAD, LOST, serve=serving(), model=MODEL), width)
    text = "\n".join(lines)
    rows = {line.split()[0]: line.split() for line in lines if line}
    assert rows["gpu1"][:2] == ["gpu1", "running"]
    assert "94%" in rows["gpu1"], "the mean of eight GPUs"
    assert rows["gpu2"][1] == "unreachable"
    assert "gpu2: no keepalive reply for 15 s" in text
    for part in ("tokens/s 1,843 in 8.3 out", "12 running, 3 waiting", "KV cache 71%", "prefix hits 42%"):
        assert part in text
    assert "TTFT 116 ms (p95 2.4 s)" in text
    assert "TPOT 22 ms (p95 65 ms)" in text
    assert "http://10.0.0.1:8000/v1" in text, "a URL is not cut"
    assert ("4000/5600 W" in text) is (width >= 80)
    assert ("100.0/2048 GiB" in text) is (width == 200)
    assert ("MB/S IN/OUT" in text and "1.5/250" in text) is (width == 200)


def test_each_gpu_has_a_row_where_there_is_room() -> None:
    whole = shown(view(HEAD, WORKER, serve=serving(), model=MODEL), 80, 50)
    assert sum(line.strip().startswith("GPU ") for line in whole) == 16
    assert any("67°C" in line and "500/700 W" in line for line in whole)
    low = shown(view(HEAD, WORKER, LOST, serve=serving(), model=MODEL), 80, 16)
    assert not [line for line in low if line.strip().startswith("GPU ")]
    assert any("no keepalive reply" in line for line in low), "a problem goes before single GPUs"


def test_a_gpu_that_is_lost_is_reported() -> None:
    gone = GpuLoad(3, "NVIDIA H100", "GPU is lost", None, None, None, None, None, None)
    lines = shown(view(HEAD, loads={"gpu1": replace(LOAD, gpus=(*GPUS[:3], gone))}), 80)
    assert any(line.split() == ["GPU", "3", "error"] for line in lines)
    lines = shown(view(HEAD, loads={"gpu1": replace(LOAD, gpus=(), error="its GPUs cannot be read: no driver")}), 80)
    assert "gpu1: its GPUs cannot be read: no driver" in lines


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_start_has_its_phase_and_no_rates(width: int) -> None:
    text = "\n".join(shown(view(HEAD, WORKER, serve=serving("loading")), width))
    assert "org/model: loading" in text
    assert "tokens/s" not in text


def test_what_a_host_sends_steers_no_terminal() -> None:
    evil = replace(HEAD, problem="\x1b[2Jgone\x07\r")
    for text in (*shown(view(evil, metrics_error="\x1b]0;x\x07no"), 80), line(view(evil))):
        assert "\x1b" not in text
        assert "\x07" not in text


def test_a_line_for_pipes(capsys: pytest.CaptureFixture[str]) -> None:
    with Lines(as_json=False, paste=Pasted) as lines:
        lines.show(view(HEAD, LOST, serve=serving(), model=MODEL))
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    for part in (
        "lab is not up: ?/16 GPUs",
        "org/model: ready",
        "tokens/s 1,843 in",
        "gpu2: unreachable: no keepalive",
    ):
        assert part in out
    assert "org/model: degraded: 1 of 2 replicas  " in line(view(HEAD, serve=PAIR[0], several=PAIR, model=MODEL))


@pytest.mark.parametrize(
    "found",
    [
        view(HEAD, LOST, serve=serving(), model=MODEL),
        view(HEAD, serve=serving("loading"), metrics_error="timed out"),
        view(HEAD, loads={"gpu1": replace(LOAD, cpu_percent=None, gpus=())}, model=ModelLoad()),
        view(HEAD, serve=PAIR[0], several=PAIR, model=MODEL, replicas={0: MODEL}),
    ],
)
def test_the_document_is_that_of_the_schema(found: View, capsys: pytest.CaptureFixture[str]) -> None:
    with Lines(as_json=True, paste=lambda fix: Pasted(f"{fix} -i a.yaml" if fix else "")) as lines:
        lines.show(found)
    out = capsys.readouterr().out
    validate(["status", "--watch", "--json"], out)
    validate(["status", "--watch", "--json"], out)
    assert "ssh gpu2 -i a.yaml" in out or len(json.loads(out)["hosts"]) == 1


@pytest.mark.parametrize("options", [{"wait": 1.0, "watch": 1.0}, {"count": 2}])
def test_options_that_do_not_go_together(options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        verb.status(**options)  # type: ignore[arg-type]
