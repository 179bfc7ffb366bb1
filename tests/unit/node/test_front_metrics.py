"""GET /metrics at the front: one text that Prometheus reads, with any text of a replica, and where one is silent."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.support.bounds import within
from tests.support.fronted import REPLICA_KEY, Answer, Fronted, fronted
from tests.support.paths import FIXTURES
from tests.support.waiting import until
from vllm_cluster.serving.node.front_metrics import MAX_LABELS, MAX_LINE, merge
from vllm_cluster.wire.front import FrontDeployment, FrontReplica, FrontRoutes, ReplicaState
from vllm_cluster.wire.metrics import Load, read_loads

REAL = (FIXTURES / "metrics" / "vllm-0.32.0.txt").read_text()
SAMPLES = [sample for family in text_string_to_metric_families(REAL) for sample in family.samples]
ENDS = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("", "_sum", "_count")}
LINE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:\w+="(?:[^"\\\n]|\\[\\"n])*",?)+)\})? (\S+)', re.ASCII)


def strict(text: str) -> set[tuple[str, ...]]:
    """Each sample of a text, as its name, its value and its labels.

    By rules that are stricter than those of Python's reader, which passes over what has Prometheus refuse all of it.
    """
    assert text == "" or text.endswith("\n")
    found, seen, told = list[tuple[str, ...]](), set[str](), set[tuple[str, str]]()
    family, last, of = "", "", dict[str, str]()
    ends: tuple[str, ...] = ("",)
    for line in text.split("\n")[:-1]:
        if line.startswith("#"):
            what, name, words = re.fullmatch(r"# (HELP|TYPE) (\S+) (.*)", line).groups()  # type: ignore[union-attr]
            assert what == "HELP" or words in ("counter", "gauge", "histogram", "summary"), line
            # Once each, and the type last.
            assert not told & {(what, name), ("TYPE", name)}, line
            told.add((what, name))
            family, ends = name, ENDS.get(words, ("",)) if what == "TYPE" else ("",)
            continue
        assert len(line.encode()) <= MAX_LINE + 40, line
        name, labels, number = LINE.fullmatch(line).groups()  # type: ignore[union-attr]
        base = family if name in {family + end for end in ends} else name
        # The samples of a family are one piece.
        assert base == last or base not in seen, line
        assert of.setdefault(name, base) == base, line
        seen.add(last := base)
        pairs = re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels or "")
        keys = [key for key, _ in pairs]
        assert len({*keys}) == len(keys) <= MAX_LABELS + 1, line
        assert not any(key.startswith("__") for key in keys), line
        assert name != "up" and not name.startswith(("scrape_", "ALERTS")), line
        assert not re.search("[\x00-\x1f\x7f]", line), line
        float(number)
        found.append((name, number, *sorted(f'{key}="{value}"' for key, value in pairs)))
    return {*found}


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


# fault: serving/node/front_metrics.py: if base != name and end in _ENDS.get(types.get(base, ""), ()): → if False:
# fault: serving/node/front_metrics.py: if type_ != _UNTYPED else [] → if False else []
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


# fault: serving/node/front.py: if (request.method, path) == ("GET", "/metrics"): → if False:
def test_one_replica_alone_is_read_as_several_are(two: Behind) -> None:
    """Its text was handed on as it was: an alert printed a command with what the replica called itself."""
    two.route({0: "ready"})
    found = [sample for family in two.found().values() for sample in family.samples]
    for one in SAMPLES:
        assert (one.name, {**one.labels, "replica": "0"}, one.value) in [(s.name, s.labels, s.value) for s in found]
    two.engines[0].text = 'vcluster_replica_up{replica="0; touch x #"} 0\na{replica="0; touch x #"} 1\n'
    assert two.up() == {"0": 1}
    (sample,) = two.found()["a"].samples
    assert sample.labels["replica"] == "0"
    strict(two.ask().body.decode())


# fault: serving/node/front_metrics.py: if len(up) <= 1 and not any(up.values()): → if False:
# fault: serving/node/front_metrics.py: if not self._table.ready: → if True:
@pytest.mark.parametrize("how", ["fails", "large", "waits", "nothing"])
def test_one_replica_alone_that_gives_none_is_down(two: Behind, how: str) -> None:
    """Prometheus takes that for no answer, which the alert about the whole cluster waits for."""
    two.route({0: "waiting"} if how == "waits" else {} if how == "nothing" else {0: "ready"})
    two.engines[0].status = 500 if how == "fails" else 200
    two.engines[0].text = "a 1\n" * (1 + (1 << 20)) if how == "large" else REAL
    given = two.ask()
    code = {"waits": "model_not_ready", "nothing": "model_not_ready"}.get(how, "replica_metrics")
    assert (given.status, code in given.body.decode()) == (503 if how in ("waits", "nothing") else 502, True)


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


# fault: serving/node/front_metrics.py: if len(kinds) > 1 for kind in kinds} → if len(kinds) > 9 for kind in kinds}
def test_a_metric_of_another_type_elsewhere_has_none() -> None:
    """As while one replica after another gets another version; the first one's type had left out the others' samples.

    A batch took a queue at the first, which was made up, for one at all: it had 2 requests open instead of 400.
    """
    merged = merge({0: "# TYPE a gauge\na 1\n", 1: "# TYPE a counter\na 2\n# TYPE b gauge\nb 3\n", 2: "a 4\n"})
    assert merged == ('# TYPE b gauge\nb{replica="1"} 3\na{replica="0"} 1\na{replica="1"} 2\na{replica="2"} 4\n')
    load = '# TYPE vllm:num_requests_{0} {1}\nvllm:num_requests_{0}{{engine="0"}} {2}\n'
    texts = (
        "".join(load.format(what, kind, count) for what, count in zip(("running", "waiting"), counts, strict=True))
        for kind, counts in (("counter", (0, 5)), ("gauge", (200, 0)))
    )
    assert read_loads(merge(dict(enumerate(texts)))) == {"0": Load(0, 5), "1": Load(200, 0)}


# fault: serving/node/front_metrics.py: if "replica=" in labels: → if False:
@pytest.mark.parametrize(
    ("line", "merged"),
    [
        ("a 1", 'a{replica="7"} 1'),
        ("a{} 1", 'a{replica="7"} 1'),
        ('a{b="c",} +Inf 17', 'a{replica="7",b="c"} +Inf'),
        ("a 1 -5", 'a{replica="7"} 1'),
        ("upper 1", 'upper{replica="7"} 1'),
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


# fault: serving/node/front_metrics.py: good = len({*names}) == len(names) <= MAX_LABELS → good = len(names) <= MAX_LABELS
# fault: serving/node/front_metrics.py: good = len({*names}) == len(names) <= MAX_LABELS → good = len({*names}) == len(names)
# fault: serving/node/front_metrics.py: if len(line.encode()) > MAX_LINE: → if len(line) > MAX_LINE:
# fault: serving/node/front_metrics.py: |up(?![a-zA-Z0-9_:]) → |up_
# fault: serving/node/front_metrics.py: (?!__)[a-zA-Z_] → [a-zA-Z_]
@pytest.mark.parametrize(
    "line",
    [
        'a{b="\\x"} 1', 'a{b="1",b="2"} 1', 'a{replica="1",exported_replica="2"} 1', "a 1e999",
        "a 1 99999999999999999999", 'vcluster_replica_up{replica="1"} 0',
        "# TYPE vcluster_replica_up counter", "# HELP a \\x", "# TYPE a \x1b[31m", "# TYPE a",
        "# TYPE a bogus", "# TYPE up gauge", 'a{__name__="b"} 1', 'a{__address__="b"} 1', "up 0", 'up{job="x"} 0',
        "scrape_duration_seconds 9", 'ALERTS{alertstate="firing"} 1', "ALERTS_FOR_STATE 1", 'a{b="\x1b[31m"} 1',
        "a" * 9000 + " 1", 'a{b="' + "é" * 5000 + '"} 1', "a{" + ",".join(f'b{n}="1"' for n in range(101)) + "} 1",
        'é{b="1"} 1', "a{b='1'} 1", 'a{b="1"}1', "\x00",
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


# fault: serving/node/front_metrics.py: |Inf)|NaN)" → |Inf|NaN))"
@pytest.mark.parametrize("sign", "+-")
def test_a_number_that_go_cannot_read_is_left_out(sign: str) -> None:
    """Prometheus takes nothing of a page with one: no replica's metrics, and the cluster counted as down."""
    assert merge({0: f"bad {sign}NaN\ngood NaN\nmore {sign}Inf\n"}) == (
        f'good{{replica="0"}} NaN\nmore{{replica="0"}} {sign}Inf\n'
    )


def lines() -> st.SearchStrategy[str]:
    """Lines near to those of Prometheus' format, about names that honest replicas have too."""
    families = [*text_string_to_metric_families(SHORT)]
    honest = sorted({sample.name for one in families for sample in one.samples} | {one.name for one in families})
    name = st.sampled_from(
        [*honest, "a", "up", "scrape_x", "ALERTS", "vcluster_replica_up", "__a", "b_sum", "b_count", "b"]
    )
    kind = st.sampled_from(["counter", "gauge", "histogram", "summary", "untyped", "unknown", "bogus", "info", ""])
    word = st.text(max_size=20) | st.sampled_from(
        ["0", "1", '\\"', "\\n", "\\", "x" * 9000, "\x00", "\r", "\u2028", "{}"]
    )
    key = st.sampled_from(["replica", "exported_replica", "__name__", "__x", "le", "job", "engine", "1a", ""])
    labels = st.lists(st.builds('{}="{}"'.format, key, word), max_size=4).map(",".join)
    value = st.sampled_from(
        ["1", "NaN", "+NaN", "-Inf", "0x1", "1e999", "1_0", "9" * 300, "1 5", "1 -5", "1 x", "", "1.", ".5"]
    )
    return st.one_of(
        st.builds("# TYPE {} {}".format, name, kind),
        st.builds("# HELP {} {}".format, name, word),
        st.builds("{}{{{}}} {}".format, name, labels, value),
        st.builds("{} {}".format, name, value),
        st.text(max_size=40),
    )


# Of each type one.
TYPES = ("http_request_size_bytes", "num_requests_running", "inter_token_latency_seconds", "num_preemptions_total")
SHORT = "".join(f"{line}\n" for line in REAL.splitlines() if any(name in line for name in TYPES))
BUCKET = "vllm:inter_token_latency_seconds_bucket"


# fault: serving/node/front_metrics.py: ({_VALUE})(?: -?\d{{1,18}})? → ({_VALUE}(?: -?\d{{1,18}})?)
# fault: serving/node/front_metrics.py: for end in {"", *_ENDS[kind[1]]}: → for end in {""}:
# fault: serving/node/front_metrics.py: sorted(loose, key=itemgetter(0)) → loose
@example(texts=[f"# TYPE {BUCKET} gauge\n{BUCKET} 1\n"], at=0)
@given(texts=st.lists(st.lists(lines(), max_size=12).map("\n".join), min_size=1, max_size=2), at=st.integers(0, 2))
def test_no_text_takes_the_samples_of_an_honest_replica_from_prometheus(texts: list[str], at: int) -> None:
    """Before it and after it: the first had chosen the types for all."""
    numbers = [0, 2][: len(texts)]
    every = {**dict(zip(numbers, texts, strict=True)), 1: SHORT}
    order = sorted(every, key=lambda one: (one + at) % 3)
    found = strict(merge({one: every[one] for one in order}))
    assert {one for one in found if 'replica="1"' in one} == strict(merge({1: SHORT}))
    assert not any(one[0].startswith("vcluster_") for one in found)
