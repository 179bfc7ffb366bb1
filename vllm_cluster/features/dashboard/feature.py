"""The verbs of the feature dashboard, and what its help prints; what it adds to serving."""

from __future__ import annotations

from vllm_cluster.kernel.terminal.exits import MORE, READ
from vllm_cluster.kernel.terminal.verb import Verb

VERBS = {
    "dashboard": Verb(
        MORE,
        "features.dashboard.verb:dashboard",
        "Show the cluster in the browser, or feed Prometheus.",
        "The page has what vcluster status --watch shows, and the last half hour of it, until Ctrl-C. On loopback "
        "alone; it changes nothing.\n"
        "With --prometheus it writes targets, alert rules and a Grafana dashboard for vLLM's own metrics. The API's "
        "key is in a file for its owner alone; endpoint --rotate on this machine renews it.",
        (
            "vcluster dashboard",
            "vcluster dashboard --port 8501",
            "vcluster dashboard --prometheus /etc/prometheus/lab --target 10.0.0.11:8000",
        ),
        {3: "with --prometheus: the cluster is not up", **READ},
        bare={"--prometheus": "monitoring"},
    ),
}
# By the name of the hook.
ADDS = {"key-changed": "features.dashboard.prometheus:renew_keys"}
