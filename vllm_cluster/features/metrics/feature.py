"""The verbs of the feature metrics, and what its help prints; what it adds to serving."""

from __future__ import annotations

from vllm_cluster.kernel.terminal.exits import MORE, READ
from vllm_cluster.kernel.terminal.verb import Verb

VERBS = {
    "metrics": Verb(
        MORE,
        "features.metrics.verb:metrics",
        "Write Prometheus targets, alert rules, a Grafana dashboard.",
        "vLLM's own metrics. The API's key is in a file for its owner alone; key --rotate on this machine renews it.",
        ("vcluster metrics", "vcluster metrics --output /etc/prometheus/lab --target 10.0.0.11:8000"),
        {3: "the cluster is not up", **READ},
    ),
}
# By the name of the hook.
ADDS = {"key-changed": "features.metrics.action:renew_keys"}
