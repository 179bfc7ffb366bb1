"""GET /metrics at the front of several replicas: one text that Prometheus reads, also where one does not answer."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.support.bounds import within
from tests.support.fronted import REPLICA_KEY, Answer, Fronted, fronted
from tests.support.paths import FIXTURES
from tests.support.waiting import until
from vllm_cluster.serving.node.front_metrics import merge
from vllm_cluster.wire.front import FrontDeployment, FrontReplica, FrontRoutes, ReplicaState

REAL = (FIXTURES / "metrics" / "vllm-0.32.0.txt").read_text()
SAMPLES = [sample for family in text_string_to_metric_families(REAL) for sample in family.samples]


class Engine(ThreadingHTTPServer):
    """A replica whose /metrics has this text; `silent` sends the beginning alone until it ends."""

    daemon_threads, asked, silent, status = True, 0, False, 200

    def __init__(self, text: str = REAL) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.text, self.over = text, threading.Event()


class _Handler(BaseHTTPRequestHandler):
    server: Engine

    def do_GET(self) -> None:
        known = self.headers["Authorization"] == f"Bearer {REPLICA_KEY}" and self.path == "/metrics"
        self.server.asked += 1
        body = self.server.text.encode()
        self.send_response(self.server.status if known else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: 100 if self.server.silent else None])
        if self.server.silent:
            self.server.over.wait(60)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def engines(*texts: str) -> Iterator[list[Engine]]:
    """Replicas with these texts."""
    with ExitStack() as stack:
        made = [stack.enter_context(Engine(text)) for text in texts]
        for one in made:
            threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
            stack.callback(one.shutdown)
            stack.callback(one.over.set)
        yield made


class Behind:
    """A front, and the replicas that it asks."""

    def __init__(self, front: Fronted, engines: list[Engine]) -> None:
        self.front, self.engines = front, engines
        key = str(front.folder / "replica-key")
        places = (("127.0.0.1", one.server_port) for one in engines)
        self.rows = [FrontReplica(f"run-{n}", *place, "ready", key, n) for n, place in enumerate(places)]

    def route(self, states: dict[int, ReplicaState], absent: tuple[int, ...] = ()) -> None:
        """Replace the routes, and wait until they are in force."""
        rows = tuple(replace(one, state=states[one.index]) for one in self.rows if one.index in states)
        number = time.monotonic_ns()
        self.front.put(json.dumps(asdict(FrontRoutes(1, (FrontDeployment("m", rows, "", 5, absent),), number))))
        until(lambda: self.front.status().routes == number, 10, every=0.02)

    def ask(self) -> Answer:
        """Ask the front for the metrics."""
        return self.front.ask("GET", "/metrics")

    def found(self) -> dict[str, Metric]:
        """What Prometheus reads, each family once."""
        answer = self.ask()
        assert answer.status == 200
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        families = [*text_string_to_metric_families(answer.body.decode())]
        assert len({one.name for one in families}) == len(families)
        return {one.name: one for one in families}

    def up(self) -> dict[str, float]:
        """Which replicas have answered."""
        return {sample.labels["replica"]: sample.value for sample in self.found()["vcluster_replica_up"].samples}


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Behind]:
    """Two replicas with the real text of vLLM behind a front."""
    with engines(REAL, REAL) as made, fronted(tmp_path) as front:
        behind = Behind(front, made)
        behind.route({0: "ready", 1: "ready"})
        yield behind


# fault: serving/node/front_metrics.py: for line in (*one.about.values(), *one.samples)] → for line in one.samples]
# fault: serving/node/front_metrics.py: base = name if name in types else _PARTS.sub("", name) → base = name
def test_each_sample_of_each_replica_is_there_with_its_number(two: Behind) -> None:
    found = two.found()
    for family in text_string_to_metric_families(REAL):
        merged = found[family.name]
        assert (merged.type, merged.documentation) == (family.type, family.documentation)
        for index in "01":
            own = [one for one in merged.samples if one.labels["replica"] == index]
            assert [(one.name, one.value) for one in own] == [(one.name, one.value) for one in family.samples]
            expected = [{**one.labels, "replica": index} for one in family.samples]
            assert [one.labels for one in own] == expected
    assert two.up() == {"0": 1, "1": 1}


# fault: serving/node/front_metrics.py: return len(self._table.indexes) > 1 → return True
def test_of_one_replica_alone_the_text_is_its_own(two: Behind) -> None:
    two.route({0: "ready"})
    assert two.ask().body.decode() == REAL
    two.engines[0].status = 500
    assert two.ask().status == 500


# fault: serving/node/front_metrics.py: asyncio.wait_for(asked, ASK_SECONDS) → asked
# fault: serving/node/front_proxy.py: return bytes(found) if reply.status == HTTPStatus.OK else b"" → return bytes(found)
@pytest.mark.parametrize("how", ["silent", "large", "refuses", "ended", "starts", "lost", "absent"])
def test_a_replica_that_does_not_answer_is_left_out_and_counted(two: Behind, how: str) -> None:
    other = two.engines[1]
    if how == "silent":
        other.silent = True
    elif how == "large":
        other.text = REAL + "# \n" * (2 << 20)
    elif how == "refuses":
        other.status = 503
    elif how == "ended":
        other.server_close()
    elif how == "absent":
        two.route({0: "ready"}, absent=(1,))
    else:
        two.route({0: "ready", 1: "lost" if how == "lost" else "waiting"})
    began, found = time.monotonic(), two.found()
    assert time.monotonic() - began < 20
    assert [(one.labels["replica"], one.value) for one in found["vcluster_replica_up"].samples] == [("0", 1), ("1", 0)]
    assert [one.labels["replica"] for one in found["vllm:num_requests_running"].samples] == ["0"]


def test_without_any_that_is_ready_the_metrics_show_that(two: Behind) -> None:
    two.route({0: "waiting"}, absent=(1,))
    assert two.up() == {"0": 0, "1": 0}


def test_one_that_drains_is_asked_too(two: Behind) -> None:
    two.route({0: "draining", 1: "ready"})
    assert two.up() == {"0": 1, "1": 1}


# fault: serving/node/front_metrics.py: if self._asking is None or self._asking.done(): → if True:
def test_those_who_ask_at_once_get_one_answer(two: Behind) -> None:
    two.engines[1].silent = True
    threads = [threading.Thread(target=two.up) for _ in range(5)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert two.engines[0].asked < 5


def test_the_front_s_own_counts_are_there(two: Behind) -> None:
    two.route({0: "waiting", 1: "waiting"})
    assert two.front.ask("POST", "/v1/completions", {"model": "m"}).status == 503
    found = two.found()
    (refused,) = [one for one in found["vcluster_front_answers"].samples if one.labels["status"] == "503"]
    assert refused.value >= 1
    for name in ("running", "waiting"):
        assert [one.value for one in found[f"vcluster_front_requests_{name}"].samples] == [0]


def test_the_metrics_want_the_key(two: Behind) -> None:
    assert two.front.ask("GET", "/metrics", key=None).status == 401
    assert [one.asked for one in two.engines] == [0, 0]


# fault: serving/node/front_metrics.py: if base in types and one.about["TYPE"] != f"# TYPE {base} {types[base]}": → if False:
def test_a_metric_of_another_type_elsewhere_is_left_out() -> None:
    """While one replica after another gets another version."""
    merged = merge({0: "# TYPE a gauge\na 1\n", 1: "# TYPE a counter\na 2\n# TYPE b gauge\nb 3\n", 2: "a 4\n"})
    assert merged == '# TYPE a gauge\na{replica="0"} 1\na{replica="2"} 4\n# TYPE b gauge\nb{replica="1"} 3\n'


# fault: serving/node/front_metrics.py: if "replica=" in labels: → if False:
@pytest.mark.parametrize(
    ("line", "merged"),
    [
        ("a 1", 'a{replica="7"} 1'),
        ("a{} 1", 'a{replica="7"} 1'),
        ('a{b="c",} +Inf 17', 'a{replica="7",b="c"} +Inf 17'),
        ('a{b="}\\" {,"} -1.5e-05', 'a{replica="7",b="}\\" {,"} -1.5e-05'),
        ('a{replica="x",b="y"} 1', 'a{replica="7",exported_replica="x",b="y"} 1'),
        ('a{b=",replica=",c="replica="} 1', 'a{replica="7",b=",replica=",c="replica="} 1'),
        ('a{b="c} 1', None),
        ("a{b=c} 1", None),
        ("a one", None),
        ("a", None),
        ("<html>", None),
        ("# EOF", None),
        ("", None),
    ],
)
def test_a_line_that_is_not_a_sample_is_left_out(line: str, merged: str | None) -> None:
    assert merge({7: f"{line}\n"}) == (f"{merged}\n" if merged else "")
    assert merge({7: line}) == (f"{merged}\n" if merged else "")


def test_the_largest_histogram_stays_one(two: Behind) -> None:
    name = "vllm:time_to_first_token_seconds"
    rows = two.found()[name].samples
    for index in "01":
        buckets = [one.value for one in rows if one.name == f"{name}_bucket" and one.labels["replica"] == index]
        assert buckets == sorted(buckets)
        assert [one.value for one in rows if one.name == f"{name}_count" and one.labels["replica"] == index] == [
            buckets[-1]
        ]


def test_two_real_texts_of_150_kb_are_merged_within_100_ms() -> None:
    """It is done beside the answers of clients, on the head; measured 9 ms."""
    more = (line.replace('engine="0"', f'engine="{n}"') for n in (1, 2) for line in REAL.splitlines())
    text = REAL + "".join(f"{line}\n" for line in more if "engine=" in line)
    assert len(text) > 130_000
    took = []
    for _ in range(5):
        began = time.thread_time()
        merged = merge({0: text, 1: text})
        took.append(time.thread_time() - began)
    assert len([*text_string_to_metric_families(merged)]) == len([*text_string_to_metric_families(REAL)])
    assert min(took) < 0.1


# fault: serving/node/front_metrics.py: if len({*names}) == len(names) else None → if names is not None else None
@pytest.mark.parametrize(
    "line",
    [
        'a{b="\\x"} 1', 'a{b="1",b="2"} 1', 'a{replica="1",exported_replica="2"} 1', "a 1e999",
        "a 1 99999999999999999999", 'vcluster_replica_up{replica="1"} 0',
        "# TYPE vcluster_replica_up counter", "# HELP a \\x", "# TYPE a \x1b[31m", "# TYPE a",
        "a" * 9000 + " 1", 'é{b="1"} 1', "a{b='1'} 1", 'a{b="1"}1', "\x00",
    ],
)  # fmt: skip
def test_no_line_of_a_replica_takes_the_others_from_prometheus(line: str) -> None:
    """Of a text with one line that it cannot read, Prometheus takes none; and what the front counts is its own."""
    text = merge({0: REAL, 1: f"{line}\nz 1\n"})
    assert text == merge({0: REAL, 1: "z 1\n"})
    assert any(family.name == "z" for family in text_string_to_metric_families(text))


@pytest.mark.parametrize(
    "text",
    ['a{b="' + "x" * 900_000 + '"} 1', 'a{b="' + '\\"' * 400_000, "a{" + 'b="",' * 200_000 + "} 1", "a 1\n" * 250_000],
)
def test_a_large_text_of_a_replica_costs_little(text: str) -> None:
    """A line of 4 MB took 13 s, in which the front gave no answers, and 700 MB."""
    with within(5, megabytes=50):
        merge(dict.fromkeys(range(2), text))
