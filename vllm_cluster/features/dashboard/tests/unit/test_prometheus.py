"""What Prometheus and Grafana are given: every metric in it is one of the real ones, and the key is in one file."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from prometheus_client.parser import text_string_to_metric_families
from ruamel.yaml import YAML

from tests.support.paths import FIXTURES
from tests.support.sim import make
from vllm_cluster.features.dashboard import prometheus as module
from vllm_cluster.features.dashboard.prometheus import MetricsFiles, renew_keys, write_metrics
from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.events import Event
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.serving.endpoint.endpoint import hosts_key
from vllm_cluster.serving.node import front_metrics
from vllm_cluster.wire.metrics import MAX_METRICS

REAL = (FIXTURES / "metrics" / "vllm-0.32.0.txt").read_text()
SAMPLES = [sample for family in text_string_to_metric_families(REAL) for sample in family.samples]
KEY = "sk-a-key-of-a-test"
SELECTOR = re.compile(r'((?:vllm:)?[a-z0-9_]+)\{job="vcluster"([^}]*)\}')


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What is served, and the tunnel: a test may change both."""
    here: dict[str, Any] = {"serve": SimpleNamespace(host="127.0.0.1", port=8000), "tunnel": None}
    node = SimpleNamespace(running=lambda: SimpleNamespace(replicas=tuple(filter(None, (here["serve"],)))))
    monkeypatch.setattr(module, "at_head", lambda *_: nullcontext())
    monkeypatch.setattr(module, "read_key", lambda *_: KEY)
    monkeypatch.setattr(module, "NodeHandle", lambda *_: node)

    def port_for(_inventory: object, _cache: object, key: str, **_: object) -> int | None:
        assert key == KEY  # it is compared with the key at the end of the tunnel
        found: int | None = here["tunnel"]
        return found

    monkeypatch.setattr(module, "port_for", port_for)
    return here


def written(folder: Path, **options: Any) -> MetricsFiles:
    """Write the files."""
    return write_metrics(make.inventory(1), folder / "cache", folder / "monitoring", **options)


# fault: features/dashboard/prometheus.py: names = (inventory.cluster, hosts_key(inventory)) → names = (inventory.cluster,)
def test_a_folder_that_an_earlier_version_noted_gets_its_new_key(served: dict[str, Any], tmp_path: Path) -> None:
    """By the hosts that the cluster had."""
    written(tmp_path)
    folder, noted = tmp_path / "monitoring", tmp_path / "cache" / module.FOLDERS
    noted.write_text(json.dumps({str(folder): hosts_key(make.inventory(1))}))
    renew(make.inventory(1), tmp_path, [], KEY, "sk-new")
    assert (folder / "api-key").read_text() == "sk-new"


def load(folder: Path, name: str) -> Any:
    """A file as Prometheus and Grafana read it."""
    text = (folder / "monitoring" / name).read_text()
    return json.loads(text) if name.endswith(".json") else YAML(typ="safe", pure=True).load(text)


def queries(folder: Path) -> Iterator[str]:
    """Every expression of the rules and the dashboard."""
    for rule in load(folder, "alerts.yml")["groups"][0]["rules"]:
        yield rule["expr"]
    for panel in load(folder, "dashboard.json")["panels"]:
        for target in panel["targets"]:
            yield target["expr"]


def test_each_metric_and_label_is_one_of_the_real_ones(served: dict[str, Any], tmp_path: Path) -> None:
    written(tmp_path)
    # Those that a request with an error would make have no series yet.
    labels = {sample.name: set(sample.labels) for sample in SAMPLES} | {"up": set(), "vcluster_replica_up": {"replica"}}
    found = [pair for query in queries(tmp_path) for pair in SELECTOR.findall(query)]
    assert len(found) >= 25
    for name, others in found:
        assert name in labels, f"{name} is not a metric of vLLM"
        used = set(re.findall(r"(\w+)=", others)) - {"cluster", "replica"}
        assert used <= labels[name], f"{name} has no label {used - labels[name]}"
    for query in queries(tmp_path):
        assert set(re.findall(r"vllm:\w+", query)) <= {name for name, _ in SELECTOR.findall(query)}
        assert query.count("(") == query.count(")")


# fault: features/dashboard/prometheus.py: 0o600 if name == KEY else 0o644 → 0o644
def test_prometheus_finds_the_cluster_with_its_key_from_a_file(served: dict[str, Any], tmp_path: Path) -> None:
    done = written(tmp_path)
    (job,) = load(tmp_path, "prometheus.yml")["scrape_configs"]
    assert job["authorization"] == {"type": "Bearer", "credentials_file": "api-key"}
    assert job["file_sd_configs"] == [{"files": ["targets.json"]}]
    assert load(tmp_path, "prometheus.yml")["rule_files"] == ["alerts.yml"]
    assert load(tmp_path, "targets.json") == [{"targets": ["127.0.0.1:8000"], "labels": {"cluster": "lab"}}]
    key = tmp_path / "monitoring" / "api-key"
    assert (key.read_text(), key.stat().st_mode & 0o777) == (KEY, 0o600)
    assert [path.name for path in key.parent.iterdir() if KEY in path.read_text()] == ["api-key"]
    assert (done.target, done.reached, done.kept) == ("127.0.0.1:8000", False, ())


def renew(inventory: Inventory, folder: Path, events: list[Event], old: str, new: str | None) -> None:
    """Rotate the key from the old one to the new one."""
    renew_keys(inventory, folder / "cache", events.append, old=old, new=new)


# fault: features/dashboard/prometheus.py: if _content(path).strip() != old: → if False:
# fault: features/dashboard/prometheus.py: if made_for in names) → )
# fault: features/dashboard/prometheus.py: str(folder.absolute()): inventory.cluster} → str(folder.absolute()): hosts_key(inventory)}
def test_a_rotated_key_is_renewed_where_it_was_written(served: dict[str, Any], tmp_path: Path) -> None:
    """In the folders of this cluster alone, also beside others' files; one that cannot be written is reported."""
    written(tmp_path)
    events: list[Event] = []
    key = tmp_path / "monitoring" / "api-key"
    # A cluster of another name; and one of the same name, whose key was another.
    renew(make.inventory(1, cluster="other"), tmp_path, events, KEY, "sk-of-another-cluster")
    renew(make.inventory(1), tmp_path, events, "sk-of-another-site", "sk-new-of-another-site")
    assert (key.read_text(), events) == (KEY, [])
    # A host has joined since.
    renew(make.inventory(2), tmp_path, events, KEY, "sk-new")
    assert (key.read_text(), key.stat().st_mode & 0o777) == ("sk-new", 0o600)
    assert events[-1].text == f"{key} has the new key too"
    (key.parent / f".api-key.{os.getpid()}.new").mkdir()
    renew(make.inventory(1), tmp_path, events, "sk-new", "sk-newer")
    assert (events[-1].kind, key.read_text()) == ("warning", "sk-new")
    assert events[-1].text.endswith(f"vcluster dashboard --prometheus {key.parent}")
    # What was removed is not made again.
    shutil.rmtree(key.parent)
    renew(make.inventory(1), tmp_path, events, "sk-new", "sk-newest")
    assert (len(events), key.parent.exists()) == (2, False)


@pytest.mark.parametrize(
    ("host", "tunnel", "option", "target", "reached"),
    [
        ("127.0.0.1", 40123, None, "127.0.0.1:40123", True),
        ("10.0.0.1", None, None, "10.0.0.1:8000", True),
        ("fd00::1", 40123, None, "[fd00::1]:8000", True),
        ("127.0.0.1", None, "head:8000", "head:8000", True),
        (None, None, None, "127.0.0.1:8000", False),
    ],
)
def test_where_the_metrics_are(
    served: dict[str, Any], tmp_path: Path, *, host: str, tunnel: int, option: str, target: str, reached: bool
) -> None:
    served["serve"] = SimpleNamespace(host=host, port=8000) if host else None
    served["tunnel"] = tunnel
    done = written(tmp_path, target=option)
    assert (done.target, done.reached) == (target, reached)


# fault: features/dashboard/prometheus.py: if new is not None: → if True:
def test_a_folder_keeps_the_old_key_while_the_tunnel_leads_elsewhere(served: dict[str, Any], tmp_path: Path) -> None:
    written(tmp_path)
    events = list[Event]()
    renew(make.inventory(1), tmp_path, events, KEY, None)
    key = tmp_path / "monitoring" / "api-key"
    again = f"vcluster dashboard --prometheus {key.parent}"
    text = f"{key} has the old key (the tunnel leads elsewhere): {again}"
    assert [(one.kind, one.text) for one in events] == [("warning", text)]
    assert key.read_text() == KEY


# fault: features/dashboard/prometheus.py: not in (None, text) → == text
def test_a_file_that_was_changed_is_kept_and_the_key_is_not(served: dict[str, Any], tmp_path: Path) -> None:
    written(tmp_path)
    folder = tmp_path / "monitoring"
    (folder / "alerts.yml").write_text("groups: []\n")
    (folder / "api-key").write_text("old")
    (folder / "api-key").chmod(0o644)
    done = written(tmp_path)
    assert (done.kept, "api-key" in done.written) == (("alerts.yml",), True)
    assert (folder / "alerts.yml").read_text() == "groups: []\n"
    assert ((folder / "api-key").read_text(), (folder / "api-key").stat().st_mode & 0o777) == (KEY, 0o600)
    (folder / "alerts.yml").unlink()
    assert written(tmp_path).kept == ()
    assert load(tmp_path, "alerts.yml")["groups"]
    assert sorted(path.name for path in folder.iterdir()) == sorted([*module.TEMPLATES, "api-key", "targets.json"])


# fault: features/dashboard/prometheus.py: _ensure_own(folder, cache, contents) → pass
def test_no_key_is_put_beside_a_configuration_that_came_with_the_folder(served: dict[str, Any], tmp_path: Path) -> None:
    """As a cloned repository may have it: it sends the key to a server of its author."""
    path = tmp_path / "monitoring" / "prometheus.yml"
    path.parent.mkdir()
    path.write_text("remote_write: [{url: http://metrics.example, authorization: {credentials_file: api-key}}]\n")
    with pytest.raises(UsageError, match="was not written on this machine"):
        written(tmp_path)
    assert [one.name for one in path.parent.iterdir()] == ["prometheus.yml"]
    path.unlink()
    written(tmp_path)
    # What a person has changed since is theirs.
    path.write_text("scrape_configs: []\n")
    assert written(tmp_path).kept == ("prometheus.yml",)


# fault: features/dashboard/prometheus.py: if folder.is_symlink(): → if False:
@pytest.mark.promise("P49")
def test_nothing_is_written_behind_a_link_of_the_folder(served: dict[str, Any], tmp_path: Path) -> None:
    theirs, link, events = tmp_path / "of another program", tmp_path / "monitoring", list[Event]()
    theirs.mkdir()
    (theirs / "api-key").write_text(KEY)
    link.symlink_to(theirs)
    with pytest.raises(UsageError, match=r"monitoring is a link to .*: nothing is written behind it") as refused:
        written(tmp_path)
    assert f"--prometheus '{theirs}'" in str(refused.value.hint)
    link.unlink()
    written(tmp_path)
    shutil.rmtree(link)
    link.symlink_to(theirs)
    renew(make.inventory(1), tmp_path, events, KEY, "sk-new")
    assert [(one.kind, "is a link" in one.text) for one in events] == [("warning", True)]
    assert [(path.name, path.read_text()) for path in theirs.iterdir()] == [("api-key", KEY)]


# fault: features/dashboard/prometheus.py: if theirs := changed_by_others(folder): → if theirs := None:
# fault: features/dashboard/prometheus.py: folder.mkdir(mode=0o755, → folder.mkdir(
# fault: features/dashboard/prometheus.py: _ensure_private(folder)  # → pass  #
def test_no_key_is_written_where_others_may_change_what_prometheus_reads(
    served: dict[str, Any], tmp_path: Path
) -> None:
    """Another user had made the folder, and named where the key is sent."""
    folder, events = tmp_path / "monitoring", list[Event]()
    folder.mkdir()
    folder.chmod(0o757)
    with pytest.raises(UsageError, match=f"other users may change what is in {folder}") as refused:
        written(tmp_path)
    assert (list(folder.iterdir()), f"chmod go-w {folder}" in str(refused.value.hint)) == ([], True)
    folder.rmdir()
    before = os.umask(0)
    try:
        written(tmp_path)
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o755
    folder.chmod(0o757)
    renew(make.inventory(1), tmp_path, events, KEY, "sk-new")
    assert [(one.kind, "other users may change" in one.text) for one in events] == [("warning", True)]
    assert (folder / "api-key").read_text() == KEY


# fault: features/dashboard/prometheus.py: if path.is_file(): → if path.is_fifo():
def test_a_named_pipe_or_a_folder_is_kept_and_not_read(served: dict[str, Any], tmp_path: Path) -> None:
    written(tmp_path)
    pipe, folder = (tmp_path / "monitoring" / name for name in ("alerts.yml", "dashboard.json"))
    for path in (pipe, folder):
        path.unlink()
    os.mkfifo(pipe)
    folder.mkdir()
    # Who opens a pipe waits until another writes: this end would have something for it.
    with os.fdopen(os.open(pipe, os.O_RDWR | os.O_NONBLOCK), "wb", buffering=0) as end:
        end.write(b"groups: []")
        assert written(tmp_path).kept == ("alerts.yml", "dashboard.json")
        assert os.read(end.fileno(), 100) == b"groups: []"


def test_each_alert_comes_with_what_to_do(served: dict[str, Any], tmp_path: Path) -> None:
    written(tmp_path)
    rules = load(tmp_path, "alerts.yml")["groups"][0]["rules"]
    names = ["Down", "ReplicaDown", "Stalled", "Degraded", "KvCacheFull", "SlowFirstToken", "Restarts"]
    assert [rule["alert"] for rule in rules] == [f"Vcluster{name}" for name in names]
    assert all(
        rule["annotations"]["description"] and "$labels.cluster" in rule["annotations"]["summary"] for rule in rules
    )
    panels = load(tmp_path, "dashboard.json")["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in panels]
    assert len(set(places)) == len(places)
    assert all(p["gridPos"]["x"] + p["gridPos"]["w"] <= 24 for p in panels)


# fault: features/dashboard/monitoring/alerts.yml: expr: vcluster_replica_up{job="vcluster", replica=~"[0-9]+"} → expr: vcluster_replica_up{job="vcluster"}
# fault: features/dashboard/monitoring/alerts.yml: vllm:kv_cache_usage_perc{job="vcluster", replica=~"[0-9]*"} → vllm:kv_cache_usage_perc{job="vcluster"}
def test_no_text_of_a_server_is_in_an_alert(served: dict[str, Any], tmp_path: Path) -> None:
    """A person copies the command in it: `replica=0; touch x #` was one that a replica had written."""
    written(tmp_path)
    for rule in load(tmp_path, "alerts.yml")["groups"][0]["rules"]:
        words, expr = json.dumps(rule["annotations"]), rule["expr"]
        # The other two are Prometheus' own, of targets.json.
        assert {*re.findall(r"\$labels\.(\w+)", words)} <= {"cluster", "instance", "replica"}
        numbers = [re.search(r'replica=~"\[0-9\][+*]"', labels) for _, labels in SELECTOR.findall(expr)]
        assert "replica" not in words or (numbers and all(numbers)), rule["alert"]
        assert "replica=" not in rule["annotations"]["description"] or '"[0-9]+"' in expr


# fault: features/dashboard/monitoring/prometheus.yml: body_size_limit: 24MB → body_size_limit: 9MB
# fault: features/dashboard/monitoring/prometheus.yml: sample_limit: 250000 → sample_limit: 50000
# fault: features/dashboard/monitoring/prometheus.yml: label_limit: 128 → label_limit: 64
# fault: features/dashboard/monitoring/prometheus.yml: label_value_length_limit: 8300 → label_value_length_limit: 1000
def test_prometheus_takes_no_more_than_the_front_may_give(served: dict[str, Any], tmp_path: Path) -> None:
    """It took 3.8 GB for one page; and of a page beyond a limit it takes nothing, also not of honest replicas."""
    written(tmp_path)
    (job,) = load(tmp_path, "prometheus.yml")["scrape_configs"]
    assert int(job["body_size_limit"].removesuffix("MB")) << 20 == MAX_METRICS
    # The front's own: of each replica whether it is there, and by HTTP status.
    assert front_metrics.MAX_ALL_LINES + 4096 + 600 < job["sample_limit"] < 2 * front_metrics.MAX_ALL_LINES
    # The metric's name, that of the replica and the three of Prometheus.
    assert front_metrics.MAX_LABELS + 5 < job["label_limit"] < 2 * front_metrics.MAX_LABELS
    longest = front_metrics.MAX_LINE + len("exported_")
    assert longest < job["label_name_length_limit"] == job["label_value_length_limit"] < 2 * longest


def test_grafana_reads_the_whole_dashboard(served: dict[str, Any], tmp_path: Path) -> None:
    """Its own reader, which is made from Grafana's schema, passes over what is not in that."""
    written(tmp_path)
    dashboard = load(tmp_path, "dashboard.json")
    register_default_plugins()
    read = json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard)))
    assert list(lost(dashboard, read)) == []
    assert list(lost({"panels": [{"titel": 1}]}, {"panels": [{}]})) == ["/panels/0/titel"]


def lost(whole: Any, part: Any, path: str = "") -> Iterator[str]:
    """The paths of what is in the one and not in the other."""
    if isinstance(whole, dict) and isinstance(part, dict):
        for key, value in whole.items():
            yield from lost(value, part[key], f"{path}/{key}") if key in part else [f"{path}/{key}"]
    elif isinstance(whole, list) and isinstance(part, list) and len(whole) == len(part):
        for index, (one, other) in enumerate(zip(whole, part, strict=True)):
            yield from lost(one, other, f"{path}/{index}")
    elif whole != part:
        yield path


def test_a_folder_that_cannot_be_written_is_reported(served: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "monitoring").write_text("a file")
    with pytest.raises(UsageError, match="monitoring"):
        written(tmp_path)
