"""The files of `vcluster dashboard --prometheus`: a real Prometheus reads them, scrapes a real vLLM, and judges."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.support.endpoint import MODEL
from tests.support.hosts import Sandbox
from tests.support.prometheus import Prometheus, accepted, running
from tests.support.waiting import until
from vllm_cluster.features.dashboard.prometheus import KEY

pytestmark = [pytest.mark.e2e, pytest.mark.deep]

LONG = 180.0
# A rule is a condition: without its limits it has a series also where nothing is wrong.
LIMIT = re.compile(r"\s*(?:==|>=|>)\s*[\d.]+\s*$|\s*(?:==|>=|>)\s*[\d.]+\s+and\s+")
# What Grafana puts in their place.
VARIABLES = {"$cluster": ".*", "$replica": ".*", "$__rate_interval": "1m"}


def parts(expression: str) -> list[str]:
    """What a rule compares with limits."""
    # No request of this test ends with 5xx; those with 4xx have the same labels.
    return [part.replace("5xx", "4xx") for part in LIMIT.split(expression.strip()) if part]


def expressions(folder: Path) -> Iterator[str]:
    """All of the rules and of the panels."""
    for rule in YAML(typ="safe", pure=True).load(folder / "alerts.yml")["groups"][0]["rules"]:
        yield from parts(rule["expr"])
    for panel in json.loads((folder / "dashboard.json").read_text())["panels"]:
        for target in panel["targets"]:
            for name, value in VARIABLES.items():
                target["expr"] = target["expr"].replace(name, value)
            yield target["expr"]


def alerts(prometheus: Prometheus) -> set[str]:
    """Those that are due, now or soon."""
    return {alert["labels"]["alertname"] for alert in prometheus.ask("api/v1/alerts")["alerts"]}


def up(prometheus: Prometheus) -> list[Any]:
    """Whether the targets answered, with their clusters."""
    return [(one["metric"]["cluster"], one["value"][1]) for one in prometheus.series('up{job="vcluster"}')]


@pytest.mark.cluster("served", leaves="changed")
def test_prometheus_scrapes_the_cluster_and_each_expression_has_series(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.vcluster("endpoint", "--detach").ok()
    try:
        wrote = sandbox.vcluster("dashboard", "--prometheus", str(tmp_path)).ok()
        assert f"prometheus --config.file={tmp_path}/prometheus.yml" in wrote.out + wrote.err
        accepted("check", "config", tmp_path / "prometheus.yml")
        accepted("check", "rules", tmp_path / "alerts.yml")
        with running(tmp_path) as prometheus:
            until(lambda: up(prometheus) == [("sandbox", "1")], LONG)
            (target,) = prometheus.ask("api/v1/targets")["activeTargets"]
            assert (target["health"], target["lastError"]) == ("up", "")
            asked = set(expressions(tmp_path))
            assert len(asked) > 15

            def without() -> set[str]:
                sandbox.vcluster("complete", "Hello", "--max-tokens", "8").ok()
                assert sandbox.vcluster("complete", "Hello", "--max-tokens", "100000").code != 0
                return {one for one in asked if not prometheus.series(one)}

            until(lambda: not without(), LONG)
            (group,) = prometheus.ask("api/v1/rules")["groups"]
            assert {(rule["name"], rule["health"]) for rule in group["rules"]} == {
                (f"Vcluster{name}", "ok")
                for name in ("Down", "ReplicaDown", "Stalled", "Degraded", "KvCacheFull", "SlowFirstToken", "Restarts")
            }
            assert alerts(prometheus) == set()
            # A rotated key is in the folder at once; the former one, as in a copy of it elsewhere, is refused.
            former = (tmp_path / KEY).read_text()
            sandbox.vcluster("endpoint", "--rotate").ok()
            rotated = time.time()
            until(lambda: prometheus.series(f"up == 1 and timestamp(up) > {rotated}"), LONG)
            now = sandbox.vcluster("endpoint", "--key").ok().out.strip()
            assert (tmp_path / KEY).read_text().strip() == now != former.strip()
            (tmp_path / KEY).write_text(former)
            until(lambda: up(prometheus) == [("sandbox", "0")], LONG)
            sandbox.vcluster("dashboard", "--prometheus", str(tmp_path)).ok()
            until(lambda: up(prometheus) == [("sandbox", "1")], LONG)
            # A model that is stopped.
            sandbox.vcluster("stop", "--yes").ok()
            until(lambda: alerts(prometheus) == {"VclusterDown"}, LONG)
            sandbox.vcluster("serve", "--yes", MODEL).ok()
            until(lambda: up(prometheus) == [("sandbox", "1")], LONG)
            until(lambda: alerts(prometheus) == set(), LONG)
    finally:
        sandbox.vcluster("endpoint", "--close")
